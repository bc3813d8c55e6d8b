"""The same data under several kernels: built in, combined, and one of your own."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import streamkern as sk

X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)


def rational(squared_distances: np.ndarray) -> np.ndarray:
    """A profile g(‖x − z‖²), elementwise. At the top level of a module, so that workers can import it."""
    return 1 / np.sqrt(1 + squared_distances / 400)


for kernel in (
    sk.Laplace(20),
    sk.Gaussian(20),
    sk.Matern(20, nu=1.5),
    sk.NTK(depth=2),
    0.5 * sk.Laplace(20) + 0.5 * sk.Gaussian(10),
    sk.RadialProfile(rational),
):
    model = sk.KernelClassifier(kernel=kernel, centers=400).fit(X, y)
    print(f"{model.score(X_test, y_test):.3f}  {kernel}")
