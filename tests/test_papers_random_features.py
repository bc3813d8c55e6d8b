"""SGD with random features: the claims of its paper at reduced size, from the pipeline that makes its tables."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.modules import module_at

FILE = Path(__file__).parent.parent / "pipelines" / "papers" / "random_features.py"


@pytest.fixture(scope="module")
def paper() -> ModuleType:
    return module_at(FILE)


@pytest.mark.slow
def test_features_beyond_root_n_log_n_gain_little(paper: ModuleType):
    n = 1024
    few, enough, many = (
        paper.errors(2, rows=n, features=M, passes=5, test_rows=2000)[:, -1].mean() for M in (8, 222, 4 * 222)
    )
    assert few > 1.5 * enough
    assert many > 0.85 * enough


@pytest.mark.slow
def test_a_batch_beyond_root_n_needs_more_than_one_pass(paper: ModuleType):
    """At the best of all steps, the largest of which diverge."""
    small, large = (
        np.min(
            [paper.errors(1, rows=1024, batch=b, step=s, passes=8, test_rows=2000)[0] for s in (0.5, 2.0, 8.0)], axis=0
        )
        for b in (32, 256)
    )
    assert large[0] > 2 * small[0]
    assert large[7] < 1.5 * small[0]


@pytest.mark.slow
def test_the_four_regimes_reach_the_same_error(paper: ModuleType):
    found = [paper.errors(1, rows=256, regime=regime, test_rows=2000)[0, -1] for regime in (1, 2, 3, 4)]
    assert max(found) < 1.05 * min(found)
    assert max(found) < 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "more", "lines"),
    [
        ("features", ["--ratios", "0.5", "2", "--passes", "1"], 4),
        ("batch", ["--ratios", "1", "99", "--passes", "2", "--steps", "0.5", "1000"], 8),
        ("regimes", ["--longest", "16"], 5),
    ],
)
def test_the_tables_are_printed(paper, capsys, table, more, lines):
    paper.main([table, "--rows", "16", "64", "--seeds", "1", *more])
    text = capsys.readouterr().out
    assert len(text.splitlines()) == lines
    assert "inf" not in text
    assert "nan" not in text


@pytest.mark.slow
def test_images_are_classified(paper: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if not Path("/usr/share/datasets/fashion-mnist").is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is missing")
    monkeypatch.chdir(tmp_path)
    errors = paper.errors(1, data="fashion", rows=1000, features=200, test_rows=1000, passes=2)
    assert errors.shape == (1, 2)
    assert errors[0, 1] < 0.4
