"""Devices without a GPU: NumPy's arrays, and those of the array API's strictest implementation.

What runs on a GPU is the same code with CuPy's arrays: ``gpu/engine.py`` and ``data/device_assembly.py`` on any device.
``tests/cupy_host.py`` is a stand-in for CuPy itself, with the GPU's loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from streamkern.data.image_augmentation import HorizontalFlip, RandomCrop
from streamkern.engine.elementwise import Loops
from streamkern.errors import NumericalError
from streamkern.gpu.loops import BlockTarget, Halves, Sides
from streamkern.types import Array, IntArray


class PlainLoops(Loops):
    """The reference, with the sums of a step by their definitions."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of the host."""
        return np.empty(shape, dtype)

    def assemble(self, raw: Any, index: Any, out: Any, **how: Any) -> None:
        """Of all rows without an index."""
        super().assemble(raw, np.arange(len(raw)) if index is None else index, out, **how)

    def move_pixels(self, X: Any, ids: Any, copies: Any, *, seed: int, shape: Any, padding: int, value: float,
                    probability: float) -> Any:  # fmt: skip
        """By the augmentations themselves."""
        change = HorizontalFlip(shape, probability) if padding < 0 else RandomCrop(shape, padding, value)
        out = X.copy()
        change.apply(out, ids, copies, seed, self)
        return out

    def mix_rows(self, X: Any, bank: Any, partner: Any, share: Any) -> Any:
        """Mixed in place."""
        X[...] = share.astype(X.dtype) * X + (1 - share).astype(X.dtype) * bank[partner]
        return X

    def split_halves(self, X: Any, centers: bool) -> Halves:
        """Two numbers of 16 bits for each; the factor is the same for all rows."""
        high = X.astype(np.float16)
        low = (X - high.astype(np.float32)).astype(np.float16)
        numbers = np.concatenate([low, high, high] if centers else [high, low, high], axis=1)
        return Halves(numbers, self.row_norms(X), np.ones(len(X), np.float32))

    def values(self, S: Any, sides: Sides) -> None:
        """Kernel values in place of inner products."""
        if sides.x_factors is not None:
            S *= sides.x_factors[:, None] * sides.z_factors
        if sides.profile is not None:
            self.radial(S, sides.x_norms, sides.z_norms, *sides.profile)

    def outputs(self, S: Any, sides: Sides, W: Any, target: BlockTarget | None = None) -> tuple[Any, Any]:
        """K W, or its residual and losses."""
        K = np.array(S)
        self.values(K, sides)
        F = K @ W
        if target is None:
            return F, None
        y, w = target
        F = F - (np.eye(F.shape[1], dtype=F.dtype)[y] if y.ndim == 1 else y)
        losses = np.square(F.astype(np.float64)).sum(axis=1)
        return (F, losses) if w is None else ((F * w[:, None]).astype(S.dtype), w * losses)

    def residual(self, F: Any, target: BlockTarget) -> Any:
        """F − y in place, times the weights; losses."""
        y, w = target
        F -= np.eye(F.shape[1], dtype=F.dtype)[y] if y.ndim == 1 else y
        losses = np.square(F.astype(np.float64)).sum(axis=1)
        if w is None:
            return losses
        F *= w[:, None].astype(F.dtype)
        return w * losses

    def pulled(self, S: Any, sides: Sides, r: Any, into: Any = None) -> Any:
        """Kᵀ r."""
        K = np.array(S)
        self.values(K, sides)
        g = (K.T @ r).astype(S.dtype)
        return g if into is None else into + g

    def project(self, W: Any, p: int, tail: int, g: Any) -> Any:  # type: ignore[override]
        """LᵀL g − FᵀF g."""
        return W[:p].T @ (W[:p] @ g) - W[p:].T @ (W[p:] @ g)

    def moved(
        self, ahead: Any, before: Any, mean: Any, g: Any, rate: float, gamma: float, second: float, share: float
    ) -> tuple[Any, Any, Any]:
        """A step with momentum."""
        move = g.dtype.type(rate) * g
        alpha = ahead - move
        there = alpha + g.dtype.type(gamma) * (alpha - before) + g.dtype.type(second) * move
        return alpha, there, mean + share * (alpha - mean)


class HostDevice:
    """A device whose arrays are NumPy's, in this process.

    Args:
        budget: bytes it says it has.
        splits: whether products are of halves.
    """

    name = "host"
    measured = True
    peak_bytes = 0  # nobody counts

    def __init__(self, budget: int = 1 << 30, splits: bool = False) -> None:
        self.loops: Any = PlainLoops()
        self.budget, self.splits = budget, splits

    def describe(self) -> str:
        """Its name."""
        return self.name

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Nothing is waited for."""
        yield

    def put(self, array: Any, dtype: Any = None) -> Any:
        """A copy of what is not the device's."""
        return np.array(array, dtype=dtype, order="C")

    def take(self, array: Any) -> Array:
        """A copy."""
        return np.array(array)

    def number(self, parts: Sequence[Any]) -> float:
        """The sum."""
        return float(sum(self.take(part).sum() for part in parts))

    def half_product(self, A: Any, B: Any) -> Any:
        """A Bᵀ."""
        return A.astype(np.float32) @ B.astype(np.float32).T

    def rows(
        self,
        raw: Any,
        index: IntArray,
        *,
        scale: ArrayLike,
        offset: ArrayLike,
        ids: IntArray,
        copies: IntArray,
        noise: tuple[int, float] | None = None,
        then: Sequence[Any] = (),
    ) -> Any:
        """Rows by the reference."""
        X = np.empty((len(index), raw.shape[1]), np.float32)
        self.loops.assemble(np.asarray(raw), index, X, scale=scale, offset=offset)
        if noise is not None:
            self.loops.add_noise(X, ids, copies=copies, seed=noise[0], sigma=noise[1])
        for change in then:
            X = change(self.loops, X, ids, copies)
        return X

    def inverse_factor(self, A: Any, dtype: Any) -> Any:
        """By LAPACK.

        Raises:
            NumericalError: A is not positive definite.
        """
        try:
            L = scipy.linalg.cholesky(A, lower=True)
        except np.linalg.LinAlgError as error:
            raise NumericalError(str(error), where=self.name, expected="a positive definite matrix") from error
        return scipy.linalg.solve_triangular(L, np.eye(len(L)), lower=True).astype(dtype)


class StrictDevice(HostDevice):
    """Arrays of array-api-strict on a device of its own: a NumPy array is not taken for one, nor one for NumPy's."""

    name = "strict"

    def __init__(self) -> None:
        super().__init__()
        import array_api_strict  # of the extra `test`

        self.xp: Any = array_api_strict
        self.place = array_api_strict.Device("device1")
        self.loops = _StrictLoops(self)

    def put(self, array: Any, dtype: Any = None) -> Any:
        """To the device, by name only."""
        if isinstance(array, self.xp._array_object.Array):
            assert array.device == self.place
            return array
        return self.xp.asarray(np.array(array, dtype=dtype, order="C"), device=self.place)

    def take(self, array: Any) -> Array:
        """From the device, by name only."""
        assert array.device == self.place
        return np.array(np.from_dlpack(array.to_device(self.xp.Device("CPU_DEVICE"))))

    def rows(self, raw: Any, index: IntArray, *, scale: Any, offset: Any, then: Any = (), **how: Any) -> Any:
        """Made on the host and sent."""
        then = [partial(change.func, *map(self._down, change.args)) for change in then]
        raw, scale, offset = map(self._down, (raw, scale, offset))
        return self.put(HostDevice().rows(raw, index, scale=scale, offset=offset, then=then, **how))

    def _down(self, value: Any) -> Any:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self._down, value))
        return self.take(value) if isinstance(value, self.xp._array_object.Array) else value

    def inverse_factor(self, A: Any, dtype: Any) -> Any:
        """On the host and sent."""
        return self.put(super().inverse_factor(self.take(A), dtype))


class _StrictLoops(PlainLoops):
    """Loops through the host: what surrounds them is tested."""

    def __init__(self, device: StrictDevice) -> None:
        self.device = device

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.device.put(np.empty(shape, dtype))

    def _through(self, name: str, args: Any) -> Any:
        def there(value: Any) -> Any:
            if isinstance(value, tuple) and hasattr(value, "_fields"):
                return type(value)(*map(there, value))
            return self.device.take(value) if hasattr(value, "device") else value

        def back(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(back, value))
            return self.device.put(value) if isinstance(value, np.ndarray) else value

        taken = [there(arg) for arg in args]
        result = back(getattr(PlainLoops, name)(PlainLoops(), *taken))
        if result is None:  # in place
            at = {"values": 0, "radial": 0, "manhattan": 2, "signed_sums": 3}[name]
            args[at][...] = self.device.put(taken[at])
        return result

    def row_norms(self, X: Any) -> Any:
        return self._through("row_norms", (X,))

    def radial(self, *args: Any) -> None:
        self._through("radial", args)

    def values(self, *args: Any) -> None:
        self._through("values", args)

    def signed_sums(self, *args: Any) -> None:
        self._through("signed_sums", args)

    def manhattan(self, *args: Any) -> None:
        self._through("manhattan", args)

    def outputs(self, *args: Any) -> Any:
        return self._through("outputs", args)

    def residual(self, F: Any, target: BlockTarget) -> Any:
        taken = self.device.take(F)
        losses = PlainLoops().residual(
            taken, BlockTarget(*(None if v is None else self.device.take(v) for v in target))
        )
        F[...] = self.device.put(taken)
        return self.device.put(losses)

    def pulled(self, *args: Any) -> Any:
        return self._through("pulled", args)

    def project(self, *args: Any) -> Any:
        return self._through("project", args)

    def moved(self, *args: Any) -> Any:
        return self._through("moved", args)
