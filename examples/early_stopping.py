"""Stop when validation rows stop improving, and keep the weights of the best pass."""

import numpy as np

import streamkern as sk

rng = np.random.default_rng(0)
X = rng.normal(size=(3000, 5))
y = np.sin(X[:, 0]) + 0.5 * rng.normal(size=3000)  # mostly noise: many passes would fit it

solver = sk.EigenPro(epochs=60, patience=3)
model = sk.KernelRegressor(kernel=sk.Gaussian(1.0), centers=1500, solver=solver, validation=0.2)
model.fit(X, y)
errors = [entry["validation"]["mse"] for entry in model.result_.outcome.history]
print(f"stopped after {len(errors)} of 60 passes")
best = int(np.argmin(errors))
print(f"validation mse: first {errors[0]:.4f}, best {errors[best]:.4f} at pass {best + 1}, last {errors[-1]:.4f}")
