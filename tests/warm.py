"""What a process has that has fitted a model: imports, and compiled code read from the disk. Its forks have it too."""

from __future__ import annotations

import numpy as np

import streamkern as sk
from streamkern.costs import machine_speed as calibrate
from tests.starter import TIMED

calibrate.MEASUREMENT_SECONDS = TIMED

_X = np.arange(80.0, dtype=np.float32).reshape(40, 2)
sk.KernelClassifier(sk.Laplace("median"), centers=5, solver=sk.EigenPro(), threads=1).fit(
    _X, np.arange(40) % 2
).predict(_X)
