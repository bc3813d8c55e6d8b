"""Noisy copies of few rows: 20,000 virtual rows made of 100 stored ones, none of which is ever written."""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import streamkern as sk

X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), train_size=100, random_state=0)
plain = sk.from_arrays(X, y)
noisy = plain.augment(sk.augment.GaussianNoise(2.0), copies=200)  # standard deviation 2, pixels go from 0 to 16
print(f"{len(plain)} stored rows, {len(noisy)} virtual ones")

for name, train in ("plain", plain), ("noisy", noisy):
    model = sk.KernelClassifier(kernel=sk.Laplace(bandwidth=20), centers=100)
    print(f"{name} accuracy {model.fit(train).score(X_test, y_test):.3f}")
