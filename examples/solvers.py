"""Solvers side by side on the same 300 centers: passes, seconds and accuracy."""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import streamkern as sk

X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)

for name, solver in (
    ("EigenPro, exact", sk.EigenPro(epochs=10, projection="exact")),
    ("EigenPro, inexact", sk.EigenPro(epochs=10, projection="inexact")),
    ("EigenPro, delayed", sk.EigenPro(epochs=10, projection="delayed")),
    ("Falkon", sk.Falkon(epochs=10, ridge=1e-6)),
    ("Direct", sk.Direct(ridge=1e-6)),
    ("auto", "auto"),  # the least work that fits the memory
):
    model = sk.KernelClassifier(kernel=sk.Laplace(20), centers=300, solver=solver).fit(X, y)
    took = model.result_.outcome
    print(f"{name:18} {took.passes:3} passes {took.seconds:6.2f} s  accuracy {model.score(X_test, y_test):.3f}")
