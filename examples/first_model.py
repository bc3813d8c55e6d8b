"""Train, score, save and load a classifier on scikit-learn's digits."""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import streamkern as sk

X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)

model = sk.KernelClassifier(kernel=sk.Laplace(bandwidth=20), centers=500)  # no step or batch to set: both are measured
model.fit(X, y)
print(f"accuracy {model.score(X_test, y_test):.3f}")

model.save("model.zarr")  # zarr and JSON, no pickle
again = sk.load_model("model.zarr")
print("the same predictions:", (again.predict(X_test) == model.predict(X_test)).all())
