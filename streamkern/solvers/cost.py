"""What a solver takes, before it runs: operations of each kind, passes and bytes, as functions of the problem's size.

Operations of different kinds run at different rates: a product with a few columns waits for memory where a product of
two large matrices does not. So they are counted apart, and a calibration (``pipeline.calibrate``) prices each kind.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

from streamkern.kernels.base import ROW_TILE, TILE_BYTES

POWER_STEPS = 30
"""Steps of a power iteration that a cost counts: it ends when the eigenvalue stands, after 10 to 60."""


@dataclass(frozen=True)
class Work:
    """Operations by kind; additions and multiplications count one each. Works add, and scale by a number.

    Attributes:
        values: values of the basis in the arithmetic's dtype, on all threads.
        values64: values of the basis in float64.
        panel: operations of products of values with c columns, while the values are in cache.
        gemm: operations of products of large matrices in the arithmetic's dtype.
        gemm64: the same in float64, with Cholesky factors and their inverses by tiles.
        thin: operations of Wᵀ W B for a matrix W in memory and c columns, in the arithmetic's dtype.
        thin64: operations of products of a matrix in memory with c columns, in float64.
        vector64: operations of products of a matrix with one vector, as a power iteration takes them.
        serial64: operations of matrix products in float64 on one thread.
        eigen: operations of symmetric eigen-decompositions in float64 on one thread, 4/3 n³ of size n.
        numbers: numbers that elementwise arithmetic on the host goes over.
    """

    values: float = 0.0
    values64: float = 0.0
    panel: float = 0.0
    gemm: float = 0.0
    gemm64: float = 0.0
    thin: float = 0.0
    thin64: float = 0.0
    vector64: float = 0.0
    serial64: float = 0.0
    eigen: float = 0.0
    numbers: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: float) -> Work:
        return Work(*(times * a for a in astuple(self)))

    __rmul__ = __mul__

    def priced(self, prices: Work) -> float:
        """Σ operations times the price of their kind: seconds, where prices are seconds an operation."""
        return float(sum(a * b for a, b in zip(astuple(self), astuple(prices), strict=True)))

    def flops(self, entry: float) -> float:
        """Floating-point operations in all, ``entry`` of them for a value of the basis."""
        prices = {field.name: 1.0 for field in fields(self)} | {"values": entry, "values64": entry}
        return self.priced(Work(**prices))


@dataclass(frozen=True)
class Size:
    """How large a problem is: what a solver's cost is a function of.

    Attributes:
        n: rows of a pass.
        p: functions of the basis: centers, or features.
        d: features of a row.
        outputs: outputs c.
        itemsize: bytes of a number.
        lanes: blocks of a step.
        slots: blocks at a time.
        memory: bytes the solver may use for its own matrices.
    """

    n: int
    p: int
    d: int
    outputs: int
    itemsize: int = 4
    lanes: int = 4
    slots: int = 1
    memory: int | None = None

    @property
    def entry(self) -> int:
        """Operations for one value of the basis: an inner product and about ten more."""
        return 2 * self.d + 10

    @property
    def panel(self) -> int:
        """Bytes of the panel that one thread evaluates."""
        return min(TILE_BYTES, ROW_TILE * self.p * self.itemsize)


@dataclass(frozen=True)
class Cost:
    """What a solver will take.

    Attributes:
        setup_bytes: held at the peak of the setup.
        resident_bytes: held while training.
        setup: operations before the first pass.
        row: operations a row and pass.
        step: operations on the host a step; for a method of whole passes, a pass.
        batch: rows of a step at most; 0 for a method of whole passes.
        passes: over the training rows, at most.
        likely_batch: rows of a step where the measured spectrum asks for no more; 0 for a method of whole passes.
        reads: times that a pass assembles each row.
        setup_reads: times that the setup assembles each row.
        choice: what was chosen, in a word that results depend on.
        reasons: what was chosen and why, one sentence each.
    """

    setup_bytes: int
    resident_bytes: int
    setup: Work
    row: Work
    step: Work
    batch: int
    passes: int
    likely_batch: int = 0
    reads: float = 1.0
    setup_reads: float = 0.0
    choice: str = ""
    reasons: tuple[str, ...] = ()

    def steps(self, n: int) -> int:
        """Steps of all passes over n rows; passes, for a method of whole passes."""
        return self.passes * (-(-n // self.likely_batch) if self.likely_batch else 1)

    def training(self, n: int) -> Work:
        """Operations of all passes over n rows."""
        return float(self.passes * n) * self.row + float(self.steps(n)) * self.step


KERNEL_TILE = 128
"""Rows of a kernel matrix that are one task, of which a thread has two under way."""


def triangle(size: int, tile: int = KERNEL_TILE) -> float:
    """Values that a symmetric kernel matrix evaluates: rows by tiles, each up to its diagonal."""
    return float(sum((min(a + tile, size) - a) * min(a + tile, size) for a in range(0, size, tile)))


def eigh(size: int) -> float:
    """Operations of a symmetric eigen-decomposition, as far as its reduction to a tridiagonal matrix."""
    return 4.0 / 3.0 * float(size) ** 3
