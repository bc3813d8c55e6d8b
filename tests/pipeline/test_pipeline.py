"""Pipeline files: what they define, and how text becomes their settings."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamkern as sk
from streamkern.runs.pipeline_definition import load_pipeline, parameters, type_name

FILE = '''
from pathlib import Path
import numpy as np
import streamkern as sk

SEEN = {}

def pipeline(rows: int = 10, noise: float = 0.5, name: str = "", deep: bool = False, source: str | None = None,
             place: Path = Path("a"), limit: int | None = 3, plain="text", *, needed: int, **rest) -> sk.Pipeline:
    """First line.

    Args:
        rows: how many,
            over two lines: with a colon.
        noise (float): the noise.
        needed: has no default.

    Returns:
        rows: not this.
    """
    SEEN.update({k: v for k, v in locals().items() if k != "rest"})
    data = sk.from_arrays(np.eye(10), np.arange(10) % 2)
    return sk.Pipeline(train=data, kernel=sk.Laplace(1.0), centers=sk.Uniform(2), solver=sk.EigenPro(), name=name)
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipelines") / "mine.py"
    path.write_text(FILE)
    return path


def value_of(file: Path, name: str, text: str) -> object:
    load_pipeline(file, {"needed": "1", name: text})
    return sys.modules["streamkern_pipeline_mine"].SEEN[name]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rows", "1_000_000", 1_000_000),
        ("rows", "1e6", 1_000_000),
        ("rows", "-3", -3),
        ("noise", "0", 0.0),
        ("noise", "1e-3", 1e-3),
        ("deep", "true", True),
        ("deep", "No", False),
        ("source", "none", None),
        ("source", "a b=c", "a b=c"),
        ("place", "x/y", Path("x/y")),
        ("limit", "None", None),
        ("limit", "7", 7),
        ("plain", "12", "12"),
    ],
)
def test_text_becomes_a_value_of_the_annotated_type(file: Path, name: str, text: str, value: object):
    found = value_of(file, name, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "type_"),
    [
        ("rows", "many", "int"),
        ("rows", "1.5", "int"),
        ("rows", "1e-3", "int"),
        ("rows", "1e999", "int"),
        ("rows", "", "int"),
        ("noise", "loud", "float"),
        ("deep", "2", "bool"),
        ("limit", "x", "int or None"),
    ],
)
def test_a_value_of_another_type_is_refused(file: Path, name: str, text: str, type_: str):
    with pytest.raises(sk.UsageError) as caught:
        value_of(file, name, text)
    assert caught.value.expected == type_
    assert name in (caught.value.where or "")
    assert repr(text) in caught.value.what


CHOICES = """
from typing import Literal
import numpy as np
import streamkern as sk
SEEN = []

def pipeline(kind: Literal["laplace", "Gaussian", 3] = "laplace", sizes: list[int] = []) -> sk.Pipeline:
    SEEN.append(kind)
    return sk.Pipeline(sk.from_arrays(np.ones((4, 2)), np.arange(4)), centers=sk.Uniform(2))
"""


def test_a_literal_is_one_of_its_values_and_a_list_is_refused_in_words(tmp_path: Path):
    path = tmp_path / "choices.py"
    path.write_text(CHOICES)
    for text, value in {"laplace": "laplace", "gaussian": "Gaussian", "3": 3}.items():
        load_pipeline(path, {"kind": text})
        (seen,) = sys.modules["streamkern_pipeline_choices"].SEEN  # of this load
        assert seen == value
    with pytest.raises(sk.UsageError, match="'cauchy' is not of type laplace or Gaussian or 3"):
        load_pipeline(path, {"kind": "cauchy"})
    with pytest.raises(sk.UsageError, match=r"'sizes' is a list\[int\], which the command line cannot parse"):
        load_pipeline(path, {"sizes": "1,2"})


@given(st.integers(-(10**30), 10**30))
def test_any_integer_comes_back_exactly(file: Path, number: int):
    assert value_of(file, "rows", f"{number:_}") == number


@given(st.floats(allow_nan=False))
def test_any_float_comes_back_exactly(file: Path, number: float):
    assert value_of(file, "noise", repr(number)) == number


def test_an_unknown_setting_is_refused_with_the_closest_name(file: Path):
    with pytest.raises(sk.UsageError, match="did you mean 'noise'") as caught:
        load_pipeline(file, {"needed": "1", "nose": "1"})
    assert "rows" in (caught.value.expected or "")
    with pytest.raises(sk.UsageError, match="no parameter 'zzz'"):
        load_pipeline(file, {"needed": "1", "zzz": "1"})


def test_a_setting_without_a_default_is_asked_for(file: Path):
    with pytest.raises(sk.UsageError, match="needed") as caught:
        load_pipeline(file)
    assert caught.value.remedy == "give it: --set needed=..."


def test_settings_are_listed_with_type_default_and_text(file: Path):
    known = parameters(file)
    assert list(known) == ["rows", "noise", "name", "deep", "source", "place", "limit", "plain", "needed"]
    assert known["rows"] == (int, 10, "how many, over two lines: with a colon.")
    assert known["noise"].text == "the noise."
    assert known["deep"].text == ""
    assert [type_name(known[name].kind) for name in ("rows", "source", "plain")] == ["int", "str or None", "str"]


def test_a_pipeline_is_called_after_its_file_unless_it_has_a_name(file: Path):
    assert load_pipeline(file, {"needed": "1"}).name == "mine"
    assert load_pipeline(file, {"needed": "1", "name": "own"}).name == "own"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no pipeline file"),
        ("x = (", "not valid Python"),
        ("x = 1", "no function pipeline"),
        ("pipeline = 3", "no function pipeline"),
        ("def pipeline(): return 3", "returned int"),
    ],
)
def test_a_file_that_defines_no_pipeline_is_refused(tmp_path: Path, text: str | None, message: str):
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(sk.UsageError, match=message) as caught:
        load_pipeline(path)
    assert str(caught.value.where).startswith(str(path))


def test_an_edit_of_the_same_size_and_time_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Python tells by these alone whether the bytecode that it keeps is that of the file."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path, text = (
        tmp_path / "p.py",
        "import streamkern as sk\npipeline = lambda: sk.Pipeline(sk.from_arrays([[0.0]], [0.0]), name='first')\n",
    )
    for name in ("first", "other"):
        path.write_text(text.replace("first", name))
        os.utime(path, (0, 0))
        assert load_pipeline(path).name == name


def test_settings_of_a_file_are_typed_values_texts_or_keywords(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text(
        "import numpy as np, streamkern as sk\n"
        "def pipeline(copies: int = 1, step: float | None = 1.0, flag: bool = False, label: str = ''):\n"
        "    assert type(flag) is bool and (step is None or type(step) is float) and type(label) is str\n"
        "    data = sk.from_arrays(np.eye(4), np.arange(4) % 2)\n"
        "    return sk.Pipeline(data, seed=copies, name=f'{step} {flag} {label}')\n"
    )
    typed = sk.load_pipeline(file, {"copies": 8, "step": None, "flag": True})
    texts = sk.load_pipeline(file, {"copies": "8", "step": "none", "flag": "true"})
    words = sk.load_pipeline(file, copies=np.int64(8), step=None, flag=True)
    assert (typed.seed, typed.name) == (texts.seed, texts.name) == (words.seed, words.name) == (8, "None True ")
    assert sk.load_pipeline(file, typed.settings).name == typed.name  # as a run records and resumes them
    assert sk.load_pipeline(file, step=0.1, label=5).name == "0.1 False 5"
    for wrong in ({"copies": [8]}, {"copies": 8.5}, {"flag": 3}, {"copys": 8}):
        with pytest.raises(sk.UsageError):
            sk.load_pipeline(file, wrong)
