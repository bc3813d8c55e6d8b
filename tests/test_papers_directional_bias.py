"""The directional bias of SGD, from the text of the paper's Figure 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.modules import module_at

FILE = Path(__file__).parents[1] / "pipelines" / "papers" / "directional_bias.py"


@pytest.fixture(scope="module")
def figure():
    return module_at(FILE)


@pytest.fixture(scope="module")
def runs(figure):
    return [figure.run(draw) for draw in range(2)]


@pytest.mark.slow
def test_sgd_ends_along_larger_eigenvalues_than_gradient_descent(figure, runs):
    for ends in runs:
        assert ends[figure.SGD].quotient > ends[figure.GD].quotient
        assert ends[figure.SMALL_SGD].quotient > ends[figure.SMALL_GD].quotient
        assert all(np.isfinite(ends[name]).all() for name in ends)


def test_at_the_same_training_loss_the_bias_is_that_of_theorem_1(figure, runs):
    for ends in runs:
        sgd, gd = ends[figure.THEOREM], ends[figure.GD_THEOREM]
        assert gd.loss <= sgd.loss
        assert sgd.quotient > gd.quotient
        assert 1 <= sgd.excess < gd.excess  # of Theorem 4, which is 1 along the first eigenvector
        # With the steps of appendix H.1 the two are alike.
        assert ends[figure.SGD].quotient == pytest.approx(ends[figure.GD_SAME].quotient, rel=0.05)
    mean, _, share = figure.compare(runs, figure.THEOREM, figure.GD_THEOREM)["quotient"]
    assert mean > 0.3
    assert share == 1


@pytest.mark.slow
def test_a_draw_is_the_same_again(figure, runs):
    assert figure.run(1) == runs[1]


def test_gradient_descent_takes_the_steps_of_the_paper(figure, runs):
    """Against plain NumPy."""
    X, y = figure.points(10, 0, "train")
    K = figure.KERNEL(X)
    norms = np.sum(X**2, axis=1)
    assert 0.49 <= norms.min() <= norms.max() <= 1
    np.testing.assert_allclose(K, (X @ X.T + 0.01) ** 2)
    alpha = np.zeros(10)
    for step in range(1050):
        alpha -= (0.5 if step < 50 else 0.05) * K @ (K @ alpha - y) / 10
    loss = np.mean((K @ alpha - y) ** 2) / 2
    assert runs[0][figure.GD].loss == pytest.approx(loss, rel=1e-6)


def test_the_table_is_printed(figure, runs, monkeypatch, capsys):
    monkeypatch.setattr(figure, "run", runs.__getitem__)
    figure.main(["--draws", "2"])
    text = capsys.readouterr().out
    assert text.startswith("medians")
    assert text.count("larger in") == 20
