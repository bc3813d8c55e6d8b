"""The gate of a retraining: a condition on the scores of challenger and champion.

A condition is written as in Python: metrics, numbers, ``+ - * /``, one comparison (``< <= > >= == !=``) at a time,
``and``, ``or``, ``not`` and parentheses. ``accuracy`` is a metric of the challenger; ``champion.accuracy`` is the
champion's, and ``champion`` alone is the champion's value of the metric it is compared with.

Python's parser makes the tree. Only the node types listed here are accepted, and Python evaluates nothing.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import add, eq, ge, gt, le, lt, mul, ne, sub, truediv
from typing import Any, NamedTuple

from streamkern.errors import UsageError

CLASSIFICATION_GATE = "(accuracy >= champion - 0.002 or p_value >= 0.05) and n_test >= 100"
"""Default gate of a classifier: a challenger is refused if it is worse by more than noise."""

REGRESSION_GATE = "({} <= champion * 1.01 or p_value >= 0.05) and n_test >= 100"
"""Default gate of a regressor, for its error: a challenger is refused if it is worse by more than noise."""

MAX_EXPRESSION_LENGTH = 1000
"""Most characters of an expression."""

MAX_NESTING = 40
"""Deepest nesting of signs and of ``not``; that of parentheses is Python's."""

CHAMPION = "champion"

_MAX_NAMES_SHOWN = 40  # most names of metrics in an error

_NAME = re.compile(r"\w+(\.\w+)*")
_COMPARISONS: dict[type[ast.AST], tuple[str, Callable[[float, float], Any]]] = {
    ast.Lt: ("<", lt), ast.LtE: ("<=", le), ast.Gt: (">", gt), ast.GtE: (">=", ge), ast.Eq: ("==", eq),
    ast.NotEq: ("!=", ne),
}  # fmt: skip
_ARITHMETIC: dict[type[ast.AST], Callable[[float, float], Any]] = {
    ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv,
}  # fmt: skip


class Verdict(NamedTuple):
    """The verdict of a gate: whether the challenger may replace the champion, and every comparison with its numbers."""

    passed: bool
    reasons: tuple[str, ...]


class _UndefinedError(Exception):
    """A division by zero, or a comparison with NaN or infinity."""


Value = float | bool | None
"""None: unknown, because there is no champion to compare with."""


@dataclass(frozen=True)
class Gate:
    """A condition for a promotion in the language above; an invalid one is a UsageError that shows the position."""

    expression: str
    _tree: ast.expr = field(init=False, repr=False, compare=False)
    _names: dict[int, str] = field(init=False, repr=False, compare=False)  # by position

    def __post_init__(self) -> None:
        if len(self.expression) > MAX_EXPRESSION_LENGTH:
            raise UsageError(
                f"The gate has {len(self.expression)} characters.",
                where="gate",
                expected=f"at most {MAX_EXPRESSION_LENGTH}",
            )
        text = re.sub(r"\s", " ", self.expression).strip()
        object.__setattr__(self, "expression", text)
        if (foreign := re.search(r"[^ -~]", text)) is not None:  # Python reads digits and letters of other scripts, too
            raise self._unexpected(foreign.start(), foreign[0])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # Python warns of numbers that run into words, and of odd escapes
                tree = ast.parse(text, mode="eval").body
        except (SyntaxError, MemoryError, RecursionError) as error:
            at = (getattr(error, "offset", None) or 0) - 1
            if at < 0:
                raise self._wrong(len(text), "It ends where a value is expected.", "a metric, a number or (") from error
            if "never closed" in str(error):
                raise self._wrong(at, "This parenthesis is not closed.", ")") from error
            raise self._unexpected(at, re.findall(r"\w+|.", text[at:])[0]) from error
        object.__setattr__(self, "_tree", tree)
        object.__setattr__(self, "_names", {})
        self._require_truth(tree, True)

    def require(self, names: Collection[str], champions: Collection[str]) -> None:
        """Raise UsageError for a metric of unknown name; a name in ``.LABEL`` stands for any label."""
        for at, name in self._names.items():
            own = name.removeprefix(f"{CHAMPION}.")
            known = names if own == name else champions
            if own not in known and f"{own.partition('.')[0]}.LABEL" not in known:
                close = difflib.get_close_matches(own, known, n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise self._wrong(at, f"There is no metric {own!r}.{hint}", "one of " + _listed(known))

    def judge(self, challenger: Mapping[str, float | None], champion: Mapping[str, float | None] | None) -> Verdict:
        """Decide whether the challenger passes; a number that is not finite never does.

        Without a champion, comparisons with it are unknown, and the rest decides; an unknown result passes.
        """
        values = dict(challenger)
        for at, name in self._names.items():
            own = name.removeprefix(f"{CHAMPION}.")
            if own != name:
                values[name] = None if champion is None else champion.get(own)
            if own not in challenger or (own != name and champion is not None and own not in champion):
                raise self._wrong(at, f"There is no metric {own!r}.", "one of " + _listed(challenger))
        reasons: list[str] = []
        try:
            passed = self._value(self._tree, values, reasons) is not False
        except _UndefinedError as error:
            passed = False
            reasons.append(str(error))
        if champion is None:
            reasons.append("there is no champion yet")
        return Verdict(passed, tuple(reasons))

    def _require_truth(self, node: ast.expr, truth: bool, depth: int = 0) -> None:
        """Check that a part is a condition (``truth``) or a number, and collect its names."""
        is_truth = False
        match node:
            case _ if depth > MAX_NESTING:
                raise self._wrong(node.col_offset, "It is nested too deep.", f"at most {MAX_NESTING} levels")
            case ast.BoolOp(values=parts):
                is_truth = True
                for part in parts:
                    self._require_truth(part, True, depth)
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=part):
                is_truth = isinstance(node.op, ast.Not)
                self._require_truth(part, is_truth, depth + 1)
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _ARITHMETIC:
                self._require_truth(left, False, depth)
                self._require_truth(right, False, depth)
            case ast.Compare(left=left, ops=[op, *_], comparators=[right, *more]) if type(op) in _COMPARISONS:
                if more:
                    raise self._wrong(more[0].col_offset, "It is one comparison too many.", "and between the two")
                is_truth = True
                self._require_truth(left, False, depth)
                self._require_truth(right, False, depth)
                self._bind(node)
            case ast.Constant(value=True | False | None):
                what = f"{self._text(node)} is not a number."
                raise self._wrong(node.col_offset, what, "a comparison, such as accuracy >= champion")
            case ast.Constant(value=int() | float() as value):
                if not math.isfinite(float(str(value))):
                    raise self._wrong(node.col_offset, f"{self._text(node)} is not finite.", "a number below 1e308")
            case ast.Name() | ast.Attribute() if _NAME.fullmatch(name := ast.unparse(node)):
                self._names[node.col_offset] = name
            case _:
                raise self._unexpected(node.col_offset, self._text(node))
        if truth == is_truth:
            return
        at = len(self.expression[: node.col_offset].rstrip(" ("))  # of parentheses, which are not in the tree
        at += len(self.expression[at:]) - len(self.expression[at:].lstrip())
        if is_truth:
            raise self._wrong(at, f"{self._text(node)} is a comparison.", "a number or a metric")
        for place in self._within(node):
            if self._names[place] == CHAMPION:
                raise self._wrong(place, "champion is compared with nothing.", "accuracy >= champion")
        raise self._wrong(at, f"{self._text(node)} is a number.", "a comparison, such as accuracy >= champion")

    def _bind(self, comparison: ast.Compare) -> None:
        """Record the metric that ``champion`` alone means in a comparison."""
        within = self._within(comparison)
        metrics = {self._names[at] for at in within if self._names[at].partition(".")[0] != CHAMPION}
        for at in within:
            if self._names[at] == CHAMPION:
                if len(metrics) != 1:
                    what = "It is not clear which metric of the champion is meant."
                    raise self._wrong(at, what, "champion.NAME, as champion.accuracy")
                self._names[at] = f"{CHAMPION}.{next(iter(metrics))}"

    def _value(self, node: ast.expr, values: Mapping[str, float | None], reasons: list[str]) -> Value:
        match node:
            case ast.BoolOp(op=op, values=parts):
                # Kleene's logic; every part is evaluated, so that the reasons have every comparison.
                found, settles = [self._value(part, values, reasons) for part in parts], isinstance(op, ast.Or)
                return settles if settles in found else None if None in found else not settles
            case ast.UnaryOp(op=op, operand=part):
                x = self._value(part, values, reasons)
                return None if x is None else not x if isinstance(op, ast.Not) else -x
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self._value(left, values, reasons), self._value(right, values, reasons)
                if a is None or b is None:
                    return None
                if isinstance(op, ast.Div) and b == 0:
                    raise _UndefinedError(f"{self._text(node)}: division by zero")
                return float(_ARITHMETIC[type(op)](a, b))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                a, b = self._value(left, values, reasons), self._value(right, values, reasons)
                if a is None or b is None:
                    return None
                sign, compare = _COMPARISONS[type(op)]
                shown = f"{self._text(node)}: {a:.6g} {sign} {b:.6g}"
                if not (math.isfinite(a) and math.isfinite(b)):
                    raise _UndefinedError(f"{shown} is not a comparison of numbers")
                holds = bool(compare(a, b))
                reasons.append(f"{shown} is {str(holds).lower()}")
                return holds
            case ast.Constant(value=int() | float() as number):
                return float(number)
            case _:
                return values[self._names[node.col_offset]]

    def _within(self, node: ast.expr) -> list[int]:
        return [at for at in self._names if node.col_offset <= at < (node.end_col_offset or 0)]

    def _text(self, node: ast.expr) -> str:
        return " ".join(self.expression[node.col_offset : node.end_col_offset].split())

    def _unexpected(self, at: int, what: str) -> UsageError:
        expected = "metrics, numbers, < <= > >= == != + - * / ( ), and, or, not"
        return self._wrong(at, f"{what} is not expected here.", expected)

    def _wrong(self, at: int, what: str, expected: str) -> UsageError:
        return UsageError(
            f"The gate cannot be read: {what}",
            where=f"position {at + 1}\n    {self.expression}\n    {' ' * at}^",
            expected=expected,
        )


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered if len(ordered) <= _MAX_NAMES_SHOWN else [name for name in ordered if "." not in name])


def default_gate(task: str, loss: Any = None) -> Gate:
    """Return the default gate for ``classification`` or ``regression``, with a loss other than squares or without."""
    error = "mse" if loss is None else "poisson_deviance" if loss == "poisson" else "pinball_loss"
    return Gate(REGRESSION_GATE.format(error) if task == "regression" else CLASSIFICATION_GATE)
