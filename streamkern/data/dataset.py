"""Dataset: an immutable description of rows. No rows are read, except for a stratified or weighted sample."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from streamkern.data.augment import Augmentation, MixUp
from streamkern.data.encoders import Names
from streamkern.data.row_roles import Folds, RowRoles, duration, moment
from streamkern.data.row_selection import (
    HASH_SPAN,
    OutsideRanges,
    Quarantined,
    RowBitmap,
    Rule,
    SelectedIds,
    SelectionRule,
    count_selected,
    draw_ids,
    sample_rule,
    selected_blocks,
)
from streamkern.data.splits import (
    Stored,
    columns_of,
    expanding_windows,
    rows_where,
    split_after,
    split_by_roles,
)
from streamkern.data.subsample import read_rows, stratified_sample, weighted_sample
from streamkern.data.transforms import Affine, Project, Transform, dump, transforms_for_prediction
from streamkern.engine.elementwise import wide
from streamkern.errors import DataError, UsageError
from streamkern.rng import HashFamily
from streamkern.sources.base import Source
from streamkern.sources.format_rules import unknown_name_error
from streamkern.storage.value_digest import digest
from streamkern.types import Array, IntArray, Rows, Target
from streamkern.user_code_digest import user_code_identities


@dataclass(frozen=True, eq=False)
class Dataset:
    """Describe rows to be streamed: a source, a selection of its rows, their scaling, and their augmentations.

    A dataset does not change: methods such as ``scale`` return a new one. A pass is one reading of the dataset. If the
    dataset is augmented with C copies, a pass reads the selected rows C times, and changes them at random each time.

    Args:
        source: the stored rows.
        rules: rules that select rows; empty for all rows.
        transforms: fitted preprocessing of stored rows, in order; the result has d features.
        factor: multiplies each feature after the transforms: a number or shape (d,).
        shift: added after the factor: a number or shape (d,).
        augmentations: applied in order to scaled rows.
        virtual_rows: number of rows of a pass. If it is not a multiple of the number of selected rows, the remainder is
            a fixed sample of them. None for each selected row once.
        seed: seed of the augmentations and of the sample.
        quarantine: ranges of rows that are excluded because their chunks are corrupt; see ``without``.
        origin: subtracted from scaled and augmented rows before they are rounded to the dtype of the arithmetic: a
            number or shape (d,). A fit sets it if rows are far from 0 and the kernel depends only on differences
            of rows.
        wide: whether stored values stay float64 until they are scaled. None: only if float32 cannot
            represent all values of the dtype of the source. In prediction, the model sets the value that training had.
        labels: all classes, if later rows may have classes that these rows lack. None for the classes of these rows.
        roles: a time, a group, or both, for each stored row. Every split uses them. None if rows have neither.
    """

    source: Source
    rules: tuple[SelectionRule, ...] = ()
    transforms: tuple[Transform, ...] = ()
    factor: float | Array = 1.0
    shift: float | Array = 0.0
    augmentations: tuple[Augmentation | MixUp, ...] = ()
    virtual_rows: int | None = None
    seed: int = 0
    quarantine: tuple[Quarantined, ...] = ()
    origin: float | Array = 0.0
    wide: bool | None = None
    labels: tuple[Any, ...] | None = None
    roles: RowRoles | None = None

    def __repr__(self) -> str:
        parts = [f"{self.base_rows:,} rows", f"{self.n_features:,} features"]
        if self.target is not None:
            parts.append(f"target {self.target.name!r}")
        if self.weighted:
            parts.append("weighted")
        if self.roles is not None:
            roles = (("time", self.roles.time), ("group", self.roles.group))
            parts += [f"{role} {name!r}" for role, name in roles if name]
        if self.augmentations or self.virtual_rows is not None:
            names = "+".join(type(each).__name__ for each in self.augmentations) or "repeated"
            parts.append(f"{names} to {len(self):,} rows a pass")
        return f"Dataset({', '.join(parts)})"

    def __len__(self) -> int:
        return self.base_rows if self.virtual_rows is None or not self.base_rows else self.virtual_rows

    @cached_property
    def base_rows(self) -> int:
        """Number of selected stored rows."""
        return int(self.counts.sum())

    @cached_property
    def counts(self) -> IntArray:
        """Number of selected rows of each chunk: shape (n_chunks,)."""
        return count_selected(self.rules, self.source.bounds[:-1], self.source.bounds[1:])

    @property
    def n_features(self) -> int:
        """Number d of features of a row, after the transforms."""
        return self.transforms[-1].n_out if self.transforms else self.source.n_features

    @property
    def _takes_float64(self) -> bool:
        """True if stored values stay float64 until they are scaled, because float32 cannot represent them all."""
        return wide(self.source.dtype) if self.wide is None else self.wide

    @property
    def columns(self) -> Names:
        """Names of the d features; None if absent."""
        names = self.source.columns
        for transform in self.transforms:
            names = transform.names(names)
        return names

    @property
    def target(self) -> Target | None:
        """Description of the target, or None."""
        return self.source.target

    @property
    def weighted(self) -> bool:
        """True if rows have sample weights."""
        return self.source.weight is not None

    @property
    def _full_rounds(self) -> int:
        return len(self) // self.base_rows if self.base_rows else 0

    @cached_property
    def _last_round(self) -> tuple[SelectionRule, ...]:
        """Rules of the partial round; empty if the virtual rows are a multiple of the selected rows."""
        rest = len(self) - self._full_rounds * self.base_rows
        return (*self.rules, self._sample_rule(rest, "rest")) if rest else ()

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of everything that determines the rows of a pass."""
        described, arrays = dump(self.transforms)
        return digest(
            self.source.fingerprint,
            [rule.to_json() for rule in self.rules],
            *([described, {name: digest(array.tolist()) for name, array in arrays.items()}] if described else []),
            np.asarray(self.factor, dtype=np.float64).tolist(),
            np.asarray(self.shift, dtype=np.float64).tolist(),
            [augmentation.to_json() for augmentation in self.augmentations],
            self.virtual_rows,
            self.seed,
            *([np.asarray(self.origin).tolist()] if np.any(self.origin) else []),
            *([] if self.labels is None else [["labels", *self.labels]]),
            *([] if self.roles is None else [["roles", self.roles.fingerprint]]),
            *(identity.digest for identity in user_code_identities((self.augmentations, self.rules, self.transforms))),
        )

    def scale(self, factor: float | Array = 1.0, shift: float | Array = 0.0) -> Dataset:
        """Multiply features by ``factor`` and add ``shift``, after any earlier scaling.

        Args:
            factor: a number or shape (d,).
            shift: a number or shape (d,), in the units after scaling.

        Raises:
            UsageError: a value is not finite, a shape is not (d,), or the dataset is augmented already.
        """
        self._require_plain(not self.augmentations, "scale", "scale first, then augment")
        arrays = [np.asarray(value, dtype=np.float64) for value in (factor, shift)]
        for name, array in zip(("factor", "shift"), arrays, strict=True):
            if array.shape not in ((), (self.n_features,)) or not np.isfinite(array).all():
                raise UsageError(
                    f"The {name} has shape {array.shape} or is not finite.",
                    where=f"scale({name}=...)",
                    expected=f"a finite number or {self.n_features} of them",
                )
        return self._with(factor=self.factor * arrays[0], shift=self.shift * arrays[0] + arrays[1])

    def transform(self, transform: Transform) -> Dataset:
        """Apply one more fitted transform to the features, after any scaling of the dataset.

        Raises:
            UsageError: the dataset is augmented already, or the transform was fitted to another number of features.
        """
        self._require_plain(not self.augmentations, "transform", "transform, then augment")
        if transform.n_in != self.n_features:
            raise UsageError(
                f"The transform takes {transform.n_in} features and the rows have {self.n_features}.",
                where="transform",
                expected=f"one that was fitted to {self.n_features} features",
            )
        settled = self._settled()
        return settled._with(transforms=(*settled.transforms, transform))

    def _settled(self) -> Dataset:
        factor, shift = (np.broadcast_to(np.asarray(v, np.float64), self.n_features) for v in (self.factor, self.shift))
        if np.all(factor == 1) and np.all(shift == 0):
            return self
        scaled = Affine(factor.copy(), shift.copy())
        return self._with(transforms=(*self.transforms, scaled), factor=1.0, shift=0.0)

    @property
    def _widest(self) -> int:
        return max(self.source.n_features, *(transform.n_out for transform in self.transforms), 1)

    def _held_bytes(self, itemsize: int, outputs: int) -> int:
        """Bytes that a process keeps for building blocks: rows for mixing, random projections, and folds of rows."""
        banks = [min(a.bank, self.base_rows) for a in self.augmentations if isinstance(a, MixUp)]
        stored = self.source.n_features * self.source.dtype.itemsize
        matrices = [t.n_in * t.n_out * itemsize for t in self.transforms if isinstance(t, Project)]
        folds = int(self.source.bounds[-1]) if self.roles is not None else 0
        # The peak is during construction: a bank's stored rows and scaled rows, and a matrix in float64.
        return (
            folds
            + sum(banks) * (self.n_features * itemsize + 8 * outputs + stored)
            + sum(matrices)
            + 3 * max(matrices, default=0)
        )

    def _prepared_like(self, other: Dataset) -> Dataset:
        """Take the transforms, scaling, origin and schema of another dataset."""
        return self._with(
            source=self.source.conformed(other.source.schema), transforms=other.transforms, factor=other.factor,
            shift=other.shift, origin=other.origin, wide=other._takes_float64,
        )  # fmt: skip

    def _final(self) -> Dataset:
        """In prediction, target means are over all folds."""
        return self._with(transforms=transforms_for_prediction(self.transforms))

    def _relative_to(self, origin: float | Array) -> Dataset:
        """The ``origin``, a number or shape (d,), is subtracted before rounding."""
        return self._with(origin=origin)

    def augment(
        self,
        *augmentations: Augmentation | MixUp,
        copies: int | None = None,
        rows: int | None = None,
        seed: int | None = None,
    ) -> Dataset:
        """Augment rows while they are streamed; each pass goes over them ``copies`` times, with new random numbers.

        Args:
            augmentations: applied in order, after any that the dataset has.
            copies: number of times that a pass goes over the rows; 1 by default.
            rows: number of rows of a pass, instead of ``copies``. If it is not a multiple of the number of stored
                rows, the remainder is a fixed sample of them.
            seed: seed of the random numbers; the dataset's own by default.

        Raises:
            UsageError: both ``copies`` and ``rows`` are given, one is not from 1 to 2^62, or an argument is no
                augmentation.
        """
        if self.weighted and any(isinstance(each, MixUp) for each in augmentations):
            raise UsageError(
                "The rows have sample weights, and MixUp mixes two rows into one.",
                where="augment(MixUp(...))",
                expected="rows without weights: a mixture has the weight of neither",
                remedy="leave MixUp out, or open the rows without weight=; sample(weights=...) draws by weight",
            )
        for each in augmentations:
            if isinstance(each, type) or not isinstance(each, Augmentation | MixUp):
                raise UsageError(
                    f"{each!r} is not an augmentation.",
                    where="augment",
                    expected="one such as sk.augment.GaussianNoise(0.1)",
                )
        if copies is not None and rows is not None:
            raise UsageError("Both copies and rows are given.", where="augment", expected="one of the two")
        most_rows = 1 << 62  # most rows of a pass: row ids have 64 bits
        for name, value in (("copies", copies), ("rows", rows)):
            if value is None:
                continue
            whole = isinstance(value, int | np.integer)
            if not whole or value < 1 or int(value) * (self.base_rows if name == "copies" else 1) > most_rows:
                raise UsageError(
                    f"{name} is {value!r}.",
                    where=f"augment({name}=...)",
                    expected="a whole number, at least 1, for at most 2^62 rows" if whole else "a whole number",
                )
        virtual = rows if rows is not None else copies * self.base_rows if copies is not None else self.virtual_rows
        return self._with(
            augmentations=self.augmentations + augmentations,
            virtual_rows=virtual,
            seed=self.seed if seed is None else seed,
        )

    def split(
        self, test: float = 0.2, seed: int = 0, *, stratify: bool = False, by: str | None = None, after: Any = None,
        gap: Any = 0,
    ) -> tuple[Dataset, Dataset]:  # fmt: skip
        """Return two disjoint parts, which do not depend on the size of stored chunks.

        Rows with a time or a group (``open_dataset(time=..., group=...)``) are split by it. With a time, the second
        part has the latest rows; with a group, all rows of some groups. With both, the second part has the latest rows
        of some groups, and the first part has the earlier rows of the other groups. The call reads these columns, and
        keeps one bit for each row. Rows without time and group are split by a hash of their ids, without reading them.

        Args:
            test: share of the rows in the second part, in (0, 1). With a group, it is a share of the groups. With
                both, it is the share of late rows, and also the share of groups.
            seed: seed of the split, without effect on a split by time.
            stratify: keep every class's share of the rows in both parts, to within one row. The call reads the labels
                twice, and keeps the ids of the second part, 8 bytes each.
            by: a column to split by, instead of time and group. The split is by time if the column is the time or has
                dates. Otherwise, all rows of a value are in one part.
            after: the second part begins at this time, a date such as ``"2012-06-01"`` or a number. Groups are ignored.
            gap: least time between the parts: a timedelta, or a number in the unit of the time. Rows in the gap are
                left out.

        Returns:
            (rest, test). They are augmented if this dataset is.

        Raises:
            UsageError: the share is not in (0, 1), arguments contradict one another, or there are no labels.
            DataError: a row has no time, or a part would have no row.
        """
        if not 0 < test < 1:
            raise UsageError(f"The share is {test}.", where="split(test=...)", expected="a number between 0 and 1")
        roles = self.roles if by is None else self._roles_by(by)
        gap = duration(gap, "split(gap=...)")
        if (gap or after is not None) and (roles is None or roles.time is None):
            raise UsageError(
                "The rows have no time.",
                where="split(after=..., gap=...)",
                expected="rows with a time",
                remedy='open them with time="COLUMN", or give by="COLUMN" of dates',
            )
        if stratify and roles is not None:
            raise UsageError(
                "Rows are split by time or group, which may not keep the shares of classes.",
                where="split(stratify=True)",
                expected="stratify=False",
                remedy="leave stratify out; or open the rows without time and group",
            )
        chosen = [rule for rule in self.rules if not isinstance(rule, OutsideRanges)]
        if roles is not None:  # rows that are left out move no group to another side
            chosen = [rule for rule in chosen if not isinstance(rule, RowBitmap) or rule.splits]
        rest: SelectionRule
        tested: SelectionRule
        key = (HashFamily.SPLIT, len(chosen), seed)  # splitting a part again, with the same seed, is another split
        if roles is not None and after is not None:
            rest, tested = split_after(roles, self.rules, moment(after, "split(after=...)"), gap)
        elif roles is not None:
            rest, tested = split_by_roles(roles, self.rules, test, key, gap)
        elif stratify:
            ids = stratified_sample(self.source, self.rules, round(test * self.base_rows), key)
            rest, tested = SelectedIds(ids, others=True), SelectedIds(ids)
        else:
            cut = round(test * HASH_SPAN)
            rest, tested = Rule(key, low=cut), Rule(key, high=cut)
        return self._selecting(rest, roles), self._selecting(tested, roles)

    def expanding_splits(self, k: int, *, gap: Any = 0) -> list[tuple[Dataset, Dataset]]:
        """Return k splits (rest, test) that walk forward in time: each test part is later than its rest.

        The rows are cut by time into k + 1 parts of equal size. In split i, rest is the first i parts, and test is the
        next. Groups are ignored.

        Args:
            k: number of splits, at least 1.
            gap: as in ``split``.

        Raises:
            UsageError: the rows have no time, or k is below 1.
            DataError: a row has no time, or a part would have no row because many rows have the same time.
        """
        if self.roles is None or self.roles.time is None or not isinstance(k, int | np.integer) or k < 1:
            raise UsageError(
                f"The rows have no time, or k is {k!r}.",
                where="expanding_splits",
                expected='rows opened with time="COLUMN", and k of at least 1',
            )
        by_time = self._roles_by(self.roles.time)
        windows = expanding_windows(by_time, self.rules, int(k), duration(gap, "expanding_splits(gap=...)"))
        return [(self._selecting(rest, by_time), self._selecting(tested, by_time)) for rest, tested in windows]

    def where(self, condition: str) -> Dataset:
        """Return the rows that satisfy a condition. The call makes one pass over the rows, and keeps one bit for each.

        Args:
            condition: comparisons of stored features, time or group with values, such as ``"sold_at >= '2012-06-01' and
                shop in ('a', 'b')"``. Join them by ``and``, ``or`` and ``not``. Compare texts only by ``==``, ``!=``,
                ``in`` and ``not in``. Put dates and texts in quotes, and also column names that are not one word. A
                comparison with a missing value is false.

        Raises:
            UsageError: the condition cannot be read.
            DataError: there is no such column, or no row satisfies it.
        """
        rule = rows_where(condition, self._stored_columns, int(self.source.bounds[-1]), self.rules)
        return self._selecting(rule, condition)

    def row_ids(self) -> Iterator[IntArray]:
        """Yield the ids (positions in the stored data) of the selected rows, ascending, in blocks of at most 65,536."""
        return (ids for ids in selected_blocks(self.rules, 0, int(self.source.bounds[-1])) if len(ids))

    def _selecting(self, rule: SelectionRule, by: RowRoles | str | None) -> Dataset:
        """Select rows by one more rule; EmptySideError if none is left by the roles or the condition ``by``."""
        if isinstance(by, RowRoles) and isinstance(rule, RowBitmap):
            rule = replace(rule, splits=True)
        made = replace(self, rules=(*self.rules, rule))
        if by is not None and not made.base_rows:
            raise EmptySideError(
                f"No row satisfies {by!r}."
                if isinstance(by, str)
                else f"A side of the split by {' and '.join(map(repr, filter(None, (by.time, by.group))))} has no row.",
                where="where" if isinstance(by, str) else "split",
                expected="at least one row",
                remedy="give another share, seed or time, or a smaller gap; or split by one of time and group: by=",
            )
        return made

    @property
    def _stored_columns(self) -> dict[str, Stored]:
        return columns_of(*([] if self.roles is None else [self.roles.source]), self.source)

    def _folds(self, count: int) -> Folds | None:
        """Folds of rows with a time or a group; None where a hash of the id decides."""
        return None if self.roles is None else self.roles.folds(self.rules, count)

    def _roles_by(self, column: str) -> RowRoles:
        columns = self._stored_columns
        if not isinstance(column, str) or column not in columns:
            raise unknown_name_error("column", str(column), columns, "split(by=...)")
        stored = columns[column]
        in_time = stored.kind == "datetime" or (self.roles is not None and self.roles.time == column)
        time, group = (column, None) if in_time else (None, column)
        return RowRoles(stored.source, time, group, (stored.position,))

    def sample(
        self, rows: int, seed: int = 0, *, stratify: bool = False, weights: str | int | Array | None = None
    ) -> Dataset:
        """Return a fixed sample of ``rows`` stored rows, by default uniform.

        The sample does not depend on the size of stored chunks. For a stratified or weighted sample, the call reads all
        rows, chunk by chunk, and keeps the ids of the sample, 8 bytes each.

        Args:
            rows: number of rows.
            seed: seed of the sample.
            stratify: keep every class's share of the rows, to within one row.
            weights: draw in proportion to weights >= 0, without replacement. Give the name or position of a stored
                column, or an array with a weight for each stored row, shape (n,).

        Raises:
            UsageError: ``rows`` is below 1 or above the number of rows (of positive weight); ``stratify`` and
                ``weights`` are both given; or there are no labels, or no such column.
            DataError: a weight is negative or not finite.
        """
        if not 1 <= rows <= self.base_rows:
            raise UsageError(
                f"A sample of {rows} rows was requested.", where="sample", expected=f"1 to {self.base_rows} rows"
            )
        if stratify and weights is not None:
            raise UsageError("Both stratify and weights are given.", where="sample", expected="one of the two")
        rule: SelectionRule
        if stratify:
            rule = SelectedIds(stratified_sample(self.source, self.rules, rows, self._sample_key("stratified", seed)))
        elif weights is not None:
            rule = SelectedIds(
                weighted_sample(self.source, self.rules, rows, weights, self._sample_key("weighted", seed))
            )
        else:
            rule = self._sample_rule(rows, "sample", seed)
        return replace(self, rules=(*self.rules, rule), virtual_rows=None)

    def without(self, quarantine: Sequence[Quarantined]) -> Dataset:
        """Return the dataset without the rows of corrupt chunks. Other rows keep their ids and order.

        Args:
            quarantine: the ranges of rows of the corrupt chunks, ascending and disjoint.

        Raises:
            UsageError: ``augment`` was given ``copies`` or ``rows`` before, or ranges are not ascending and disjoint.
            DataError: no row is left.
        """
        self._require_plain(self.virtual_rows is None, "without", "leave rows out first")
        ranges = tuple((each.start, each.stop) for each in quarantine)
        edges = [edge for pair in ranges for edge in pair]
        if edges != sorted(edges):
            raise UsageError("The ranges overlap or descend.", where="without", expected="ascending ranges of rows")
        if not ranges:
            return self
        left = replace(self, rules=(OutsideRanges(ranges), *self.rules), quarantine=tuple(quarantine))
        if not left.base_rows:
            raise DataError(
                f"Every chunk is corrupt: {quarantine[0].why}",
                where=quarantine[0].where,
                expected="at least one chunk that can be read",
                remedy="restore the data from a copy",
            )
        return left

    def plain(self) -> Dataset:
        """Return the dataset without augmentation: each selected row once, scaled."""
        return self._with(augmentations=(), virtual_rows=None)

    def draw(self, k: int, *key: int) -> IntArray:
        """Return ids of k distinct rows, drawn uniformly.

        Args:
            k: number of rows.
            *key: integers that seed the draw. With the same integers, a larger k only appends ids.

        Raises:
            DataError: there are fewer than k rows.
        """
        if k > self.base_rows:
            raise DataError(
                f"{k} rows are to be drawn and the data set has {self.base_rows}.",
                where="draw",
                expected=f"at most {self.base_rows}",
                remedy="ask for fewer centers, or give more rows",
            )
        ids, _ = draw_ids(self.rules, int(self.source.bounds[-1]), k, (HashFamily.DRAW, *key))
        return ids

    def _bank(self, number: int) -> tuple[IntArray, Rows]:
        """Ascending ids (k,) and rows of the partners of ``MixUp``: a draw, read once in each process."""
        augmentation = self.augmentations[number]
        assert isinstance(augmentation, MixUp)
        with _READING:
            banks: dict[int, tuple[IntArray, Rows]] = self.__dict__.setdefault("_banks", {})
            if number not in banks:
                # Ascending order does no harm: partners are drawn at random from the bank.
                ids = np.sort(self.draw(min(augmentation.bank, self.base_rows), self.seed + number))
                banks[number] = ids, read_rows(self.source, ids)
            return banks[number]

    def __getstate__(self) -> dict[str, Any]:
        # Not pickled: a worker reads its own banks.
        return {k: v for k, v in self.__dict__.items() if k != "_banks"}

    def _require_rows(self) -> None:
        if not len(self) or not self.n_features:
            raise DataError(
                f"The data set is empty: {len(self)} rows (sample count) of {self.n_features} feature(s).",
                where=self.source.where(0) if len(self.source.bounds) > 1 else "the source has no chunks",
                expected="at least one row and one feature",
                remedy="check the path, the glob or the split",
            )

    @staticmethod
    def _require_plain(plain: bool, where: str, remedy: str) -> None:
        if not plain:
            expected = "a dataset before .augment(...)"
            raise UsageError("The dataset is augmented already.", where=where, expected=expected, remedy=remedy)

    def _sample_rule(self, rows: int, *name: Any) -> Rule:
        return sample_rule(self.rules, int(self.source.bounds[-1]), rows, self._sample_key(*name))

    def _sample_key(self, *name: Any) -> tuple[int, ...]:
        return (HashFamily.SAMPLE, self.seed, *(int(digest(part)[:15], 16) for part in name))

    def _with(self, **changes: Any) -> Dataset:
        """Only for changes that do not affect the selection: counted rows are not counted again."""
        made = replace(self, **changes)
        if "counts" in self.__dict__:
            made.__dict__["counts"] = self.counts
        return made


class EmptySideError(DataError):
    """A side of a split by time or group, or the rows that satisfy a condition, would be empty."""


@contextmanager
def unchanging(*given: Dataset | None) -> Iterator[None]:
    """Raise StorageError if the data changed between opening and reading; checked on entry and on exit."""
    require_unchanged(*given)
    yield
    require_unchanged(*given)


def require_unchanged(*given: Dataset | None) -> None:
    """Raise StorageError if the data changed since they were opened."""
    for data in given:
        if data is not None:
            data.source.require_unchanged()


_READING = threading.Lock()
