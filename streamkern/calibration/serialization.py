"""Probabilities, thresholds and intervals as arrays of a saved model."""

from __future__ import annotations

from typing import Any

from streamkern.calibration.intervals import Intervals
from streamkern.calibration.probabilities import LabelCalibration, ProbabilityCalibration
from streamkern.data.targets import Encoding
from streamkern.errors import ModelFormatError
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
    kinds: dict[str, type[Calibration]] = {"classification": ProbabilityCalibration, "multilabel": LabelCalibration}
    if not isinstance(calibration, kinds.get(encoding.kind, Intervals)) or not isinstance(calibration.facts, dict):
        raise KeyError("answers")
    if not calibration.sound(encoding.outputs, functions):
        kind = "intervals" if isinstance(calibration, Intervals) else "probabilities"
        raise ModelFormatError(
            f"The numbers of the model's {kind} have another shape, or are not finite.",
            where="answers",
            expected=f"finite numbers of {encoding.outputs} output(s)",
            remedy="restore the model from a copy",
        )
    return calibration


def calibration_digests(calibration: Calibration) -> list[Any]:
    """Digests of all that answers depend on."""
    return [{name: sha256(array) for name, array in dump_calibration(calibration)[1].items()}]
