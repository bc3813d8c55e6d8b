"""Warm start against cold start on Fashion-MNIST grown by 5%.

    python tests/benchmarks/warm_start.py [--centers 1000 3000] [--epochs 1 3] [--seeds 5]

For each seed a champion is trained on 57,000 rows. On 60,000 rows, training begins at 0 with new centers, begins at 0
with the champion's centers, or goes on from the champion, with its centers, for a third of the rows. Accuracy and
squared error are those of the 10,000 test rows: means over the seeds, and of the differences from the warm start the
standard error too. What new centers change is their luck; the champion's centers for both show what the start changes.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from pathlib import Path

import numpy as np
from results import add_results, add_run

import streamkern as sk
from streamkern.registry.warm_start import with_warm_start

FOLDER = Path("/usr/share/datasets/fashion-mnist")
BEFORE, NOW = 57_000, 60_000


def read(name: str, n: int, offset: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress((FOLDER / name).read_bytes()), np.uint8)[offset:].reshape(n, -1)


def trained(what: sk.Pipeline) -> tuple[sk.KernelMachine, tuple[float, float], int]:
    """The model; accuracy and squared error; rows seen."""
    with tempfile.TemporaryDirectory() as folder:
        result = sk.run(what, folder)
        model = sk.load_model(f"{folder}/model.zarr")
    scores = result["metrics"]["test"]
    return model, (scores["accuracy"], scores["mse"]), result["history"][-1]["rows"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--centers", type=int, nargs="+", default=[1000, 3000])
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--seeds", type=int, default=5)
    add_results(parser)
    args = parser.parse_args()
    measured = []
    X, y = read("train-images-idx3-ubyte.gz", NOW, 16), read("train-labels-idx1-ubyte.gz", NOW, 8)[:, 0]
    T, t = read("t10k-images-idx3-ubyte.gz", 10_000, 16), read("t10k-labels-idx1-ubyte.gz", 10_000, 8)[:, 0]
    test = sk.from_arrays(T, t).scale(1 / 255)

    def pipeline(n: int, centers: int | sk.Given, epochs: int, seed: int) -> sk.Pipeline:
        return sk.Pipeline(
            train=sk.from_arrays(X[:n], y[:n]).scale(1 / 255), test=test, kernel=sk.Laplace(20.0), seed=seed,
            centers=sk.Uniform(centers, seed) if isinstance(centers, int) else centers,
            solver=sk.EigenPro(epochs=epochs),
        )  # fmt: skip

    names = ("champion", "cold, new centers", "cold, its centers", "warm")
    for centers in args.centers:
        for epochs in args.epochs:
            found, rows = np.zeros((args.seeds, len(names), 2)), [0] * len(names)
            for seed in range(args.seeds):
                champion, found[seed, 0], rows[0] = trained(pipeline(BEFORE, centers, epochs, seed))
                now = pipeline(NOW, centers, epochs, args.seeds + seed)
                same = pipeline(NOW, sk.Given(np.asarray(champion.Z)), epochs, args.seeds + seed)
                begun, why = with_warm_start(now, champion)
                assert why is None, why
                for i, what in enumerate((now, same, begun), 1):
                    _, found[seed, i], rows[i] = trained(what)
            print(f"{centers} centers, {epochs} passes, {args.seeds} seeds")
            for i, name in enumerate(names):
                accuracy, mse = found[:, i].mean(axis=0)
                differs, line = "", f"  {name:<18} {rows[i]:>7,} rows  accuracy {accuracy:.4f}  mse {mse:.5f}"
                if i in (1, 2) and args.seeds > 1:
                    away = found[:, 3] - found[:, i]
                    (a, m), (ea, em) = away.mean(axis=0), away.std(axis=0, ddof=1) / np.sqrt(args.seeds)
                    differs = f"{a:+.4f} ± {ea:.4f}, {m:+.5f} ± {em:.5f}"
                    line += f"  warm differs by {differs}"
                print(line, flush=True)
                title = f"{epochs} passes: champion, on {BEFORE:,} rows" if i == 0 else name
                seen = {"table": "starts", "": title, "rows seen": rows[i], "accuracy": round(accuracy, 4)}
                measured.append(seen | {"squared error": round(mse, 5), "warm start differs by": differs})
    add_run(args.results, measured)


if __name__ == "__main__":
    main()
