"""The main job on real images, as the command line runs it."""

from pathlib import Path

import pytest

import streamkern as sk

IMAGES = Path("/usr/share/datasets/fashion-mnist")
PIPELINE = Path(__file__).parents[1] / "pipelines" / "fashion_mnist.py"

pytestmark = pytest.mark.skipif(not IMAGES.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def run(**settings: object) -> dict[str, object]:
        job = sk.load_pipeline(PIPELINE, {name: str(value) for name, value in settings.items()})
        return sk.run(job, tmp_path / "run")

    return run


@pytest.mark.slow
def test_five_passes_with_a_thousand_centers_beat_the_paper(run):
    result = run(rows=60_000, noise=0, centers=1000, epochs=5)
    # 85.70 on the machine of docs/measured.md, 84.59 in the paper; other BLAS kernels round otherwise.
    assert result["metrics"]["test"]["accuracy"] > 0.855
    assert result["metrics"]["test"]["n"] == 10_000
    assert result["n_rows"] == 60_000
    assert result["solver_report"]["projection"] == "exact"


@pytest.mark.slow
@pytest.mark.parametrize("projection", ["inexact", "delayed"])
def test_projections_without_p_squared_numbers_are_close(run, projection: str):
    result = run(rows=60_000, noise=0, centers=500, epochs=2, projection=projection)
    assert result["metrics"]["test"]["accuracy"] > 0.83


@pytest.mark.slow
def test_noisy_copies_are_more_rows(run):
    result = run(rows=150_000, centers=500)
    assert result["n_rows"] == 150_000
    assert result["history"][0]["rows"] == 150_000
    assert result["metrics"]["test"]["accuracy"] > 0.83
