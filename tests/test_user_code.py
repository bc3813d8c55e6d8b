"""The identity of a user's code: an edit of anything that it refers to is another identity."""

import importlib
import importlib.util
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.errors import UsageError
from streamkern.runs import load_pipeline, resume, run
from streamkern.user_code_digest import code_identity, described, user_code_identities

FILES = {
    "profile": """
import functools
import math

import numpy as np

import inner
from inner import deeper

SCALE = 2.0
TABLE = {"a": [1.0, 2.0]}


class Settings:
    power = 1.0

    def shift(self):
        return 0.5


def helper(t):
    return deeper(t) * SCALE


def g(t, extra=1.0, *, also=3.0):
    return helper(t) + extra * also + TABLE["a"][0] + Settings().shift() * inner.CONSTANT


def closing(amount):
    def inside(t):
        return t * amount

    return inside


closed = closing(1.0)


class Called:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, t):
        return self.factor * t


called = Called(4.0)


@functools.cache
def cached(t):
    return t * 7.0


def late(t):
    import lazy

    return lazy.value(t)


def tries(t):
    try:
        return t / 0
    except ZeroDivisionError:
        return t
""",
    "inner": """
CONSTANT = 5.0


def deepest(t):
    return t + 11.0


def deeper(t):
    return deepest(t)
""",
    "lazy": """
def value(t):
    return t * 13.0
""",
}
NAMES = ("g", "closed", "called", "cached", "late", "tries")


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """The module ``profile`` with files as they are, or with one text replaced in one of them."""
    number = itertools.count()

    def load(file: str = "profile", old: str = "", new: str = "") -> ModuleType:
        folder = tmp_path / str(next(number))  # a folder of its own: bytecode is cached by path and second
        folder.mkdir()
        for name, text in FILES.items():
            monkeypatch.delitem(sys.modules, name, raising=False)
            if name == file:
                assert old in text
                text = text.replace(old, new, 1) if old else text
            (folder / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        spec = importlib.util.spec_from_file_location("profile_of_user", folder / "profile.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def identities(module: ModuleType) -> dict[str, str]:
    found = {}
    for name in NAMES:
        identity = code_identity(getattr(module, name))
        assert identity.unknown is None, name
        found[name] = identity.digest
    return found


EDITS = [
    # file, what is edited, what it becomes, functions that are others then
    ("profile", "SCALE = 2.0", "SCALE = 2.5", {"g"}),
    ("profile", "deeper(t) * SCALE", "deeper(t) / SCALE", {"g"}),
    ("profile", "extra=1.0", "extra=1.5", {"g"}),
    ("profile", "also=3.0", "also=3.5", {"g"}),
    ("profile", "[1.0, 2.0]", "[1.0, 2.5]", {"g"}),
    ("profile", "return 0.5", "return 0.25", {"g"}),
    ("profile", "power = 1.0", "power = 1.5", {"g"}),
    ("profile", "helper(t) + extra", "helper(t) - extra", {"g"}),
    ("profile", "closing(1.0)", "closing(1.5)", {"closed"}),
    ("profile", "t * amount", "t + amount", {"closed"}),
    ("profile", "Called(4.0)", "Called(4.5)", {"called"}),
    ("profile", "self.factor * t", "self.factor + t", {"called"}),
    ("profile", "t * 7.0", "t * 7.5", {"cached"}),
    ("profile", "except ZeroDivisionError", "except ValueError", {"tries"}),
    ("inner", "CONSTANT = 5.0", "CONSTANT = 5.5", {"g"}),
    ("inner", "t + 11.0", "t + 11.5", {"g"}),
    ("lazy", "t * 13.0", "t * 13.5", {"late"}),
]


@pytest.mark.parametrize(("file", "old", "new", "others"), EDITS, ids=[edit[1] for edit in EDITS])
def test_an_edit_of_what_is_referred_to_is_another_identity(load, file, old, new, others):
    before, after = identities(load()), identities(load(file, old, new))
    assert {name for name in NAMES if before[name] != after[name]} == others


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SCALE = 2.0", "SCALE = 2.0  # a comment"),
        ("SCALE = 2.0", "\n\n\nSCALE   =   2.0"),
        ("return deeper(t) * SCALE", "# why\n    return (deeper(t)\n        * SCALE)"),
        ("class Called", "UNUSED = 3\n\n\nclass Called"),
    ],
)
def test_comments_spaces_and_what_is_not_referred_to_leave_it_as_it_is(load, old, new):
    assert identities(load()) == identities(load("profile", old, new))


def test_it_is_the_same_in_another_process(load: Callable[..., ModuleType]):
    module = load()
    folder = Path(str(module.__file__)).parent
    program = (
        "import sys; sys.path.insert(0, '.'); import profile_of_user as m\n"
        "from streamkern.user_code_digest import code_identity\n"
        f"print(*(code_identity(getattr(m, name)).digest for name in {NAMES}))"
    )
    (folder / "profile.py").rename(folder / "profile_of_user.py")
    for seed in ("1", "2"):  # of the order of sets
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(sk.__file__).parent.parent)},
        )  # fmt: skip
        assert done.stdout.split() == list(identities(module).values())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return eval('t * 2')", r"eval\(\)"),
        ("return globals()['SCALE'] * t", r"globals\(\)"),
        ("return t * len(open('table.txt').read())", r"open\(\)"),
        ("global SCALE\n    SCALE = SCALE + 1\n    return t * SCALE", "'SCALE'"),
        ("import nowhere_at_all\n    return nowhere_at_all.f(t)", "nowhere_at_all"),
        ("return LOCK and t", "lock"),
    ],
)
def test_what_cannot_be_known_is_said(body: str, reason: str):
    space: dict[str, Any] = {"__name__": "users"}
    exec(f"import threading\nSCALE = 1\nLOCK = threading.Lock()\ndef f(t):\n    {body}\n", space)
    unknown = code_identity(space["f"]).unknown
    assert unknown is not None
    assert re.search(reason, unknown)


def test_objects_of_installed_packages_are_known_by_what_they_hold():
    def digest(value: Any) -> str:
        identity = code_identity(value)
        assert identity.unknown is None
        return identity.digest

    assert digest(np.exp) == digest(np.exp) != digest(np.sin)
    assert digest(math.sin) != digest(math.cos)
    assert digest(np.arange(3)) != digest(np.arange(4))
    assert code_identity(np.frompyfunc(lambda t: t, 1, 1)).unknown is not None
    assert digest(partial(np.power, 2)) != digest(partial(np.power, 3))
    assert digest(np.float32(1)) != digest(np.float64(1)) != digest(1.0)
    assert digest(np.polynomial.Polynomial([1, 2])) != digest(np.polynomial.Polynomial([1, 3]))


def test_a_users_wrapper_of_a_function_is_known_by_its_state_too():
    class Repeated:
        def __init__(self, function: Callable[[Any], Any], times: int) -> None:
            self.__wrapped__, self.times = function, times

        def __call__(self, t: Any) -> Any:
            return self.times * self.__wrapped__(t)

    def double(t: Any) -> Any:
        return t * 2

    once, again, twice = (code_identity(Repeated(double, times)) for times in (1, 1, 2))
    assert once == again != twice


def test_a_users_dataclass_is_known(load: Callable[..., ModuleType]):
    dataclass = """
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Called:
    factor: float = field(default=1.0, metadata={"unit": UNIT})
"""
    old = "class Called:\n    def __init__(self, factor):\n        self.factor = factor\n"
    once, again, other = (load("profile", old, dataclass.replace("UNIT", repr(unit))) for unit in ("m", "m", "km"))
    assert code_identity(once.called).unknown is None
    assert code_identity(once.called) == code_identity(again.called) != code_identity(other.called)


def test_a_users_function_anywhere_in_a_part_is_described():
    def double(t: Any) -> Any:
        return t * 2

    def treble(t: Any) -> Any:
        return t * 3

    assert described(None) is None
    assert described(sk.Laplace(2.0)) == sk.Laplace(2.0).to_json()
    assert user_code_identities((sk.Laplace(2.0), sk.EigenPro(), sk.Uniform(5), sk.Impute("mean"))) == []
    for part in (sk.RadialProfile, lambda f: 2.0 * sk.DotProfile(f) + sk.Linear(), lambda f: sk.augment.Custom(f)):
        assert (
            user_code_identities(part(double))
            == user_code_identities(part(double))
            != user_code_identities(part(treble))
        )


# ------------------------------------------------------------------------------------------------- in a run directory

FILE = """
import numpy as np
import streamkern as sk
from profile_helper import bend

SCALE = 3.0


def g(squared):
    return np.exp(-bend(squared) / SCALE)


def wobble(X, U):
    return X + SHIFT * U[:, :1]


SHIFT = 0.1


def pipeline() -> sk.Pipeline:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3)).astype("float32")
    data = sk.from_arrays(X, X[:, 0] * X[:, 1]).augment(sk.augment.Custom(wobble, uniforms=1))
    kernel = sk.RadialProfile(g)
    return sk.Pipeline(data, kernel, sk.Uniform(20), sk.EigenPro(epochs=2, batch=20), task="regression")
"""
HELPER = "def bend(t):\n    return t / 2.0\n"


def trained(folder: Path, text: str = FILE, helper: str = HELPER) -> tuple[set[str], str]:
    """Stages that were taken from an earlier run, and the weights."""
    sys.modules.pop("profile_helper", None)
    (folder / "profile_helper.py").write_text(helper)
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    importlib.invalidate_caches()
    (folder / "p.py").write_text(text)
    result = run(load_pipeline(folder / "p.py"), folder / "run", threads=1)
    return {stage["name"] for stage in result["stages"] if stage["cached"]}, result["weights_sha256"]


@pytest.mark.parametrize("edit", ["SCALE = 3.0", "SHIFT = 0.1", "t / 2.0"])
def test_an_edited_pipeline_file_is_trained_anew_and_an_unchanged_one_is_not(tmp_path, monkeypatch, edit):
    monkeypatch.syspath_prepend(str(tmp_path))
    _, first = trained(tmp_path)
    assert trained(tmp_path) == ({"statistics", "centers", "eigensystem", "train", "evaluate"}, first)
    cached, second = trained(tmp_path, FILE.replace(edit, edit + "5"), HELPER.replace(edit, edit + "5"))
    assert "train" not in cached
    assert "evaluate" not in cached
    assert second != first


@pytest.mark.slow
def test_where_the_code_cannot_be_known_nothing_is_reused_and_resuming_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    text = FILE.replace("/ SCALE)", "/ eval('SCALE'))")
    trained(tmp_path, text)
    assert trained(tmp_path, text)[0] == set()
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    told = [event["message"] for event in events if event["event"] == "warning"]
    assert any("nothing of an earlier run is reused" in message and "g calls eval()" in message for message in told)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    (tmp_path / "run" / "result.json").write_text(json.dumps({**result, "status": "interrupted"}))
    with pytest.raises(UsageError, match=r"cannot be resumed: g calls eval\(\)"):
        resume(tmp_path / "run")


def test_a_pipeline_file_knows_its_place_whatever_the_directory_of_the_call(tmp_path, monkeypatch):
    (tmp_path / "p.py").write_text(
        "from pathlib import Path\nimport numpy as np, streamkern as sk\nROOT = Path(__file__).parents[0]\n"
        "def pipeline():\n    assert ROOT.is_absolute()\n"
        "    return sk.Pipeline(sk.from_arrays(np.eye(9), np.arange(9) % 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_pipeline("p.py").train.base_rows == 9
