"""Random Fourier features instead of centers: nothing of the data is kept in the model but M weights an output."""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import streamkern as sk

X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)
train = sk.from_arrays(X, y).augment(sk.augment.GaussianNoise(1.0), copies=10)

for M in 100, 1000, 2000:
    pipeline = sk.Pipeline(
        train=train,
        test=sk.from_arrays(X_test, y_test),
        features=sk.RandomFourier(sk.Gaussian(20.0), M=M),
        solver=sk.EigenPro1(epochs=3),
    )
    result = sk.run(pipeline, "run")
    print(f"M = {M:4}: accuracy {result['metrics']['test']['accuracy']:.3f}")
