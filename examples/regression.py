"""Regression with two outputs; what the solver measured and how each pass went are kept."""

import numpy as np

import streamkern as sk

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, size=(6000, 6))
Y = np.column_stack([np.sin(3 * X[:, 0]) * X[:, 1], X[:, 2] ** 2 - X[:, 3]]) + 0.05 * rng.normal(size=(6000, 2))

model = sk.KernelRegressor(kernel=sk.Matern(bandwidth=2.0, nu=2.5), centers=600, solver=sk.EigenPro(epochs=20))
model.fit(X[:5000], Y[:5000])
print(f"R2 {model.score(X[5000:], Y[5000:]):.3f}")
found = model.result_.report
print(f"batch {found['batch']}, step {found['step']:.1f}, passes {model.result_.outcome.passes}")
print("predictions", model.predict(X[:3]).shape)
