"""Fashion-MNIST in "Toward Large Kernel Models" (Abedsoltan, Belkin & Pandit 2023): Table 2, and Figures 2, 4 and 6.

Centers are images, or means of clusters of them. Training rows are some of the images, all of them, or noisy copies in
any number, whatever the number of centers.

    streamkern run pipelines/papers/eigenpro3.py --set centers=1_000 selection=kmeans                     # Table 2
    streamkern run pipelines/papers/eigenpro3.py --set images=10_000                                      # Figure 2
    streamkern run pipelines/papers/eigenpro3.py --set images=5_000 centers=5_000 rows=100_000 noise=0.2  # Figure 4
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import streamkern as sk

IMAGES = Path(__file__).parents[1] / "fashion_mnist.py"
SELECTIONS = {"random": sk.Uniform, "kmeans": sk.KMeans}


def pipeline(
    images: int = 60_000,
    rows: int | None = None,
    centers: int = 1_000,
    selection: str = "random",
    noise: float = 0.0,
    bandwidth: float = 20.0,
    epochs: int = 5,
    projection: str = "auto",
    seed: int = 0,
    source: str | None = None,
) -> sk.Pipeline:
    """Settings; ``images=N centers=N`` is the kernel machine on its centers alone.

    Args:
        images: how many of the 60,000 training images are used, a uniform sample.
        rows: training rows in a pass; each image once by default, and more are copies.
        centers: number of centers.
        selection: random, for images that are trained on; or kmeans, for means of clusters of them.
        noise: standard deviation of the noise on training rows, in units of the pixels' range.
        bandwidth: bandwidth of the Laplace kernel, in the same units.
        epochs: passes.
        projection: auto, exact, inexact or delayed.
        seed: seed of sample, centers, noise and order.
        source: folder with the four files of the data set; looked for by default.
    """
    if selection not in SELECTIONS:
        raise sk.UsageError(f"The selection is {selection!r}.", where="selection", expected=" or ".join(SELECTIONS))
    settings = {"rows": 60_000, "centers": centers, "noise": noise, "bandwidth": bandwidth, "epochs": epochs}
    settings |= {"projection": projection, "seed": seed, "source": source or ""}
    all_of_them = sk.load_pipeline(IMAGES, {name: str(value) for name, value in settings.items()})
    return replace(
        all_of_them,
        train=all_of_them.train.sample(images, seed).augment(rows=rows or images),
        centers=SELECTIONS[selection](centers, seed=seed),
        name="eigenpro3",
    )
