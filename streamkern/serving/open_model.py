"""Opening of whatever has a model: a path, a registry, an estimator, or the model itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeAlias, cast

from streamkern.errors import UsageError
from streamkern.models.kernel_machine import KernelMachine
from streamkern.models.partitioned_machine import load_model
from streamkern.sources.remote_store import is_remote
from streamkern.storage.untrusted_files import given_path

AnyModel: TypeAlias = str | os.PathLike[str] | KernelMachine | Any
"""The path of a saved model; a registry, its local directory, or its fsspec URL; a model in memory; or an estimator."""


def open_model(model: AnyModel) -> KernelMachine:
    """Open a saved model, or the champion of a registry; what is a model, or a fitted estimator, has one."""
    given: Any = getattr(model, "model_", model)
    if isinstance(given, KernelMachine):
        return given
    named = isinstance(given, str | os.PathLike)
    if named and not is_remote(os.fspath(given)) and not (Path(given_path(given)) / "versions").is_dir():
        return load_model(given)
    from streamkern.registry.model_registry import Registry

    if named:
        given = Registry(given)
    elif not isinstance(given, Registry):
        raise UsageError(
            f"{type(given).__name__} is not a trained model.",
            where="model",
            expected="the path of a saved model, a registry, a model in memory, or a fitted estimator",
            remedy="fit the estimator first, if it is one",
        )
    return cast(KernelMachine, given.load())
