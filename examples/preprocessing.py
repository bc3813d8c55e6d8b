"""Missing values, a category and features of unlike units: fitted in streams, and part of the saved model."""

import numpy as np

import streamkern as sk

rng = np.random.default_rng(0)
city = rng.integers(0, 5, 3000)
income = rng.lognormal(10, 1, 3000)
age = rng.uniform(18, 90, 3000)
y = (np.log(income) + 0.5 * (city == 2) - 0.02 * age > 9.0).astype(int)
age[::20] = np.nan
X = np.column_stack([city, income, age])

pipeline = sk.Pipeline(
    train=sk.from_arrays(X[:2500], y[:2500], columns=["city", "income", "age"]),
    test=sk.from_arrays(X[2500:], y[2500:], columns=["city", "income", "age"]),
    preprocess=(sk.Impute("median"), sk.OneHot(("city",)), sk.Standardise()),
    centers=sk.Uniform(300),
    solver=sk.EigenPro(epochs=10),
)
result = sk.run(pipeline, "run")
print("stages", [stage["name"] for stage in result["stages"]])
print(f"accuracy {result['metrics']['test']['accuracy']:.3f}")
print("rows as they are stored go in:", sk.load_model("run/model.zarr").predict(X[:5]))
