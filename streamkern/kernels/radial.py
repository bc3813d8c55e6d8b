"""Radial kernels: functions of the distance r = ‖x − z‖, in the L2 norm or, for two of them, in the L1 norm."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np

from streamkern.engine.elementwise import Loops, Profile
from streamkern.errors import UsageError
from streamkern.kernels.base import Kernel, set_integer, set_number
from streamkern.kernels.derivatives import Slopes, profile_slopes, slopes_of_profile
from streamkern.types import Array
from streamkern.user_code_digest import exception_text, user_code_location

MEDIAN: Literal["median"] = "median"
OPEN: Literal["auto"] = "auto"


@dataclass(frozen=True)
class Radial(Kernel):
    """A kernel of the distance with one length scale σ, in the units of the features.

    Args:
        bandwidth: σ > 0; or ``"median"``, for the median distance of two training rows after preprocessing, which
            training measures on 1,000 of them. The trained model has the number. A kernel that is given by its name
            has ``"auto"``: a search on held-out rows chooses σ, and the norm.

    Raises:
        UsageError: the bandwidth is neither a positive finite number nor ``"median"``; or the kernel is evaluated
            before training has measured the median.
    """

    bandwidth: float | Literal["median", "auto"] = 1.0

    def __post_init__(self) -> None:
        given: Any = self.bandwidth
        if isinstance(given, str):
            if given in (MEDIAN, OPEN):
                return
            raise UsageError(
                f"The bandwidth is {given!r}.",
                where=f"{type(self).__name__}(bandwidth=...)",
                expected='a positive finite number, or "median"',
                remedy='give a number in the units of the rows, or "median"',
            )
        set_number(self, "bandwidth", positive=True)
        if not 1e-100 <= self.sigma <= 1e100:
            raise UsageError(
                f"The bandwidth is {given!r}.",
                where=f"{type(self).__name__}(bandwidth=...)",
                expected="a number whose square float64 can represent: 1e-100 to 1e100",
                remedy="scale the rows, or standardise them",
            )

    @property
    def needs_median(self) -> bool:
        return self.bandwidth == MEDIAN

    @property
    def is_open(self) -> bool:
        return self.bandwidth == OPEN

    def at_median(self, distance: float) -> Self:
        return replace(self, bandwidth=distance) if isinstance(self.bandwidth, str) else self

    @property
    def sigma(self) -> float:
        """Return σ as a number.

        Raises:
            UsageError: the bandwidth is not yet known.
        """
        if isinstance(self.bandwidth, str):
            raise UsageError(
                "The bandwidth depends on training rows, and none have been read.",
                where=repr(self),
                expected="a number, outside of training",
                remedy="give the number, or take the kernel of a trained model: model.kernel",
            )
        return self.bandwidth

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name of the profile, one of ``RADIAL_KINDS``."""

    @property
    def translation_invariant(self) -> bool:
        return True

    @property
    def profile(self) -> tuple[str, Mapping[str, float]]:
        return self.kind, {**vars(self), "bandwidth": self.sigma}

    def apply(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> None:
        loops.radial(S, x_norms, z_norms, *self.profile)

    def slopes(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> Slopes:
        return slopes_of_profile(S, x_norms, z_norms, *self.profile)

    def diag(self, X: Array) -> Array:
        return np.ones(len(X), dtype=X.dtype if X.dtype.kind == "f" else np.float64)


@dataclass(frozen=True, repr=False)
class _Normed(Radial):
    norm: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        set_integer(self, "norm", 1, 2)
        if self.is_open and self.norm == 1:
            raise UsageError(
                "The norm is 1, and the bandwidth is left to a search, which tries both norms.",
                where=f"{type(self).__name__}(norm=...)",
                expected='a number as bandwidth, or "median"',
                remedy='give the bandwidth "median"; or leave the norm out',
            )

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if (name, value) != ("norm", 2))
        return f"{type(self).__name__}({given})"

    def to_json(self) -> dict[str, Any]:
        """Leave out ``norm`` unless it is 1, to keep the fingerprints of earlier releases."""
        found = super().to_json()
        return {name: value for name, value in found.items() if (name, value) != ("norm", 2)}


@dataclass(frozen=True, repr=False)
class Laplace(_Normed):
    """k(x, z) = exp(−‖x − z‖/σ).

    Args:
        bandwidth: σ > 0, or ``"median"``: the median distance between training rows in the norm of the kernel.
        norm: 2 for the Euclidean distance, or 1 for Σ_k |x_k − z_k|. With 1, the kernel is a product of kernels of one
            feature each. This suits tables with columns of different meanings. It takes about three times the
            arithmetic of norm 2.

    Raises:
        UsageError: the bandwidth is neither positive and finite nor ``"median"``, or the norm is neither 1 nor 2.
    """

    kind = "laplace"


@dataclass(frozen=True)
class Gaussian(Radial):
    """k(x, z) = exp(−‖x − z‖²/(2σ²)).

    Args:
        bandwidth: σ > 0, or ``"median"``: the median distance between training rows.
    """

    kind = "gaussian"


@dataclass(frozen=True)
class Cauchy(Radial):
    """k(x, z) = 1/(1 + ‖x − z‖²/σ²).

    Args:
        bandwidth: σ > 0, or ``"median"``: the median distance between training rows.
    """

    kind = "cauchy"


@dataclass(frozen=True)
class Matern(Radial):
    """Matérn kernel with smoothness ν. Laplace has ν = 1/2, and the Gaussian ν = ∞.

    For ν = 3/2, k(x, z) = (1 + t) exp(−t) with t = √3 ‖x − z‖/σ. For ν = 5/2, k(x, z) = (1 + t + t²/3) exp(−t) with t =
    √5 ‖x − z‖/σ (Rasmussen & Williams 2006, eq. 4.17).

    Args:
        bandwidth: σ > 0, or ``"median"``: the median distance between training rows.
        nu: ν, 1.5 or 2.5.

    Raises:
        UsageError: the bandwidth is neither positive and finite nor ``"median"``, or ν is neither 1.5 nor 2.5.
    """

    nu: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        set_number(self, "nu", positive=True)
        if self.nu not in (1.5, 2.5):
            raise UsageError(
                f"The smoothness is {self.nu}.",
                where="Matern(nu=...)",
                expected="1.5 or 2.5",
                remedy="use Laplace for 0.5 and Gaussian for infinity",
            )

    @property
    def kind(self) -> str:
        return "matern32" if self.nu == 1.5 else "matern52"


@dataclass(frozen=True, repr=False)
class ExponentialPower(_Normed):
    """k(x, z) = exp(−(‖x − z‖/σ)^γ): Laplace for γ = 1; a Gaussian of bandwidth σ/√2 for γ = 2.

    Args:
        bandwidth: σ > 0, or ``"median"``: the median distance between training rows in the norm of the kernel.
        exponent: γ > 0, at most ``norm``. For larger γ, the function is not positive definite.
        norm: 2 for the Euclidean distance ‖x − z‖, or 1 for Σ_k |x_k − z_k| in its place.

    Raises:
        UsageError: the bandwidth is neither positive and finite nor ``"median"``, or γ or the norm is out of range.
    """

    exponent: float = 1.0

    kind = "exponential_power"

    def __post_init__(self) -> None:
        super().__post_init__()
        set_number(self, "exponent", positive=True)
        if self.exponent > self.norm:
            raise UsageError(
                f"The exponent is {self.exponent}.",
                where="ExponentialPower(exponent=...)",
                expected=f"at most {self.norm}, the norm",
            )


@dataclass(frozen=True)
class UserProfile(Kernel):
    """Base class of kernels of a user's function."""

    function: Profile

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(f"The function is {self.function!r}.", where=type(self).__name__, expected="a function")

    @property
    def on_device(self) -> bool:
        return False

    def to_json(self) -> dict[str, Any]:
        """Return the function's module and name; ``UsageError`` if no other process can import it."""
        return {"name": type(self).__name__, "function": name_of(self.function)}


@dataclass(frozen=True)
class RadialProfile(UserProfile):
    """k(x, z) = g(‖x − z‖²) for a user's NumPy function g. The user must ensure that k is positive definite.

    A model with such a kernel is saved with the name of g. ``load_model`` does not import g, because it executes no
    code: pass the kernel to it.

    Args:
        function: g, from squared distances to values, for arrays of any shape, float32 or float64. It must work
            elementwise, because it is called on parts of a matrix. To be saved, or sent to another process, it must be
            defined at the top level of a module.

    Raises:
        UsageError: g cannot be called.
    """

    @property
    def translation_invariant(self) -> bool:
        return True

    def apply(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> None:
        loops.radial(S, x_norms, z_norms, lambda squared: profile_values(self, squared), {})

    def slopes(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> Slopes:
        return profile_slopes(lambda squared: profile_values(self, squared), S, x_norms, z_norms)

    def diag(self, X: Array) -> Array:
        dtype = X.dtype if X.dtype.kind == "f" else np.dtype(np.float64)
        return np.full(len(X), profile_values(self, np.zeros(1, dtype))[0], dtype)


def profile_values(kernel: Any, values: Array) -> Array:
    """Return the values of a user's profile after checking that they are numbers of this shape."""
    try:
        made = np.asarray(kernel.function(values))
    except Exception as error:  # the user's code may raise anything
        raise UsageError(
            f"The function of {type(kernel).__name__} raised {exception_text(error)}",
            where=user_code_location(error) or type(kernel).__name__,
            expected="a function that works element by element, on arrays of any shape",
            remedy="correct the line",
        ) from error
    if made.shape != values.shape or made.dtype.kind not in "fiub":
        raise UsageError(
            f"The function of {type(kernel).__name__} returned {made.dtype} of shape {made.shape}.",
            where=getattr(kernel.function, "__qualname__", type(kernel).__name__),
            expected=f"numbers of shape {values.shape}, as the input",
        )
    return made


def name_of(function: Any) -> str:
    """Return ``module:qualified.name`` of a function defined at the top level of a module."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<none>")
    if module is None or "<" in name:
        raise UsageError(
            f"A kernel's function {name!r} cannot be found by name, so it cannot be saved.",
            where=str(module),
            expected="a function at the top level of a module",
            remedy="define it there with def",
        )
    return f"{module}:{name}"
