"""Where constants stand: those that decide a model, a calibration, a choice or a projection are in one file."""

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streamkern import defaults

PACKAGE = Path(__file__).parent.parent / "streamkern"

DECIDING = {
    *("calibration", "centers.py", "costs", "data", "evaluation", "fitting", "kernels", "models", "partition"),
    *("precondition", "preprocessing", "registry", "runs", "selection", "sklearn", "solvers", "sweep.py", "updates"),
}
"""Rooms whose numbers decide results. The others compute, store, exchange and show what these decide."""

TECHNICAL = re.compile(
    r"(BYTES|BLOCK|COLUMNS|FORMAT|LENGTH|NESTING|READS|SHOWN|SPAN"
    r"|(BLOCK|GATHER|ORDER|SCAN|STRIP|TASK|TILE|WAITING)_ROWS)$"
)
"""Ends of names of what may stand in a deciding room: sizes of tasks, tiles and buffers, limits of input, formats."""

KNOWN = {"np": np, "math": math, **{name: value for name, value in vars(defaults).items() if name.isupper()}}


def holds_numbers(value: Any) -> bool:
    """Is this a number, or does it contain one?"""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list | set | frozenset):
        return any(map(holds_numbers, value))
    return isinstance(value, int | float | np.number | np.ndarray) and not isinstance(value, bool)


def value_of(node: ast.expr) -> Any:
    """The value of an expression of numbers, or None if it needs more than numbers and the constants of defaults."""
    try:
        return eval(compile(ast.Expression(node), "a constant", "eval"), dict(KNOWN))
    except NameError:
        return None


def numeric_constants(source: str) -> Iterator[str]:
    """The names of a module's constants that are made of numbers, and state at least one."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        literal = any(isinstance(part, ast.Constant) and holds_numbers(part.value) for part in ast.walk(node.value))
        if literal and holds_numbers(value_of(node.value)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                yield from (name.id for name in names if isinstance(name, ast.Name) and name.id.isupper())


def test_constants_are_found_however_they_are_written():
    source = (
        "A = 1\n_B: int = 2\nC, D = 3, 1 << 4\nE = tuple(10.0**-k for k in range(3))\nF = 3 * WORK_PER_SECOND\n"
        "G = {np.dtype(np.float32): 1e-3}\nH = True\nI = 'text'\nJ = A\nk = 5\nL = replace(M, size=3)\n"
    )
    assert list(numeric_constants(source)) == ["A", "_B", "C", "D", "E", "F", "G"]


def test_a_room_that_decides_states_no_constant_of_its_own():
    """One that decides belongs in ``defaults.py``, with its unit, its reason and its neighbours."""
    found = {
        str(file.relative_to(PACKAGE)): names
        for file in sorted(PACKAGE.rglob("*.py"))
        if file.relative_to(PACKAGE).parts[0] in DECIDING
        if (names := [name for name in numeric_constants(file.read_text()) if not TECHNICAL.search(name)])
    }
    assert found == {}


def test_each_constant_is_defined_once_and_described():
    tree = ast.parse((PACKAGE / "defaults.py").read_text()).body
    names: list[str] = []
    for node, following in zip(tree, [*tree[1:], None], strict=True):
        if isinstance(node, ast.Assign):
            names += [name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)]
            assert isinstance(following, ast.Assign) or (
                isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            ), names[-1]
    assert len(names) == len(set(names))
    assert not [
        node for node in tree if isinstance(node, ast.Import | ast.ImportFrom) and "future" not in ast.dump(node)
    ]


def test_each_constant_is_used():
    used: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.add(node.id)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
    assert [name for name in vars(defaults) if name.isupper() and name not in used] == []
