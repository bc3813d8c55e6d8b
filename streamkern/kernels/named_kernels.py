"""Kernels by name, for saved models and for users."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from streamkern.errors import ModelFormatError, UsageError, quoted
from streamkern.kernels.base import Kernel, Product, Scaled, Sum
from streamkern.kernels.dot_product import NTK, ArcCosine, DotProfile, Linear, Polynomial
from streamkern.kernels.radial import (
    OPEN,
    Cauchy,
    ExponentialPower,
    Gaussian,
    Laplace,
    Matern,
    RadialProfile,
)

_KERNELS: dict[str, type[Kernel]] = {
    kind.__name__: kind
    for kind in (
        *(Laplace, Gaussian, Matern, Cauchy, ExponentialPower),
        *(Linear, Polynomial, ArcCosine, NTK),
        *(Sum, Product, Scaled),
    )
}
_USERS = {kind.__name__ for kind in (RadialProfile, DotProfile)}

RADIAL_KERNELS: dict[str, Kernel] = {
    "cauchy": Cauchy(OPEN),
    "gaussian": Gaussian(OPEN),
    "laplace": Laplace(OPEN),
    "matern32": Matern(OPEN, 1.5),
    "matern52": Matern(OPEN, 2.5),
}
"""Radial kernels by name, whose bandwidth is left to a search."""

NAMED_KERNELS: dict[str, Kernel] = RADIAL_KERNELS | {
    "laplacian": Laplace(OPEN),
    "rbf": Gaussian(OPEN),
    "linear": Linear(),
    "polynomial": Polynomial(),
    "arccosine": ArcCosine(),
    "ntk": NTK(),
}
"""Kernels that can be given by name; ``laplacian`` and ``rbf`` are scikit-learn's names."""


def is_open(kernel: Kernel | None) -> bool:
    """Return True if the rows choose the bandwidth: of no kernel, or of one that is given by name alone."""
    return kernel is None or kernel.is_open


def named_kernel(given: Any, where: str) -> Kernel | None:
    """Return the kernel of a parameter, which may be a kernel or its name; None for None and ``"auto"``."""
    if isinstance(given, str) and given.lower() == "auto":
        return None
    if isinstance(given, str) and given.lower() in NAMED_KERNELS:
        return NAMED_KERNELS[given.lower()]
    if given is not None and not isinstance(given, Kernel):
        close = (
            difflib.get_close_matches(given.lower(), ("auto", *NAMED_KERNELS), n=1) if isinstance(given, str) else []
        )
        raise UsageError(
            f"kernel is {given!r}" + (f"; did you mean {close[0]!r}?" if close else "."),
            where=where,
            expected='a kernel such as sk.Laplace(10) or sk.Laplace("median"), or one of the names '
            + ", ".join(("auto", *NAMED_KERNELS)),
        )
    return given


def kernel_from_json(data: dict[str, Any]) -> Kernel:
    """Make the kernel that ``to_json`` described, executing nothing; ``ModelFormatError`` if it is unknown."""
    max_parts = 1000  # most parts of a saved kernel, since each is evaluated for every row
    if (parts := _parts(data)) > max_parts:
        raise ModelFormatError(
            f"The kernel is combined of {parts:,} kernels.",
            where="kernel",
            expected=f"at most {max_parts:,} in all",
            remedy="restore the model from a copy",
        )
    name = str(data.get("name"))
    if name in _USERS:
        raise ModelFormatError(
            f"The kernel is the user's function {data.get('function')!r}, which loading does not import.",
            where="kernel",
            expected="the kernel itself",
            remedy="give the kernel: load_model(path, kernel=...)",
        )
    made: Kernel = restored("kernel", _KERNELS, name, {k: _nested(value) for k, value in data.items() if k != "name"})
    return made


def restored(what: str, kinds: Mapping[str, Any], name: str, parameters: dict[str, Any]) -> Any:
    """Return an object from a saved model, given the name of its class and its constructor's arguments."""
    if name not in kinds:
        raise ModelFormatError(
            f"The {what} {name!r} is unknown.",
            where=what,
            expected="one of " + ", ".join(sorted(kinds)),
            remedy="load the model with the version of streamkern that saved it",
        )
    try:
        return kinds[name](**parameters)
    except (TypeError, UsageError) as error:
        raise ModelFormatError(
            f"The {what} {name} does not take {quoted(parameters)}.",
            where=what,
            expected="the parameters that this release knows",
            remedy="load the model with the version of streamkern that saved it",
        ) from error


def _parts(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_parts, value.values()))
    return sum(map(_parts, value)) if isinstance(value, list) else 0


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return kernel_from_json(value)
    return tuple(map(_nested, value)) if isinstance(value, list) else value
