"""Rows a second of each augmentation, beside Gaussian noise: blocks of 1,024 Fashion-MNIST-sized rows, one thread.

    python tests/benchmarks/augmentations.py

Each round times every augmentation once, in turn; the best of the rounds counts. A chain is applied as a stream would.
"""

from __future__ import annotations

import time

import numpy as np

import streamkern as sk
from streamkern.data.row_order import Assembly, RawRows
from streamkern.data.targets import Classes

ROWS, SHAPE, ROUNDS = 1024, (28, 28), 15


def negative(X, U):
    """A user's function that costs nearly nothing."""
    return np.negative(X, out=X)


CHAINS = {
    "none": (),
    "GaussianNoise": (sk.augment.GaussianNoise(0.1),),
    "HorizontalFlip": (sk.augment.HorizontalFlip(SHAPE),),
    "RandomCrop": (sk.augment.RandomCrop(SHAPE),),
    "RandomErasing": (sk.augment.RandomErasing(SHAPE),),
    "FeatureDropout": (sk.augment.FeatureDropout(0.1),),
    "MixUp": (sk.augment.MixUp(0.2),),
    "Custom": (sk.augment.Custom(negative),),
    "flip, crop, erase": (
        sk.augment.HorizontalFlip(SHAPE),
        sk.augment.RandomCrop(SHAPE),
        sk.augment.RandomErasing(SHAPE),
    ),
    "noise, flip, crop, mixup": (
        sk.augment.GaussianNoise(0.1),
        sk.augment.HorizontalFlip(SHAPE),
        sk.augment.RandomCrop(SHAPE),
        sk.augment.MixUp(0.2),
    ),
}


def main() -> None:
    random = np.random.default_rng(0)
    X, y = random.integers(0, 256, (20_000, 784), dtype=np.uint8), random.integers(0, 10, 20_000)
    data = sk.from_arrays(X, y).scale(1 / 255)
    assemblies = {name: Assembly(data.augment(*chain), Classes(np.arange(10))) for name, chain in CHAINS.items()}
    index = np.arange(ROWS)
    best = dict.fromkeys(CHAINS, np.inf)
    for number in range(ROUNDS):
        ids = random.permutation(len(X))[:ROWS]
        raw = RawRows(X[ids], y[ids], ids, np.full(ROWS, number))
        for name, assembly in assemblies.items():
            start = time.perf_counter()
            assembly.build(raw, index, (0,), "here")
            if number:  # the first round compiles, and reads the bank
                best[name] = min(best[name], time.perf_counter() - start)
    noise = best["GaussianNoise"]
    print(f"{'augmentation':<28}{'rows/s':>12}{'of noise':>10}")
    for name, seconds in best.items():
        print(f"{name:<28}{ROWS / seconds:>12,.0f}{noise / seconds:>10.2f}")


if __name__ == "__main__":
    main()
