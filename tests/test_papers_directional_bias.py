"""The directional bias of SGD, from the text of the paper's Figure 1."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

FILE = Path(__file__).parents[1] / "pipelines" / "papers" / "directional_bias.py"


def test_sgd_goes_along_larger_eigenvalues_than_gradient_descent():
    spec = importlib.util.spec_from_file_location("directional_bias", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = [module.run(seed) for seed in range(2)]
    for result in results:
        quotients = {name: quotient for name, (quotient, _, _) in result.items()}
        assert quotients["SGD, moderate step"] > quotients["GD, moderate step"]
        assert quotients["SGD, small step"] > quotients["GD, small step"]
        assert all(np.isfinite(value) for values in result.values() for value in values)
    assert results[0] == module.run(0)
