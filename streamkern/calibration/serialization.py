"""Probabilities, thresholds and intervals as arrays of a saved model."""

from __future__ import annotations

from typing import Any

from streamkern.calibration.intervals import Intervals
from streamkern.calibration.probabilities import LabelCalibration, ProbabilityCalibration
from streamkern.data.targets import Encoding
from streamkern.storage.artifact import sha256
from streamkern.storage.serialize import flatten, unflatten
from streamkern.types import Array

Calibration = ProbabilityCalibration | LabelCalibration | Intervals

_PREFIX = "answers_"


def dump_calibration(calibration: Calibration | None) -> tuple[Any, dict[str, Array]]:
    """Answers as JSON, and arrays by the names that they have in a model."""
    tree, arrays = flatten(calibration)
    return tree, {_PREFIX + name: array for name, array in arrays.items()}


def load_calibration(tree: Any, arrays: dict[str, Any], encoding: Encoding, functions: int) -> Calibration | None:
    """Read what ``dump_calibration`` wrote, for a model of ``functions`` outputs; None if it wrote nothing."""
    if tree is None:
        return None
    own = {name.removeprefix(_PREFIX): array for name, array in arrays.items() if name.startswith(_PREFIX)}
    calibration = unflatten(tree, own)
    wanted = {"classification": ProbabilityCalibration, "multilabel": LabelCalibration}.get(encoding.kind, Intervals)
    if (
        not isinstance(calibration, ProbabilityCalibration | LabelCalibration | Intervals)
        or type(calibration) is not wanted
    ):
        raise KeyError("answers")
    if not isinstance(calibration.facts, dict):
        raise KeyError("facts")
    if isinstance(calibration, Intervals):
        calibration.require(encoding.outputs, functions)
    else:
        calibration.require(encoding.outputs)
    return calibration


def calibration_digests(calibration: Calibration) -> list[Any]:
    """Digests of all that answers depend on."""
    return [{name: sha256(array) for name, array in dump_calibration(calibration)[1].items()}]
