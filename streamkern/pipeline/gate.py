"""The gate of a retraining: a condition on the challenger's scores and the champion's, in a small language of its own.

    expression  = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation    = ["not"] comparison
    comparison  = sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
    sum         = product {("+" | "-") product}
    product     = factor {("*" | "/") factor}
    factor      = "-" factor | number | name | "(" expression ")"

A name is a metric of the challenger, such as ``accuracy``; ``champion.accuracy`` is the champion's, and ``champion``
alone is the champion's value of the one metric that it is compared with. Nothing is handed to Python's own parser.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import add, eq, ge, gt, le, lt, mul, ne, sub, truediv
from typing import NamedTuple

from streamkern.errors import UsageError

CLASSIFICATION = "accuracy >= champion - 0.002 and n_test >= 100"
"""The gate of a classifier where none is given."""

REGRESSION = "mse <= champion * 1.01 and n_test >= 100"
"""The gate of a regressor where none is given."""

LONGEST = 1000
"""Characters of an expression, at most."""

DEEPEST = 40
"""Parentheses and signs within one another, at most."""

CHAMPION = "champion"

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)"
    r"|(?P<sign><=|>=|==|!=|[<>+\-*/()]))",
    re.ASCII,
)
_COMPARE: dict[str, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne}
_SUMS: dict[str, Callable[[float, float], float]] = {"+": add, "-": sub}
_PRODUCTS: dict[str, Callable[[float, float], float]] = {"*": mul, "/": truediv}
_WORDS = ("and", "or", "not")


class Verdict(NamedTuple):
    """What a gate says.

    Attributes:
        passed: whether the challenger may take the champion's place.
        reasons: every comparison with its numbers, and how it came out.
    """

    passed: bool
    reasons: tuple[str, ...]


class _Undefined(Exception):
    """A number that is none."""


Value = float | bool | None
"""None: unknown, because it is a comparison with a champion that there is none of."""


@dataclass(frozen=True)
class _Node:
    """An expression: its text, whether it is true or false rather than a number, and its metrics by name."""

    text: str
    truth: bool
    at: int
    value: Callable[[Mapping[str, float | None], list[str]], Value]
    names: tuple[str, ...] = ()
    bare: tuple[_Bare, ...] = ()


@dataclass(eq=False)
class _Bare:
    """``champion`` alone, and what it is bound to once the comparison around it is read."""

    at: int
    metric: str | None = None


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


@dataclass(frozen=True)
class Gate:
    """A condition that a challenger has to meet.

    Args:
        expression: in the language above.

    Raises:
        UsageError: it is not a sentence of that language; the message shows the position.
    """

    expression: str
    _root: _Node = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_root", _Parser(self.expression).parse())

    def judge(self, challenger: Mapping[str, float | None], champion: Mapping[str, float | None] | None) -> Verdict:
        """Whether the challenger passes.

        Without a champion a comparison with it says neither yes nor no, and the rest of the expression decides; an
        expression that is left undecided passes. A number that is not finite never passes.

        Args:
            challenger: its metrics by name; None for what cannot be known without a champion.
            champion: the champion's, or None where there is none.

        Raises:
            UsageError: the expression names a metric that there is not.
        """
        values = dict(challenger)
        for name in self._root.names:
            own = name.removeprefix(f"{CHAMPION}.")
            if own != name:
                values[name] = None if champion is None else champion.get(own)
            if own not in challenger or (own != name and champion is not None and own not in champion):
                at = self.expression.find(name)
                raise _wrong(
                    self.expression,
                    max(at, 0),
                    f"There is no metric {own!r}.",
                    "one of " + ", ".join(sorted(challenger)),
                )
        reasons: list[str] = []
        try:
            passed = self._root.value(values, reasons) is not False
        except _Undefined as error:
            passed = False
            reasons.append(str(error))
        if champion is None:
            reasons.append("there is no champion yet")
        return Verdict(passed, tuple(reasons))


def _wrong(expression: str, at: int, what: str, expected: str) -> UsageError:
    return UsageError(
        f"The gate cannot be read: {what}",
        where=f"position {at + 1}\n    {expression}\n    {' ' * at}^",
        expected=expected,
    )


class _Parser:
    """Recursive descent, one token ahead."""

    def __init__(self, expression: str) -> None:
        if len(expression) > LONGEST:
            raise UsageError(f"The gate has {len(expression)} characters.", where="gate", expected=f"at most {LONGEST}")
        self.expression = expression
        self.tokens = list(self._split())
        self.next = 0
        self.depth = 0

    def _split(self) -> Iterator[_Token]:
        at, end = 0, len(self.expression.rstrip())
        while at < end:
            found = _TOKEN.match(self.expression, at)
            if found is None:
                at += len(self.expression[at:]) - len(self.expression[at:].lstrip())
                raise self.wrong(
                    at, f"{self.expression[at]!r} means nothing here.", "names, numbers and < <= > >= + - * / ( )"
                )
            kind = str(found.lastgroup)
            yield _Token(kind, found[kind], found.start(kind))
            at = found.end()
        yield _Token("end", "", end)

    def wrong(self, at: int, what: str, expected: str) -> UsageError:
        return _wrong(self.expression, at, what, expected)

    def parse(self) -> _Node:
        node = self.truth(self.either())
        if self.token.kind != "end":
            raise self.wrong(self.token.at, f"{self.token.text!r} is one too many.", "the end, and, or")
        return node

    @property
    def token(self) -> _Token:
        return self.tokens[self.next]

    def take(self, *texts: str) -> _Token | None:
        token = self.token
        if token.kind in ("sign", "name") and token.text in texts:
            self.next += 1
            return token
        return None

    def truth(self, node: _Node) -> _Node:
        if node.bare:
            raise self.wrong(node.bare[0].at, "champion is compared with nothing.", "accuracy >= champion")
        if not node.truth:
            raise self.wrong(node.at, f"{node.text} is a number.", "a comparison, such as accuracy >= champion")
        return node

    def number(self, node: _Node) -> _Node:
        if node.truth:
            raise self.wrong(node.at, f"{node.text} is a comparison.", "a number or a metric")
        return node

    def either(self) -> _Node:
        return self._joined("or", self.both, True)

    def both(self) -> _Node:
        return self._joined("and", self.negation, False)

    def _joined(self, word: str, inner: Callable[[], _Node], settles: bool) -> _Node:
        node = inner()
        while self.take(word):
            left, right = self.truth(node), self.truth(inner())

            def value(
                values: Mapping[str, float | None], reasons: list[str], a: _Node = left, b: _Node = right
            ) -> Value:
                # Kleene's logic; both sides are looked at, so that the reasons name every comparison.
                found = [a.value(values, reasons), b.value(values, reasons)]
                return settles if settles in found else None if None in found else not settles

            text = f"{left.text} {word} {right.text}"
            node = _Node(text, True, left.at, value, left.names + right.names)
        return node

    def negation(self) -> _Node:
        token = self.take("not")
        if token is None:
            return self.comparison()
        inner = self.truth(self.comparison())

        def value(values: Mapping[str, float | None], reasons: list[str]) -> Value:
            found = inner.value(values, reasons)
            return None if found is None else not found

        return _Node(f"not {inner.text}", True, token.at, value, inner.names)

    def comparison(self) -> _Node:
        left = self.sum()
        token = self.take(*_COMPARE)
        if token is None:
            return left
        right = self.number(self.sum())
        self.number(left)
        metrics = sorted({name for name in left.names + right.names if not name.startswith(f"{CHAMPION}.")})
        bare = left.bare + right.bare
        for each in bare:
            if len(metrics) != 1:
                raise self.wrong(
                    each.at,
                    "It is not clear which metric of the champion is meant.",
                    "champion.NAME, as champion.accuracy",
                )
            each.metric = metrics[0]
        bound = tuple(f"{CHAMPION}.{each.metric}" for each in bare)
        text, compare = f"{left.text} {token.text} {right.text}", _COMPARE[token.text]

        def value(values: Mapping[str, float | None], reasons: list[str]) -> Value:
            a, b = left.value(values, reasons), right.value(values, reasons)
            if a is None or b is None:
                return None
            if not (math.isfinite(a) and math.isfinite(b)):
                raise _Undefined(f"{text}: {a:.6g} {token.text} {b:.6g} is not a comparison of numbers")
            held = compare(a, b)
            reasons.append(f"{text}: {a:.6g} {token.text} {b:.6g} is {str(held).lower()}")
            return held

        return _Node(text, True, left.at, value, left.names + right.names + bound)

    def sum(self) -> _Node:
        return self._chain(self.product, _SUMS)

    def product(self) -> _Node:
        return self._chain(self.factor, _PRODUCTS)

    def _chain(self, inner: Callable[[], _Node], signs: dict[str, Callable[[float, float], float]]) -> _Node:
        node = inner()
        while token := self.take(*signs):
            left, right, combine = self.number(node), self.number(inner()), signs[token.text]

            def value(
                values: Mapping[str, float | None],
                reasons: list[str],
                a: _Node = left,
                b: _Node = right,
                combine: Callable[[float, float], float] = combine,
            ) -> Value:
                x, y = a.value(values, reasons), b.value(values, reasons)
                try:
                    return None if x is None or y is None else combine(x, y)
                except ZeroDivisionError as error:
                    raise _Undefined(f"{a.text} / {b.text}: division by zero") from error

            text = f"{left.text} {token.text} {right.text}"
            node = _Node(text, False, left.at, value, left.names + right.names, left.bare + right.bare)
        return node

    def factor(self) -> _Node:
        self.depth += 1
        try:
            return self._factor()
        finally:
            self.depth -= 1

    def _factor(self) -> _Node:
        token = self.token
        if self.depth > DEEPEST:
            raise self.wrong(token.at, "It is nested too deep.", f"at most {DEEPEST} levels")
        if self.take("-"):
            inner = self.number(self.factor())

            def negative(values: Mapping[str, float | None], reasons: list[str]) -> Value:
                found = inner.value(values, reasons)
                return None if found is None else -found

            return _Node(f"-{inner.text}", False, token.at, negative, inner.names, inner.bare)
        if self.take("("):
            inner = self.either()
            if not self.take(")"):
                raise self.wrong(self.token.at, "A parenthesis is not closed.", ")")
            return _Node(f"({inner.text})", inner.truth, token.at, inner.value, inner.names, inner.bare)
        if token.kind == "number":
            self.next += 1
            number = float(token.text)
            if not math.isfinite(number):
                raise self.wrong(token.at, f"{token.text} is not a finite number.", "a number below 1e308")
            return _Node(token.text, False, token.at, lambda values, reasons: number)
        if token.kind == "name" and token.text not in _WORDS:
            self.next += 1
            return self._name(token)
        found = "the end" if token.kind == "end" else repr(token.text)
        raise self.wrong(token.at, f"{found} comes where a value should.", "a metric, a number or (")

    def _name(self, token: _Token) -> _Node:
        if token.text == CHAMPION:
            bare = _Bare(token.at)
            return _Node(
                CHAMPION, False, token.at, lambda values, reasons: values[f"{CHAMPION}.{bare.metric}"], (), (bare,)
            )
        return _Node(token.text, False, token.at, lambda values, reasons: values[token.text], (token.text,))


def default_gate(task: str) -> Gate:
    """The gate of a ``classification`` or ``regression`` where none is given."""
    return Gate(REGRESSION if task == "regression" else CLASSIFICATION)
