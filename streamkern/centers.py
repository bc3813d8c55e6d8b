"""Choices of the centers of a kernel machine.

k-means++ and randomly pivoted Cholesky draw rows one after another, each with a probability that depends on those
before. Here both draw many candidates at a time and reject some of them, which gives the same distribution at the speed
of matrix products (Epperly, Tropp, Webber 2024, "Embrace rejection", section 2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Block, Scan
from streamkern.defaults import (
    KMEANS_ROWS_PER_CENTER,
    MAX_KMEANS_CANDIDATES,
    MIN_KMEANS_DECREASE,
    MIN_KMEANS_ROWS,
    SINGULAR_RESIDUAL,
)
from streamkern.engine.operation_counts import Operations
from streamkern.engine.packed_triangle import cuts
from streamkern.errors import DataError, UsageError, require_counts
from streamkern.execute.base import Executor, Parts
from streamkern.kernels import Expansion, Kernel, StoredCenters
from streamkern.kernels.base import require_bandwidth
from streamkern.kernels.stored_centers import tiles_of_blocks
from streamkern.rng import generator
from streamkern.storage.serialize import serializable
from streamkern.sweep import ScanWork, gather, sweep
from streamkern.types import Array, IntArray, Parameters

_TASK_ROWS = 1024  # rows of a task on the host


@serializable
class CenterSet(NamedTuple):
    """The chosen centers.

    Attributes:
        Z: centers, shape (p, d), scaled like the rows of the dataset; in memory, or where the rows are stored.
        ids: ids of the rows that are centers, shape (p,); None if centers are not rows.
    """

    Z: Array | StoredCenters
    ids: IntArray | None


class Centers(Parameters, ABC):
    """A way to choose the p centers z_j of a model Σ_j α_j k(x, z_j). By default, centers are kept in memory.

    Attributes:
        p: number of centers.
        stored: whether the centers stay where the rows are stored, instead of in memory.
    """

    p: int
    stored = False

    def count(self, dataset: Dataset) -> int:
        """Return the number p of centers for this dataset."""
        return self.p

    @abstractmethod
    def choose(self, dataset: Dataset, executor: Executor, dtype: np.dtype[Any]) -> CenterSet:
        """Return the centers, the same on any threads or workers. The size of stored chunks changes only rounding."""

    def setup_bytes(self, dataset: Dataset, itemsize: int, slots: int) -> int:
        """Return the peak memory of ``choose`` in bytes, without the centers and the buffers for reading rows."""
        return 0

    def operations(self, dataset: Dataset) -> Operations:
        """Return an upper bound of the arithmetic operations of ``choose``, by kind."""
        return Operations()


@dataclass(frozen=True)
class Uniform(Centers):
    """p stored rows, not augmented, drawn without replacement in one pass: the rows with the smallest hashes.

    Args:
        p: number of centers.
        seed: seed of the draw.

    Raises:
        UsageError: p is below 1.
    """

    p: int
    seed: int = 0

    def __post_init__(self) -> None:
        require_counts(self, p=1)

    def choose(self, dataset: Dataset, executor: Executor, dtype: np.dtype[Any]) -> CenterSet:
        """Return the drawn rows in random order, so that the first s of them are a uniform draw too.

        Raises:
            DataError: the dataset has fewer than p rows.
        """
        ids = dataset.draw(self.p, self.seed)
        Z, _ = gather(executor, Assembly(dataset.plain(), dtype=dtype), ids)
        return CenterSet(Z, ids)


@dataclass(frozen=True, eq=False)
class DatasetCenters:
    """Rows of a dataset as centers, read again whenever needed; ``mean_row`` is their mean, (d,) float64."""

    assembly: Assembly
    mean_row: Array

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.assembly.dataset.n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.assembly.dtype

    def __len__(self) -> int:
        return self.assembly.dataset.base_rows

    def tiles(self) -> Iterator[tuple[slice, Array]]:
        scan = Scan(self.assembly)
        return tiles_of_blocks(scan.block((i,)).X for i in range(len(scan)))


@dataclass(frozen=True)
class AllRows(Centers):
    """Every training row is a center. Only the solver ``EigenPro2`` supports this.

    Rows are read where they are stored, and need not fit in memory. A saved model has a copy of the rows in its
    directory, and reads rows from this copy.
    """

    stored = True

    def count(self, dataset: Dataset) -> int:
        return dataset.base_rows

    def choose(self, dataset: Dataset, executor: Executor, dtype: np.dtype[Any]) -> CenterSet:
        """Return all rows in stored order, and their mean, which one pass computes."""
        plain = Assembly(dataset.plain(), dtype=dtype)
        total, n = sweep(executor, ScanWork(Scan(plain), _row_sum))
        return CenterSet(DatasetCenters(plain, total / n), np.sort(dataset.draw(dataset.base_rows)))

    def setup_bytes(self, dataset: Dataset, itemsize: int, slots: int) -> int:
        """Return the bytes of the ids of the rows and of their hashes."""
        return 3 * 8 * dataset.base_rows


def _row_sum(block: Block, state: Any) -> Parts:
    return block.X.sum(axis=0, dtype=np.float64), len(block.X)


@dataclass(frozen=True, eq=False)
class Given(Centers):
    """Centers from an array.

    Args:
        Z: the centers, shape (p, d), in the units of the dataset's scaled rows.
    """

    Z: Array

    def __post_init__(self) -> None:
        if np.ndim(self.Z) != 2:
            raise UsageError(
                f"Z is {type(self.Z).__name__} of {np.ndim(self.Z)} dimensions.",
                where="Given(Z)",
                expected="an array of shape (p, d)",
            )

    def count(self, dataset: Dataset) -> int:
        return len(self.Z)

    def choose(self, dataset: Dataset, executor: Executor, dtype: np.dtype[Any]) -> CenterSet:
        """Return the array after a check.

        Raises:
            DataError: the number of features differs, there is no row, or a value is not finite.
        """
        given = np.asarray(self.Z)
        if np.any(dataset.origin) and given.shape[-1:] == (dataset.n_features,):
            given = given.astype(np.float64) - dataset.origin
        Z = np.array(given, dtype=dtype, order="C")
        if Z.ndim != 2 or not len(Z) or Z.shape[1] != dataset.n_features or not np.isfinite(Z).all():
            raise DataError(
                f"The given centers have shape {np.shape(self.Z)} or are not finite.",
                where="Given(Z)",
                expected=f"finite numbers of shape (p, {dataset.n_features})",
                remedy="give one row a center, of the width of the data",
            )
        return CenterSet(Z, None)

    def to_json(self) -> dict[str, Any]:
        return {"name": "Given", "sha256": sha256(np.ascontiguousarray(self.Z, dtype=np.float64).tobytes()).hexdigest()}


@dataclass(frozen=True)
class KMeans(Centers):
    """Means of p clusters: k-means++ on a sample (Arthur & Vassilvitskii 2007), then iterations of Lloyd's algorithm.

    An iteration reads the rows once, without augmentation. It moves each center to the mean of the rows nearest to it.
    If an iteration is limited to ``batch`` rows, it reads a new uniform sample. A center is then the mean of its rows
    in all iterations (Sculley 2010, "Web-scale k-means clustering").

    The means are the same, bit for bit, for any number of threads or workers. If the rows are stored in chunks of
    another size, the rows are added in another order. The means are then rounded differently, and a row midway between
    two centers may move to the other center.

    While the sample of max(10 p, 10,000) rows is read, three copies of it are in memory. Then an iteration adds up the
    rows of each center. For d features, an array of these p sums takes 8 p (d + 1) bytes. On s threads or workers, at
    most 6 s + 7 such arrays are in memory. Distances take 16 MB for each thread or worker.

    Args:
        p: number of centers.
        iterations: largest number of iterations. If each iteration reads all rows, they stop earlier when the sum of
            squared distances falls by less than 0.5%.
        batch: number of rows of an iteration. None for max(256 p, 65,536), or all rows if there are fewer.
        seed: seed of the draws and of the order of the centers.

    Raises:
        UsageError: p or batch is below 1, or iterations below 0.
    """

    p: int
    iterations: int = 10
    batch: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_counts(self, p=1, iterations=0, batch=1)

    def choose(self, dataset: Dataset, executor: Executor, dtype: np.dtype[Any]) -> CenterSet:
        """Return the means in random order, so that the first s of them are a uniform draw.

        Raises:
            DataError: the sample has fewer than p distinct rows, or a row is not finite.
        """
        data, rng = dataset.plain(), generator("k-means", self.seed)
        _, X = _distinct_rows(data, executor, dtype, _candidate_rows(self.p), self.p, self.seed)
        center = X.mean(axis=0, dtype=np.float64).astype(dtype)  # float32 distances need centred rows
        X -= center
        Z = X[rng.permutation(_kmeans_plus_plus(X, self.p, executor, rng))].astype(np.float64)
        del X
        batch = self.swept(data)
        whole = batch == data.base_rows
        seen, before = np.zeros(self.p), np.inf
        for iteration in range(self.iterations):
            rows = data if whole else data.sample(batch, self.seed + iteration)
            work = ScanWork(Scan(Assembly(rows, center=center, dtype=dtype)), _add_to_nearest)
            counts, sums, loss = sweep(executor, work, Z.astype(dtype))
            if whole:
                seen[:] = 0  # Lloyd's algorithm forgets
            had = counts > 0
            Z[had] *= seen[had, None]
            Z[had] += sums[had]
            seen += counts
            Z[had] /= seen[had, None]
            if whole and not had.all():
                Z[~had] = self._fresh(data, executor, Z[had].astype(dtype), center, iteration)
            elif whole and loss >= (1 - MIN_KMEANS_DECREASE) * before:
                break
            before = loss
        return CenterSet((Z + center).astype(dtype), None)

    def swept(self, dataset: Dataset) -> int:
        """Return the number of rows of an iteration."""
        return min(dataset.base_rows, self.batch or max(KMEANS_ROWS_PER_CENTER * self.p, MIN_KMEANS_ROWS))

    def operations(self, dataset: Dataset) -> Operations:
        return Operations(values=float(self.iterations) * self.swept(dataset) * self.p)

    def _fresh(self, data: Dataset, executor: Executor, Z: Array, center: Array, iteration: int) -> Array:
        """For centers without rows, k-means++ goes on from the others."""
        k, rng = self.p - len(Z), generator("k-means again", self.seed, iteration)
        ids = data.draw(min(data.base_rows, _candidate_rows(self.p)), self.seed, iteration)
        X, _ = gather(executor, Assembly(data, center=center, dtype=Z.dtype), ids)
        return X[_kmeans_plus_plus(X, k, executor, rng, Z)]

    def setup_bytes(self, dataset: Dataset, itemsize: int, slots: int) -> int:
        """Return the peak memory in bytes: three copies of the sample, or the sums and distances of an iteration."""
        d = dataset.n_features
        sample = 3 * min(dataset.base_rows, _candidate_rows(self.p)) * d * itemsize
        sums = (6 * slots + 7) * self.p * (d + 1) * 8 + 3 * self.p * d * 8
        return max(sample, sums) + slots * (16 << 20)


@dataclass(frozen=True)
class RPCholesky(Centers):
    """Rows chosen by randomly pivoted Cholesky (Chen, Epperly, Tropp, Webber 2023, alg. 2.1).

    For the centers Z so far, row x is the next center with a probability proportional to k(x, x) − k(x, Z) K(Z, Z)⁻¹
    k(Z, x). To choose p centers from s rows of d features takes s p² + s p d multiply-adds, and s (p + 3 d) numbers in
    memory.

    Args:
        p: number of centers.
        kernel: the kernel k of the model.
        subsample: number s of rows, drawn uniformly, to choose from; by default max(10 p, 10,000), or all rows if there
            are fewer.
        seed: seed of the draws.

    Raises:
        UsageError: p is below 1, or the subsample below p; or a search is to choose the bandwidth.
    """

    p: int
    kernel: Kernel
    subsample: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_counts(self, p=1, subsample=1)
        require_bandwidth(self.kernel, "RPCholesky(kernel=...)")
        if self.subsample is not None and self.subsample < self.p:
            raise UsageError(
                f"{self.p} centers are to be drawn from {self.subsample} rows.",
                where="RPCholesky(subsample=...)",
                expected=f"at least {self.p}",
            )

    def choose(self, dataset: Dataset, executor: Executor, dtype: np.dtype[Any]) -> CenterSet:
        """Return the drawn rows, all distinct, in the order of the draws.

        If the rank of the kernel matrix, to working precision, is below p, the remaining rows are a uniform draw.

        Raises:
            DataError: the subsample has fewer than p distinct rows, or a row is not finite.
        """
        data = dataset.plain()
        ids, X = _distinct_rows(data, executor, dtype, self._drawn(data), self.p, self.seed)
        pivots = _pivots(X, self.kernel, self.p, executor, generator("pivots", self.seed))
        return CenterSet(X[pivots], ids[pivots])

    def operations(self, dataset: Dataset) -> Operations:
        """Return how many operations the choice takes, for kernel values and for the Cholesky factor."""
        rows = float(self._drawn(dataset))
        return Operations(values=rows * self.p, gemm=rows * self.p**2)

    def setup_bytes(self, dataset: Dataset, itemsize: int, slots: int) -> int:
        """Return the peak memory in bytes: the Cholesky factor and three copies of the subsample."""
        return self._drawn(dataset) * (self.p + 3 * dataset.n_features) * itemsize

    def _drawn(self, dataset: Dataset) -> int:
        return min(dataset.base_rows, self.subsample or _candidate_rows(self.p))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "name": "RPCholesky", "kernel": self.kernel.to_json()}


def _candidate_rows(p: int) -> int:
    return max(10 * p, 10_000)


def _distinct_rows(
    data: Dataset, executor: Executor, dtype: np.dtype[Any], size: int, p: int, seed: int
) -> tuple[IntArray, Array]:
    """A uniform draw of at most ``size`` rows without those that repeat an earlier one: ids and rows."""
    ids = data.draw(max(p, min(data.base_rows, size)), seed)
    X, _ = gather(executor, Assembly(data, dtype=dtype), ids)
    finite = np.isfinite(X).all(axis=1)
    if not finite.all():
        raise DataError(
            "A row has a value that is not finite.",
            where=f"row {ids[finite.argmin()]}",
            expected="finite features",
            remedy="fill or leave out the rows with missing values",
        )
    first: dict[bytes, int] = {}
    for i, row in enumerate(X):
        first.setdefault(sha256(row + 0).digest(), i)  # + 0: -0.0 is 0.0
    if len(first) < p:
        raise DataError(
            f"A draw of {len(X):,} rows has {len(first):,} distinct ones, and {p:,} centers are requested.",
            where="centers",
            expected=f"at least {p:,} distinct rows",
            remedy="ask for fewer centers",
        )
    if len(first) < len(X):
        keep = np.fromiter(first.values(), dtype=np.int64)
        ids, X = ids[keep], X[keep]
    return ids, X


def _nearest(X: Array, Z: Array) -> tuple[IntArray, Array]:
    """The nearest row of Z, shape (b,), and the squared distance to it, shape (b,), of each row of X."""
    half = np.einsum("ij,ij->i", Z, Z) / 2
    tile_numbers = 1 << 22  # distances held at once by one thread
    size = int(np.clip(tile_numbers // len(Z), 1, max(1, len(X))))
    S = np.empty((size, len(Z)), dtype=X.dtype)
    labels = np.empty(len(X), dtype=np.int64)
    squares = np.einsum("ij,ij->i", X, X)
    for rows in cuts(len(X), size):
        tile = S[: rows.stop - rows.start]
        np.matmul(X[rows], Z.T, out=tile)
        tile -= half  # ‖x − z‖² = ‖x‖² − 2 (⟨x, z⟩ − ‖z‖²/2)
        labels[rows] = tile.argmax(axis=1)
        squares[rows] -= 2 * np.take_along_axis(tile, labels[rows, None], axis=1)[:, 0]
    return labels, np.maximum(squares, 0, out=squares)


def _add_to_nearest(block: Block, Z: Array) -> Parts:
    """Rows nearest to each center: their number (p,), their sum (p, d) in float64, and the sum of squared distances."""
    norms = np.einsum("ij,ij->i", block.X, block.X)
    if not np.isfinite(norms).all():
        raise DataError(
            "A row has a value that is not finite, or too large to be squared.",
            where=f"row {block.ids[np.isfinite(norms).argmin()]}",
            expected="finite features",
            remedy="scale the features, or drop the row",
        )
    from scipy.sparse import csr_array

    labels, squares = _nearest(block.X, Z)
    counts = np.bincount(labels, minlength=len(Z))
    begins = np.concatenate([[0], np.cumsum(counts)])
    members = (np.ones(len(labels)), np.argsort(labels, kind="stable"), begins)
    sums = csr_array(members, shape=(len(Z), len(labels))) @ block.X  # in float64, as the ones are
    return counts, sums, float(np.sum(squares, dtype=np.float64))


Accept = Callable[[IntArray, Array], IntArray]
"""(candidates, uniform numbers) -> positions of the candidates that are kept; lowers the weights of all rows."""


def _draw(k: int, weights: Array, accept: Accept, rng: np.random.Generator, chosen: IntArray) -> IntArray:
    """Distinct rows, k with those ``chosen`` already, each drawn with a probability proportional to its weight then.

    A round draws candidates with the weights as they stand; ``accept`` keeps each with the probability that its weight,
    lowered by those kept before it in the round, has to the weight that it was drawn with. Once no weight is left, the
    rest is drawn uniformly.
    """
    while len(chosen) < k and (total := weights.sum()) > 0:
        # As many candidates as there are rows already: then the weights do not fall by much within a round.
        size = min(k - len(chosen), max(1, len(chosen)), MAX_KMEANS_CANDIDATES)
        candidates = rng.choice(len(weights), size, p=weights / total)
        kept = candidates[accept(candidates, rng.random(size))]
        weights[kept] = 0
        chosen = np.concatenate([chosen, kept])
    rest = rng.permutation(np.setdiff1d(np.arange(len(weights)), chosen))
    return np.concatenate([chosen, rest[: k - len(chosen)]])


def _kmeans_plus_plus(
    X: Array, k: int, executor: Executor, rng: np.random.Generator, Z: Array | None = None
) -> IntArray:
    """k-means++: rows of X with weights ‖x − z‖² to the nearest z of those before, which begin with Z."""
    weights = np.full(len(X), np.inf)

    def lower(Z: Array) -> None:
        def tile(rows: slice) -> None:
            np.minimum(weights[rows], _nearest(X[rows], Z)[1], out=weights[rows])

        executor.host_map(tile, cuts(len(X), _TASK_ROWS))

    def accept(candidates: IntArray, uniform: Array) -> IntArray:
        C = X[candidates].astype(np.float64)
        norms = np.einsum("ij,ij->i", C, C)
        between = np.maximum(norms[:, None] + norms - 2 * (C @ C.T), 0)
        between[candidates[:, None] == candidates] = 0
        now, kept = weights[candidates], []
        bar = uniform * now
        for i in range(len(candidates)):
            if now[i] > bar[i]:
                kept.append(i)
                np.minimum(now, between[i], out=now)
        lower(X[candidates[kept]])
        return np.array(kept, dtype=np.int64)

    chosen = np.empty(0, dtype=np.int64)
    if Z is None:
        chosen = rng.integers(len(X), size=1)
        Z = X[chosen]
    lower(Z)
    weights[chosen] = 0
    return _draw(k, weights, accept, rng, chosen)


def _pivots(X: Array, kernel: Kernel, k: int, executor: Executor, rng: np.random.Generator) -> IntArray:
    """Pivots of a Cholesky factor F of k(X, X), drawn with the diagonal of k(X, X) − F Fᵀ as weights."""
    if kernel.translation_invariant:
        X = X - X.mean(axis=0, dtype=np.float64).astype(X.dtype)
    weights = kernel.diag(X).astype(np.float64)
    rounding = SINGULAR_RESIDUAL[X.dtype.name] * weights
    F = np.empty((len(X), k), dtype=X.dtype)
    width = 0

    def accept(candidates: IntArray, uniform: Array) -> IntArray:
        nonlocal width
        C, before = X[candidates].astype(np.float64), F[candidates, :width].astype(np.float64)
        residual = kernel(C, threads=1) - before @ before.T
        weights[candidates[np.diag(residual) <= rounding[candidates]]] = 0
        bar, floor, left, kept = uniform * np.diag(residual), rounding[candidates], residual.copy(), list[int]()
        for i in range(len(candidates)):
            if left[i, i] > max(bar[i], floor[i]):
                kept.append(i)
                left -= np.outer(left[i], left[i] / left[i, i])
        if kept:
            extend(X[candidates[kept]], F[candidates[kept], :width], residual[np.ix_(kept, kept)])
        return np.array(kept, dtype=np.int64)

    def extend(Z: Array, before: Array, residual: Array) -> None:
        nonlocal width
        new = slice(width, width + len(Z))
        expansion = Expansion(kernel, Z)
        triangle = np.linalg.cholesky(residual)

        def tile(rows: slice) -> None:
            columns = expansion.block(X[rows])
            columns -= F[rows, : new.start] @ before.T
            F[rows, new] = scipy.linalg.solve_triangular(triangle, columns.T, lower=True, check_finite=False).T
            weights[rows] -= np.einsum("ij,ij->i", F[rows, new], F[rows, new], dtype=np.float64)
            weights[rows][weights[rows] <= rounding[rows]] = 0

        executor.host_map(tile, cuts(len(X), _TASK_ROWS))
        width = new.stop

    return _draw(k, weights, accept, rng, np.empty(0, dtype=np.int64))
