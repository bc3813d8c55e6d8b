"""What a process has that has fitted a model: imports, and compiled code read from the disk. Its forks have it too."""

from __future__ import annotations

import numpy as np

import streamkern as sk
from streamkern.pipeline import calibrate

calibrate.TIMED = 0.02  # seconds of a measurement: no test depends on what it finds, and a plan takes thirty of them

_X = np.arange(80.0, dtype=np.float32).reshape(40, 2)
sk.KernelClassifier("laplace", centers=5, solver=sk.EigenPro(), threads=1).fit(_X, np.arange(40) % 2).predict(_X)
