"""``Resources``: one way to say memory, threads, scheduler, device and workers, behind every door."""

import copy
import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import streamkern as sk
from streamkern.resources import given_resources

X = np.random.default_rng(0).standard_normal((80, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
DOORS = (sk.run, sk.resume, sk.plan, sk.tune, sk.predict, sk.retrain, sk.update_model, sk.ingest, sk.inspect,
         sk.KernelClassifier, sk.KernelRegressor)  # fmt: skip
FIELDS = ("scheduler", "device", "worker_memory", "worker_threads")


def job(**given: Any) -> sk.Pipeline:
    return sk.Pipeline(sk.from_arrays(X, Y), sk.Laplace(2.0), sk.Uniform(20), name="job", **given)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_every_door_says_resources_in_the_same_way(door: Any):
    found = inspect.signature(door).parameters
    assert found["memory"].default is found["threads"].default is found["resources"].default is None
    assert not found.keys() & set(FIELDS)


def test_only_what_differs_from_the_defaults_is_printed():
    assert repr(sk.Resources()) == "Resources()"
    found = sk.Resources("8GiB", threads=2, scheduler="processes:4")
    assert str(found) == "Resources(memory='8GiB', threads=2, scheduler='processes:4')"


def test_memory_and_threads_complete_resources_and_may_repeat_them():
    given = sk.Resources("1GiB", scheduler="processes:2")
    assert given_resources(given, 1 << 30, 3) == sk.Resources(1 << 30, 3, "processes:2")
    assert given_resources(None, None, None) == sk.Resources()


@pytest.mark.parametrize("other", [{"memory": "2GiB"}, {"threads": 2}])
def test_memory_and_threads_that_contradict_resources_are_refused(other: dict[str, Any], tmp_path: Path):
    (name,), given = other, sk.Resources("1GiB", 1)
    for call in (
        lambda: sk.run(job(), tmp_path / "run", resources=given, **other),
        lambda: sk.plan(job(), resources=given, **other),
        lambda: sk.KernelClassifier(centers=20, resources=given, **other).fit(X, Y),
        lambda: sk.ingest((X, Y), tmp_path / "rows.zarr", resources=given, **other),
    ):
        with pytest.raises(sk.UsageError, match=f"{name} is .*, and .* in resources"):
            call()
    assert not list(tmp_path.iterdir())


def test_copies_and_pickles_are_equal():
    given = sk.Resources("1GiB", device="cpu")
    model = sk.KernelClassifier(centers=20, resources=given)
    assert copy.deepcopy(given) is clone(model).resources is given
    assert pickle.loads(pickle.dumps(model)).resources == given
    assert "resources=Resources(memory='1GiB', device='cpu')" in " ".join(repr(model).split())


FILE = """
import numpy as np
import streamkern as sk

def pipeline():
    X = np.random.default_rng(0).standard_normal((80, 3)).astype(np.float32)
    return sk.Pipeline(sk.from_arrays(X, X[:, 0] > 0), sk.Laplace(2.0), sk.Uniform(20), sk.EigenPro(epochs=1))
"""


def test_a_resumed_run_has_the_resources_it_had_unless_others_are_given(tmp_path: Path):
    (tmp_path / "p.py").write_text(FILE)
    pipeline = sk.load_pipeline(str(tmp_path / "p.py"))

    def stop(kind: str, fields: dict[str, Any]) -> None:
        if kind == "stage":
            raise KeyboardInterrupt

    def manifest() -> dict[str, Any]:
        found = json.loads((tmp_path / "run/manifest.json").read_text())
        return {name: found[name] for name in ("memory", "threads", "scheduler", "device")}

    with pytest.raises(KeyboardInterrupt):
        sk.run(pipeline, tmp_path / "run", resources=sk.Resources("12GiB", 2, device="cpu"), listeners=(stop,))
    before = manifest()
    assert before == {"memory": 12 << 30, "threads": 2, "scheduler": "threads", "device": "cpu"}
    for given, changed in (
        ({}, {}),
        ({"threads": 1}, {"threads": 1}),
        ({"resources": sk.Resources("8GiB", 2)}, {"memory": 8 << 30, "threads": 2}),
    ):
        with pytest.raises(KeyboardInterrupt):
            sk.resume(tmp_path / "run", listeners=(stop,), **given)
        before |= changed
        assert manifest() == before
