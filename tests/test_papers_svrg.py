"""Figures 1 and 2 of the SVRG paper at reduced size, from the pipeline that makes them at full size."""

import json
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk
from tests.modules import module_at

FILE = Path(__file__).parent.parent / "pipelines" / "papers" / "svrg.py"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture(scope="module")
def figure():
    return module_at(FILE)


@pytest.fixture(scope="module")
def results(figure):
    """Both decays, at a twentieth of the paper's size in each direction, with a ridge that so few epochs can reach."""
    return {data: figure.compare(data, n=1000, d=250, ridge=1e-4, epochs=5, batch=24) for data in figure.DECAYS}


@pytest.mark.parametrize("data", ["linear", "quadratic"])
def test_the_preconditioner_needs_fewer_epochs(figure, results, data):
    plain, sketched = (results[data][name]["suboptimality"] for name in ("plain", "preconditioned"))
    assert plain[0] == pytest.approx(sketched[0])
    assert len(plain) == len(sketched) == 6
    assert sketched[-1] < plain[-1]
    reached = figure.epochs_to(sketched, plain[-1])
    assert reached is not None
    assert reached <= 3


def test_a_faster_decay_gains_more(results):
    linear, quadratic = (results[data]["ratios"] for data in ("linear", "quadratic"))
    assert quadratic[30] > 10 * linear[30] > 10
    assert linear[1] < linear[10] < linear[30] < linear[100]  # Figure 1 rises with k
    assert linear[1] == pytest.approx(1)
    gain = {
        data: np.divide(*(found[name]["suboptimality"][-1] for name in ("plain", "preconditioned")))
        for data, found in results.items()
    }
    assert gain["quadratic"] > 10 * gain["linear"] > 10


def test_the_figures_are_printed(figure, capsys):
    small = ["--n", "300", "--d", "40", "--k", "5", "--epochs", "2", "--batch", "30"]
    figure.main(small)
    text = capsys.readouterr().out
    assert text.startswith("300 x 40\nratio of eq. 3: 1 at k = 1")
    assert "k = 5" in text
    figure.main([*small, "--json", "--factors", "0.5", "1"])
    result = json.loads(capsys.readouterr().out)
    assert len(result["plain"]["suboptimality"]) == 3
    assert result["preconditioned"]["factor"] in (0.5, 1.0)


@pytest.mark.slow
def test_the_command_line_trains_either_method(tmp_path):
    settings = {"data": "quadratic", "rows": "400", "features": "50", "ridge": "1e-4", "epochs": "4"}
    errors = [
        sk.run(sk.load_pipeline(FILE, settings | {"k": k}), tmp_path / k)["metrics"]["train"]["mse"]
        for k in ("0", "10")
    ]
    assert errors[1] < errors[0]
    with pytest.raises(sk.UsageError, match="expected: linear, quadratic or fashion"):
        sk.load_pipeline(FILE, {"data": "cubic"})


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_two_classes_of_images_are_as_the_papers_digits(figure, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = figure.fashion()
    assert X.shape == (12_000, 784)
    assert np.linalg.norm(X, axis=1).mean() == pytest.approx(1, rel=1e-5)
    assert sorted(np.unique(y)) == [-1, 1]
