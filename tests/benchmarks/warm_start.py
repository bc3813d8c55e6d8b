"""Warm start against cold start on Fashion-MNIST grown by 5%: ``python tests/benchmarks/warm_start.py [CENTERS ...]``.

A champion is trained on 57,000 rows. On 60,000 rows, training begins at 0 with new centers, or goes on from the
champion for a third of the rows. Accuracy and squared error are those of the 10,000 test rows.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

import numpy as np

import streamkern as sk
from streamkern.pipeline.warm import warm

FOLDER = Path("/usr/share/datasets/fashion-mnist")
BEFORE, NOW = 57_000, 60_000


def read(name: str, n: int, offset: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress((FOLDER / name).read_bytes()), np.uint8)[offset:].reshape(n, -1)


def main() -> None:
    X, y = read("train-images-idx3-ubyte.gz", NOW, 16), read("train-labels-idx1-ubyte.gz", NOW, 8)[:, 0]
    T, t = read("t10k-images-idx3-ubyte.gz", 10_000, 16), read("t10k-labels-idx1-ubyte.gz", 10_000, 8)[:, 0]
    test = sk.from_arrays(T, t).scale(1 / 255)

    def pipeline(n: int, centers: int, epochs: int) -> sk.Pipeline:
        return sk.Pipeline(
            train=sk.from_arrays(X[:n], y[:n]).scale(1 / 255), test=test, kernel=sk.Laplace(20.0),
            centers=sk.Uniform(centers), solver=sk.EigenPro(epochs=epochs),
        )  # fmt: skip

    def trained(what: sk.Pipeline) -> tuple[sk.KernelMachine, str]:
        with tempfile.TemporaryDirectory() as folder:
            result = sk.run(what, folder)
            model = sk.load_model(f"{folder}/model.zarr")
        scores, rows = result["metrics"]["test"], result["history"][-1]["rows"]
        return model, f"{scores['accuracy']:.4f} {scores['mse']:.5f} ({rows:,} rows)"

    for centers in [int(word) for word in sys.argv[1:]] or [1000, 3000]:
        for epochs in (1, 3):
            champion, before = trained(pipeline(BEFORE, centers, epochs))
            now = pipeline(NOW, centers, epochs)
            begun, why = warm(now, champion)
            assert why is None, why
            print(f"{centers} centers  champion {before}  cold {trained(now)[1]}  warm {trained(begun)[1]}", flush=True)


if __name__ == "__main__":
    main()
