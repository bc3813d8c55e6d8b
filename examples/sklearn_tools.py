"""scikit-learn's tools around a kernel machine: Pipeline, GridSearchCV, a data frame."""

from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import streamkern as sk

X, X_test, y, y_test = train_test_split(*load_iris(return_X_y=True), random_state=0)

search = GridSearchCV(
    make_pipeline(StandardScaler(), sk.KernelClassifier(centers=60, solver=sk.EigenPro(epochs=20))),
    {"kernelclassifier__kernel": [sk.Laplace(1.0), sk.Laplace(4.0), sk.Gaussian(2.0)]},
    cv=3,
)
search.fit(X, y)
print("best", search.best_params_["kernelclassifier__kernel"])
print(f"accuracy {search.score(X_test, y_test):.3f}")
