"""``verbose=1`` shows how far the work is, on standard error; without it nothing is said."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import streamkern as sk
from streamkern.progress import Display

X = np.random.default_rng(0).standard_normal((300, 3)).astype("float32")
Y = (X[:, 0] > 0).astype(int)


def pipeline() -> sk.Pipeline:
    return sk.Pipeline(sk.from_arrays(X, Y), sk.Laplace(2.0), sk.Uniform(20), sk.EigenPro(epochs=2), name="job")


CALLS: dict[str, tuple[Callable[[Path, int], object], str]] = {
    "fit": (lambda _, v: sk.KernelClassifier(sk.Laplace(2.0), 20, sk.EigenPro(epochs=2), verbose=v).fit(X, Y), "train"),
    "run": (lambda folder, v: sk.run(pipeline(), folder / "run", verbose=v), "statistics"),
    "tune": (lambda _, v: sk.tune(pipeline(), rows=200, centers=10, seconds=False, verbose=v), "squared error"),
    "ingest": (lambda folder, v: sk.ingest((X, Y), folder / "rows.zarr", target="y", verbose=v), "write"),
    "predict": (
        lambda folder, v: sk.predict(
            sk.KernelClassifier(sk.Laplace(2.0), 20).fit(X, Y).model_, X, folder / "p.parquet", verbose=v
        ),
        "predict",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_verbose_shows_a_bar_on_a_terminal(name, tmp_path, monkeypatch, capsys):
    call, words = CALLS[name]
    call(tmp_path / "quiet", 0)
    assert capsys.readouterr().err == ""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    call(tmp_path / "told", 1)
    drawn = stream.getvalue()
    assert words in drawn
    assert "━" in drawn
    assert drawn.rstrip().endswith(("\x1b[2K", "s", "K"))  # nothing of the bar is left


def test_elsewhere_verbose_writes_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sk.run(pipeline(), tmp_path / "run", verbose=1)
    told = capsys.readouterr().err
    assert "job in " in told
    assert "statistics: " in told
    assert "\x1b" not in told


def test_a_notebook_has_a_bar_where_it_can_draw_one(monkeypatch: pytest.MonkeyPatch):
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    for widgets in (None, object()):
        monkeypatch.setattr("streamkern.progress.find_spec", lambda _, widgets=widgets: widgets)
        assert Display(io.StringIO())._live == (widgets is not None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not Display(io.StringIO())._live
