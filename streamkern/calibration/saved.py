"""Probabilities, thresholds and intervals as arrays of a saved model."""

from __future__ import annotations

from typing import Any

from streamkern.calibration.intervals import Intervals
from streamkern.calibration.probabilities import LabelCalibration, ProbabilityCalibration
from streamkern.data.targets import Encoding
from streamkern.storage.artifact import sha256
from streamkern.storage.serialize import flatten, unflatten
from streamkern.types import Array

Answers = ProbabilityCalibration | LabelCalibration | Intervals

_NAME = "answers_"


def saved_answers(answers: Answers | None) -> tuple[Any, dict[str, Array]]:
    """Answers as JSON, and arrays by the names that they have in a model."""
    tree, arrays = flatten(answers)
    return tree, {_NAME + name: array for name, array in arrays.items()}


def loaded_answers(tree: Any, arrays: dict[str, Any], encoding: Encoding, functions: int) -> Answers | None:
    """Read the answers that ``saved_answers`` wrote, for a model of ``functions`` outputs; None if it wrote nothing.

    Raises:
        ModelFormatError: it is not a result of ``saved_answers``, or of other outputs than the encoding's.
    """
    if tree is None:
        return None
    own = {name.removeprefix(_NAME): array for name, array in arrays.items() if name.startswith(_NAME)}
    answers = unflatten(tree, own)
    wanted = {"classification": ProbabilityCalibration, "multilabel": LabelCalibration}.get(encoding.kind, Intervals)
    if not isinstance(answers, ProbabilityCalibration | LabelCalibration | Intervals) or type(answers) is not wanted:
        raise KeyError("answers")
    if not isinstance(answers.facts, dict):
        raise KeyError("facts")
    if isinstance(answers, Intervals):
        answers.require(encoding.outputs, functions)
    else:
        answers.require(encoding.outputs)
    return answers


def described_arrays(answers: Answers) -> list[Any]:
    """Digests of all that answers depend on."""
    return [{name: sha256(array) for name, array in saved_answers(answers)[1].items()}]
