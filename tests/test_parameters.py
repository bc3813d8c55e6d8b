"""Constructors: a parameter of the wrong type, or None where there is no such choice, is one error at once."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.errors import UsageError
from streamkern.solvers.base import Iteration, Solver

# What the library makes and users read; their constructors are not called by users.
MADE = {"KernelMachine", "PartitionedMachine", "Dataset"}
CLASSES = {
    name: each
    for place in (sk, sk.augment)
    for name in place.__all__
    if name not in MADE and dataclasses.is_dataclass(each := getattr(place, name))
}
DATA = sk.from_arrays(np.eye(4, dtype=np.float32), np.arange(4) % 2)
GIVEN: dict[str, Any] = {
    "p": 5, "kernel": sk.Gaussian(1.0), "function": np.exp, "sigma": 1.0, "probability": 0.5, "Z": np.eye(3),
    "shape": (2, 2), "alpha": 1.0, "columns": (0,), "components": 3, "M": 8, "train": DATA,
}  # fmt: skip
WRONG: dict[Any, list[Any]] = {
    int: [None, "x", 1.5, float("nan"), object(), [], {}, True, np.ones(2)],
    float: [None, "x", object(), [], {}, float("nan"), np.ones(2), 1j],
    bool: [None, "x", 2, object(), []],
    str: [None, 3, object(), [], "no such choice"],
    type(None): [],
}
ANYTHING = [None, object(), 3.5, True]
FREE = {"name", "file", "by"}  # any text will do; or it names a column, which only rows tell


def kinds(annotation: Any) -> list[Any]:
    options = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, types.UnionType) else ()
    return list(options) or [annotation]


def wrong_values(owner: type, name: str, annotation: Any, default: Any) -> list[Any]:
    options = kinds(annotation)
    values = next((WRONG[kind] for kind in (int, float, bool, str) if kind in options), ANYTHING)
    optional = type(None) in options or default is None or typing.Any in options
    values = [value for value in values if not (optional and value is None)]
    if name in FREE:
        values = [value for value in values if not isinstance(value, str)]
    return values


def shown(value: Any) -> str:
    """Two processes call a case the same: no addresses."""
    return "object" if type(value) is object else repr(value)


def cases() -> Iterator[Any]:
    for name, owner in sorted(CLASSES.items()):
        hints = typing.get_type_hints(owner)
        for parameter in inspect.signature(owner).parameters.values():
            for value in wrong_values(owner, parameter.name, hints[parameter.name], parameter.default):
                yield pytest.param(owner, parameter.name, value, id=f"{name}-{parameter.name}-{shown(value)}"[:60])


@pytest.mark.parametrize(("owner", "name", "value"), list(cases()))
def test_a_parameter_of_the_wrong_type_is_refused_by_its_name(owner: type, name: str, value: Any):
    required = [p.name for p in inspect.signature(owner).parameters.values() if p.default is p.empty]
    given = {each: GIVEN[each] for each in required} | {name: value}
    with pytest.raises(UsageError) as error:
        owner(**given)
    assert error.value.where is not None
    assert owner.__name__ in str(error.value) or name in str(error.value)


RANGES: dict[str, dict[str, list[Any]]] = {
    "AGOP": {"kind": ["triangular"]},
    "ArcCosine": {"order": [3], "depth": [0]},
    "Cauchy": {"bandwidth": [0.0]},
    "Custom": {"function": ["flip"], "uniforms": [-1]},
    "Direct": {"ridge": [-1.0]},
    "EigenPro": {
        "epochs": [0], "projection": ["nearly"], "q": [0], "batch": [-1, 100.0], "step": [0.0], "momentum": [1.0],
        "patience": [0], "projection_products": [-1],
    },
    "EigenPro1": {
        "epochs": [0], "q": [0], "subsample": [1], "batch": [0], "step": [0.0], "tau": [0.0, 1.5], "ridge": [-1.0]
    },
    "EigenPro2": {"epochs": [0], "s": [0], "q": [-1], "batch": [0], "step": [0.0, -1.0], "patience": [0]},
    "ExponentialPower": {"exponent": [2.5, 3.0, -1.0]},
    "Falkon": {"epochs": [1]},
    "FeatureDropout": {"probability": [1.5]},
    "GaussianNoise": {"sigma": [-1.0, np.inf]},
    "GradientDescent": {"epochs": [0], "step": [0.0]},
    "HorizontalFlip": {"shape": ["28x28"], "probability": [-0.1, 2.0]},
    "Impute": {"policy": ["mode"]},
    "KMeans": {"p": [0], "iterations": [-1], "batch": [0]},
    "Laplace": {"bandwidth": [0.0, 1e-320, "mean"], "norm": [3]},
    "Linear": {"offset": [-1.0]},
    "LBFGS": {"ridge": [0]},
    "Matern": {"nu": [0.5, 3.0]},
    "MixUp": {"alpha": [0.0], "bank": [0]},
    "NTK": {"depth": [0]},
    "OneHot": {"columns": [(), "brand"], "unknown": ["skip"]},
    "Ordinal": {"columns": [(1, 1)], "unknown": ["skip"]},
    "Partition": {"leaves": ["many", 0], "overlap": [0.6, True], "by": [3]},
    "Pipeline": {
        "train": [[[0.0]]], "task": ["ranking"], "dtype": ["float16"], "lanes": [0], "validation": [1.5],
        "test": ["rows.zarr"], "kernel": ["laplase", sk.Laplace], "centers": [0, sk.Uniform], "seed": ["a"],
        "solver": ["best", sk.EigenPro], "preprocess": [("scale",), (sk.Impute,)],
    },
    "Polynomial": {"degree": [0], "gamma": [0.0], "offset": [np.inf]},
    "RPCholesky": {"p": [0], "subsample": [4]},
    "RandomCrop": {"shape": [(28,), 28], "padding": [-1], "value": [np.inf]},
    "RandomErasing": {"shape": [(0, 28)], "area": [(0.5, 0.2), (0.5, 1.2)], "aspect": [(0.0, 1.0)]},
    "RandomFourier": {"M": [0]},
    "RandomProjection": {"components": [0, 1 << 24], "density": [0.0, 2.0]},
    "ReLUFeatures": {"seed": [-1]},
    "Resources": {
        "memory": ["much"], "threads": [0], "scheduler": ["slurm", None], "device": ["tpu"], "worker_memory": ["a lot"],
        "worker_threads": [0],
    },
    "Retry": {"timeout": [0.0]},
    "SGD": {"theta": [1.0], "batch": [0], "step": [-1.0], "epochs": [0], "schedule": ["linear"]},
    "SVRG": {
        "ridge": [-1.0], "epochs": [0], "k": [0], "batch": [0], "patience": [0], "step": [0.0],
        "preconditioner": ["nystrom"], "sampling": ["weighted"],
    },
    "Uniform": {"p": [0]},
}  # fmt: skip
"""Values of the right type that are out of range, and words that are no choice."""


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        pytest.param(CLASSES[owner], name, value, id=f"{owner}-{name}-{shown(value)}")
        for owner, parameters in RANGES.items()
        for name, values in parameters.items()
        for value in values
    ],
)
def test_a_value_out_of_range_is_refused_and_named(owner: type, name: str, value: Any):
    required = [p.name for p in inspect.signature(owner).parameters.values() if p.default is p.empty]
    with pytest.raises(UsageError) as error:
        owner(**{each: GIVEN[each] for each in required} | {name: value})
    text = str(error.value)
    assert owner.__name__ in text or name in text
    assert any(form in text for form in (repr(value), str(value), f"{value:,}" if isinstance(value, int) else name)), (
        text
    )
    assert error.value.expected


def test_every_public_class_with_parameters_is_tried():
    assert {"EigenPro", "SGD", "Laplace", "Uniform", "OneHot", "GaussianNoise", "Pipeline", "Retry"} <= CLASSES.keys()
    assert len(list(cases())) > 400


@pytest.mark.parametrize(
    "make",
    [
        lambda: sk.EigenPro(epochs=np.int64(2), step=np.float32(0.5), average=np.bool_(True)),
        lambda: sk.SGD(stages=[(2, 0.5)], ridge=0),
        lambda: sk.OneHot(["a", 1]),
        lambda: sk.augment.RandomCrop([4, 4], np.int32(1)),
        lambda: sk.Falkon(ridge=np.float64(1e-3)),
        lambda: sk.Retry(timeout=3, deadline=np.int64(4)),
        lambda: sk.Uniform(np.uint16(4)),
        lambda: sk.Given([[1.0, 2.0]]),
    ],
)
def test_numbers_of_numpy_whole_numbers_for_floats_and_lists_for_tuples_are_taken(make: Any):
    make()


def test_a_long_value_is_quoted_by_its_first_elements_and_a_text_whole():
    with pytest.raises(UsageError, match=r"The bandwidth is \[0, 1, 2") as caught:
        sk.Laplace(list(range(100_000)))  # type: ignore[arg-type]
    assert len(str(caught.value)) < 400
    with pytest.raises(UsageError, match="x" * 300):
        sk.Laplace("x" * 300)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("base", "missing"),
    [
        (Solver, {"prepare", "setup"}),
        (Iteration, {"init", "weights"}),
        (sk.Centers, {"choose"}),
        (sk.FeatureMap, {"width", "resident_bytes", "basis"}),
    ],
    ids=["Solver", "Iteration", "Centers", "FeatureMap"],
)
def test_a_class_of_the_user_s_own_that_lacks_a_method_is_an_error_that_names_it_before_any_row_is_read(base, missing):
    own = type("Own", (base,), {})
    with pytest.raises(TypeError, match="Own") as caught:
        own()
    assert all(name in str(caught.value) for name in missing)
    whole = type("Whole", (base,), {name: lambda self, *args: None for name in missing})
    assert isinstance(whole(), base)
