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
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import add, eq, ge, gt, le, lt, mul, ne, sub, truediv
from typing import Any, NamedTuple

from streamkern.errors import UsageError

CLASSIFICATION_GATE = "(accuracy >= champion - 0.002 or p_value >= 0.05) and n_test >= 100"
"""Default gate of a classifier: a challenger is refused if it is worse by more than noise."""

REGRESSION_GATE = "(mse <= champion * 1.01 or p_value >= 0.05) and n_test >= 100"
"""Default gate of a regressor: a challenger is refused if it is worse by more than noise."""

MAX_EXPRESSION_LENGTH = 1000
"""Most characters of an expression."""

MAX_NESTING = 40
"""Deepest nesting of parentheses and signs."""

CHAMPION = "champion"

_MAX_NAMES_SHOWN = 40  # most names of metrics in an error

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])|(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)"
    r"|(?P<sign><=|>=|==|!=|[<>+\-*/()]))",
    re.ASCII,
)
_SIGNS: dict[type[ast.AST], tuple[str, Callable[[float, float], Any]]] = {
    ast.Lt: ("<", lt), ast.LtE: ("<=", le), ast.Gt: (">", gt), ast.GtE: (">=", ge), ast.Eq: ("==", eq),
    ast.NotEq: ("!=", ne), ast.Add: ("+", add), ast.Sub: ("-", sub), ast.Mult: ("*", mul), ast.Div: ("/", truediv),
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
        object.__setattr__(self, "_names", {})
        self._require_order()
        # Python accepts neither newlines nor leading spaces; replacing them keeps the positions for errors.
        text = re.sub(r"\s", " ", self.expression)
        text = f"({text[1:]})" if text.startswith(" ") else text
        try:
            tree = ast.parse(text, mode="eval").body
        except (SyntaxError, MemoryError, RecursionError) as error:
            at = max((getattr(error, "offset", None) or 1) - 1, 0)
            raise self._wrong(at, "this is not a condition.", "a comparison, such as accuracy >= champion") from error
        object.__setattr__(self, "_tree", tree)
        self._check(tree, True)

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

    def _require_order(self) -> None:
        """Check that values and operators alternate, for clearer errors than Python's; and collect names."""
        at, end, depth, value = 0, len(self.expression.rstrip()), 0, True
        while at < end:
            found = _TOKEN.match(self.expression, at)
            if found is None:
                at = len(self.expression) - len(self.expression[at:].lstrip())
                expected = "names, numbers and < <= > >= + - * / ( )"
                raise self._wrong(at, f"{self.expression[at]!r} means nothing here.", expected)
            kind = str(found.lastgroup)
            text, start, at = found[kind], found.start(kind), found.end()
            operand = kind != "sign" and text not in ("and", "or", "not")
            depth += (text == "(") - (text == ")")
            if value and not (operand or text in ("(", "not", "-")):
                raise self._wrong(start, f"A value is expected before {text!r}.", "a metric, a number or (")
            if depth < 0 or (not value and (operand or text in ("(", "not"))):
                raise self._wrong(start, f"{text!r} is not expected here.", "the end, and, or")
            if depth > MAX_NESTING:
                raise self._wrong(start, "It is nested too deep.", f"at most {MAX_NESTING} levels")
            if operand and kind == "name":
                self._names[start] = text
            value = not operand and text != ")"
        if value:
            raise self._wrong(end, "The rule ends where a value is expected.", "a metric, a number or (")
        if depth:
            raise self._wrong(end, "A parenthesis is not closed.", ")")

    def _check(self, node: ast.expr, truth: bool, signs: int = 0) -> None:
        """Raise UsageError for other syntax, for numbers in place of conditions, and the reverse."""
        if signs > MAX_NESTING:
            raise self._wrong(node.col_offset, "It is nested too deep.", f"at most {MAX_NESTING} levels")
        match node:
            case ast.BoolOp(values=parts):
                for part in parts:
                    self._check(part, True, signs)
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=part):
                self._check(part, isinstance(node.op, ast.Not), signs + 1)
            case ast.BinOp(op=sign, left=left, right=right) if type(sign) in _SIGNS:
                self._check(left, False, signs)
                self._check(right, False, signs)
            case ast.Compare(left=left, comparators=[right, *more]):
                if more:
                    at = right.end_col_offset or 0
                    at += re.search(r"[<>=!]", self.expression[at:]).start()  # type: ignore[union-attr]
                    raise self._wrong(at, f"{self.expression[at]!r} is not expected here.", "the end, and, or")
                self._check(left, False, signs)
                self._check(right, False, signs)
                self._bind(node)
            case ast.Constant(value=True | False | None):
                what = f"{self._text(node)} is not a number."
                raise self._wrong(node.col_offset, what, "a comparison, such as accuracy >= champion")
            case ast.Constant() if not math.isfinite(float(self._text(node))):
                raise self._wrong(node.col_offset, f"{self._text(node)} is not finite.", "a number below 1e308")
            case ast.Constant() | ast.Name() | ast.Attribute():
                pass
            case _:
                raise self._wrong(node.col_offset, f"{self._text(node)} means nothing here.", "and, or, not")
        is_truth = isinstance(node, ast.BoolOp | ast.Compare) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        )
        if truth == is_truth:
            return
        # Include parentheses, which are not in the tree.
        at = len(self.expression[: node.col_offset].rstrip(" ("))
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
            case ast.Compare(left=left, ops=[op], comparators=[right]) | ast.BinOp(left=left, op=op, right=right):
                a, b = self._value(left, values, reasons), self._value(right, values, reasons)
                sign, combine = _SIGNS[type(op)]
                if a is None or b is None:
                    return None
                if isinstance(node, ast.BinOp):
                    if sign == "/" and b == 0:
                        raise _UndefinedError(f"{self._text(node)}: division by zero")
                    return float(combine(a, b))
                shown = f"{self._text(node)}: {a:.6g} {sign} {b:.6g}"
                if not (math.isfinite(a) and math.isfinite(b)):
                    raise _UndefinedError(f"{shown} is not a comparison of numbers")
                holds = bool(combine(a, b))
                reasons.append(f"{shown} is {str(holds).lower()}")
                return holds
            case ast.Constant():
                return float(self._text(node))
            case _:
                return values[self._names[node.col_offset]]

    def _within(self, node: ast.expr) -> list[int]:
        return [at for at in self._names if node.col_offset <= at < (node.end_col_offset or 0)]

    def _text(self, node: ast.expr) -> str:
        return " ".join(self.expression[node.col_offset : node.end_col_offset].split())

    def _wrong(self, at: int, what: str, expected: str) -> UsageError:
        return UsageError(
            f"The gate cannot be read: {what}",
            where=f"position {at + 1}\n    {self.expression}\n    {' ' * at}^",
            expected=expected,
        )


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered if len(ordered) <= _MAX_NAMES_SHOWN else [name for name in ordered if "." not in name])


def default_gate(task: str) -> Gate:
    """Return the default gate for ``classification`` or ``regression``."""
    return Gate(REGRESSION_GATE if task == "regression" else CLASSIFICATION_GATE)
