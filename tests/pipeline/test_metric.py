"""A metric in a pipeline: a stage that is planned, kept, resumed and reported."""

from pathlib import Path

import numpy as np

import streamkern as sk

AGOP = sk.AGOP(rounds=1, rows=800, centers=60)


def pipeline(**changes: object) -> sk.Pipeline:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 6)).astype(np.float32)
    y = np.sin(2 * X[:, 1]) + X[:, 4]
    given = {"kernel": sk.Laplace("median"), "centers": sk.Uniform(80), "solver": sk.Direct(), "task": "regression"}
    return sk.Pipeline(sk.from_arrays(X, y), **{**given, "metric": AGOP, **changes})  # type: ignore[arg-type]


def stages(result: dict) -> dict[str, bool]:
    return {stage["name"]: stage["cached"] for stage in result["stages"]}


def test_a_metric_is_a_stage_that_is_kept(tmp_path: Path):
    first = sk.run(pipeline(), tmp_path / "run", memory="4GiB")
    names = list(stages(first))
    assert names.index("statistics") < names.index("metric") < names.index("centers")
    assert first["metric"]["round"] == 1
    assert np.argsort(first["metric"]["importances"])[-2:].tolist() in ([1, 4], [4, 1])
    again = sk.run(pipeline(), tmp_path / "run", memory="4GiB")
    assert stages(again)["metric"]
    assert again["weights_sha256"] == first["weights_sha256"]
    other = sk.run(pipeline(metric=sk.AGOP(rounds=1, rows=700, centers=60)), tmp_path / "run", memory="4GiB")
    assert not stages(other)["metric"]
    model = sk.load_model(tmp_path / "run" / "model.zarr")
    assert model.metadata["metric"]["kind"] == other["metric"]["kind"]


def test_a_metric_is_planned():
    planned = sk.plan(pipeline(), memory="4GiB")
    (stage,) = [stage for stage in planned.stages if stage.name == "metric"]
    assert (stage.rows, stage.passes) == (800, 3)
    assert stage.flops > 3 * 800 * 60 * 6
    assert any(choice.startswith("metric: diagonal and full, at most 1 round") for choice in planned.choices)
    assert "metric" not in [stage.name for stage in sk.plan(pipeline(metric=None), memory="4GiB").stages]
