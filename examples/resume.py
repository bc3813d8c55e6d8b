"""Interrupt a run and go on: the weights are those of a run that was never interrupted."""

from typing import Any

from sklearn.datasets import load_digits

import streamkern as sk

data = sk.from_arrays(*load_digits(return_X_y=True))
pipeline = sk.Pipeline(
    train=data.augment(sk.augment.GaussianNoise(1.0), copies=20),
    kernel=sk.Laplace(20),
    centers=sk.Uniform(300),
    solver=sk.EigenPro(epochs=4),
)


def interrupt(kind: str, fields: dict[str, Any]) -> None:
    """Stands for Ctrl-C, a batch system's time limit, or a machine that is taken away."""
    if kind == "step" and fields["pass_"] == 1:
        raise KeyboardInterrupt


whole = sk.run(pipeline, "whole")
try:
    sk.run(pipeline, "interrupted", listeners=(interrupt,))
except KeyboardInterrupt:
    print("interrupted in the second of four passes")
resumed = sk.run(pipeline, "interrupted")  # the same call; for a pipeline file: streamkern resume RUN
print("resumed:", resumed["status"])
print("equal:", resumed["weights_sha256"] == whole["weights_sha256"])
