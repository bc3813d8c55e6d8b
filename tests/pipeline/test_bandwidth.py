"""A run whose bandwidth is the median distance: found out once, kept, and told."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import streamkern as sk
from streamkern.registry.retrain import retrain
from streamkern.report import read_run
from streamkern.report.result_sentences import basis_text
from streamkern.runs.plan import plan
from streamkern.runs.run_pipeline import run

Make = Callable[..., sk.Pipeline]


@pytest.mark.slow
def test_the_run_is_that_of_the_number_and_keeps_it(make: Make, tmp_path: Path) -> None:
    asked = make(kernel=sk.Laplace("median"), scaling="standard")
    result = run(asked, tmp_path / "run", memory="4GiB")
    number = result["median_distance"]
    assert result["kernel"] == {"name": "Laplace", "bandwidth": number}
    assert [s["name"] for s in result["stages"]][:4] == ["statistics", "check-test", "bandwidth", "centers"]
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["kernel"] == {"name": "Laplace", "bandwidth": "median"}
    assert f"(bandwidth {number:.4g})" in basis_text(manifest, read_run(tmp_path / "run").result)
    model = sk.load_model(tmp_path / "run/model.zarr")
    assert model.kernel == sk.Laplace(number)
    assert model.metadata["median_distance"] == number

    given = run(replace(asked, kernel=sk.Laplace(number)), tmp_path / "given", memory="4GiB")
    assert given["weights_sha256"] == result["weights_sha256"]
    assert "median_distance" not in given

    again = run(replace(asked, solver=sk.Direct()), tmp_path / "run", memory="4GiB", threads=1)
    assert again["median_distance"] == number
    assert {s["name"] for s in again["stages"] if s["cached"]} == {"statistics", "check-test", "bandwidth", "centers"}


def test_features_at_the_median_are_those_at_the_number(make: Make, tmp_path: Path) -> None:
    def features(bandwidth: object) -> sk.Pipeline:
        map_ = sk.RandomFourier(sk.Gaussian(bandwidth), 40)  # type: ignore[arg-type]
        return make(kernel=None, centers=None, features=map_, solver=sk.Direct())

    asked = run(features("median"), tmp_path / "asked", memory="4GiB")
    given = run(features(asked["median_distance"]), tmp_path / "given", memory="4GiB")
    assert asked["weights_sha256"] == given["weights_sha256"]


@pytest.mark.slow
def test_the_plan_says_that_the_bandwidth_will_be_found_out(make: Make) -> None:
    made = plan(make(kernel=sk.Gaussian("median")), memory="4GiB")
    assert "bandwidth" in [stage.name for stage in made.stages]
    assert any("median distance of 1,000 rows" in choice for choice in made.choices)
    assert "bandwidth" not in [stage.name for stage in plan(make(), memory="4GiB").stages]


@pytest.mark.slow
def test_a_retraining_from_the_champions_weights_keeps_its_bandwidth(make, write_rows, tmp_path):
    registry = tmp_path / "models"
    asked = make(kernel=sk.Laplace("median"), solver=sk.EigenPro(epochs=3))
    retrain(asked, registry, gate="accuracy >= 0.5", memory="4GiB")
    champion = sk.Registry(registry).load()
    fresh = write_rows(tmp_path / "fresh.zarr", seed=5)
    told = retrain(
        replace(asked, train=sk.open_dataset(fresh, target="label").augment(sk.augment.GaussianNoise(0.1), copies=3)),
        registry, gate="accuracy >= 0.5", memory="4GiB",
    )  # fmt: skip
    assert told["start"] == "warm"
    assert sk.Registry(registry).load().kernel == champion.kernel
