"""Positive-definite kernels and their tiled evaluation."""

from __future__ import annotations

from typing import Any

from streamkern.errors import ModelFormatError
from streamkern.kernels.base import Basis, Expansion, Kernel
from streamkern.kernels.radial import Gaussian, Laplace

__all__ = ["Basis", "Expansion", "Gaussian", "Kernel", "Laplace", "kernel_from_json"]

_KERNELS: dict[str, type[Kernel]] = {kind.__name__: kind for kind in (Laplace, Gaussian)}


def kernel_from_json(data: dict[str, Any]) -> Kernel:
    """The kernel that ``Kernel.to_json`` described.

    Raises:
        ModelFormatError: the name or its parameters are unknown.
    """
    parameters = {key: value for key, value in data.items() if key != "name"}
    kind = _KERNELS.get(data.get("name", ""))
    if kind is None:
        raise ModelFormatError(
            f"The kernel {data.get('name')!r} is unknown.",
            expected="one of " + ", ".join(sorted(_KERNELS)),
            remedy="load the model with the version of streamkern that saved it",
        )
    try:
        return kind(**parameters)
    except TypeError as error:
        raise ModelFormatError(f"The kernel {kind.__name__} does not take {sorted(parameters)}.") from error
