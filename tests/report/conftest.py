"""Runs of three kinds, made once: digits, a few Fashion-MNIST images, and a regression set of 18 columns."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import streamkern as sk

FASHION = Path("/usr/share/datasets/fashion-mnist")


def digits(epochs: int = 3) -> sk.Pipeline:
    X, y = load_digits(return_X_y=True)
    train, test = sk.from_arrays(X.astype("uint8"), y).scale(1 / 16).split(0.2)
    return sk.Pipeline(
        train.augment(sk.augment.GaussianNoise(0.05), copies=2),
        sk.Laplace(2.0),
        sk.Uniform(200),
        sk.EigenPro(epochs=epochs),
        test=test,
        name="digits",
    )


def fashion() -> sk.Pipeline:
    def read(name: str, skip: int, n: int) -> np.ndarray:
        with gzip.open(FASHION / name) as file:
            return np.frombuffer(file.read(skip + n)[skip:], dtype=np.uint8)

    n = 1500
    X = read("train-images-idx3-ubyte.gz", 16, n * 784).reshape(n, 784)
    words = np.array(["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot"])
    y = words[read("train-labels-idx1-ubyte.gz", 8, n)]
    train, test = sk.from_arrays(X, y).scale(1 / 255).split(0.2)
    crops = sk.augment.RandomCrop((28, 28), padding=2)
    return sk.Pipeline(
        train.augment(crops, sk.augment.GaussianNoise(0.1)),
        sk.Laplace(20.0),
        sk.Uniform(300),
        sk.EigenPro(epochs=1),
        test=test,
        name="fashion",
    )


def columns() -> sk.Pipeline:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 18))
    y = 40 + 10 * (np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(2000))
    train, test = sk.from_arrays(X, y).split(0.2, seed=1)
    train, validation = train.split(0.2, seed=2)
    return sk.Pipeline(
        train, sk.Laplace(6.0), sk.Uniform(150), sk.EigenPro(epochs=4), test=test, validation=validation,
        task="regression", scaling="standard", name="columns",
    )  # fmt: skip


def probabilities() -> sk.Pipeline:
    """Two classes that nobody can tell apart for sure."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((3000, 4))
    y = np.where(rng.random(3000) < 1 / (1 + np.exp(1.5 - 2 * X[:, 0] - X[:, 1] ** 2)), "yes", "no")
    train, test = sk.from_arrays(X[:1500], y[:1500]), sk.from_arrays(X[1500:], y[1500:])
    return sk.Pipeline(train, sk.Gaussian(2.0), sk.Uniform(100), sk.Direct(ridge=1e-3), test=test, name="answers")


def labels() -> sk.Pipeline:
    """Three labels a row."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((1500, 3))
    Y = (X + rng.standard_normal((1500, 3)) > [0, 1, 2]).astype(int)
    train, test = sk.from_arrays(X[:750], Y[:750]), sk.from_arrays(X[750:], Y[750:])
    return sk.Pipeline(train, sk.Gaussian(2.0), sk.Uniform(60), sk.Direct(ridge=1e-3), test=test, name="labels")


def intervals() -> sk.Pipeline:
    """Values whose errors depend on a feature."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((3000, 3))
    y = 10 * (np.sin(X[:, 0]) + (0.1 + np.abs(X[:, 1])) * rng.standard_normal(3000))
    train, test = sk.from_arrays(X[:1500], y[:1500]), sk.from_arrays(X[1500:], y[1500:])
    return sk.Pipeline(
        train, sk.Gaussian(2.0), sk.Uniform(100), sk.Direct(ridge=1e-3), test=test, task="regression", name="intervals"
    )


@pytest.fixture(scope="session")
def answering(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs with probabilities, with several labels a row, and with intervals."""
    folder = tmp_path_factory.mktemp("answering")
    for pipeline in (probabilities(), labels(), intervals()):
        sk.run(pipeline, folder / str(pipeline.name), memory="4GiB")
    return {name: folder / name for name in ("answers", "labels", "intervals")}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    made = {"digits": digits(), "digits-short": digits(epochs=1), "columns": columns()}
    if FASHION.exists():
        made["fashion"] = fashion()
    for name, pipeline in made.items():
        sk.run(pipeline, folder / name, memory="4GiB")
    return {name: folder / name for name in made}


@pytest.fixture(params=["digits", "fashion", "columns"])
def finished(runs: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    if request.param not in runs:
        pytest.skip("the Debian package dataset-fashion-mnist is not installed")
    return runs[request.param]
