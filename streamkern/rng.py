"""Randomness that belongs to the row: pure functions of a key and the row's id, with no state.

Numbers are the same when a block is read again, in another order, on another worker or in another size. This is the
plain reference: the backends' fast noise is tested equal to ``normal_rows``.
"""

from __future__ import annotations

import hashlib
import operator
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from streamkern.types import IntArray

# Philox4x32-10: Salmon, Moraes, Dror, Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3", section 3.3.
PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key each round: the golden ratio and sqrt(3) - 1

_WORD = 0xFFFFFFFF
_WORD64 = 0xFFFFFFFFFFFFFFFF


class HashFamily:
    """The first number of a key of ``row_hash``, by which hashes for different purposes differ under one seed."""

    SPLIT = 1
    SAMPLE = 2
    DRAW = 3
    SHUFFLE = 4
    ROWS_BY_WEIGHT = 0x776569
    FOLDS = 0x666F6C64
    FEATURES = 0x66656174757265


class Draw:
    """The key of a draw of a data set's rows, by which draws for different purposes differ under one seed."""

    MEDIANS = 1
    COLUMNS = 2
    QUANTILES = 3
    EXAMPLES = 7
    DRIFT = 11
    HELD_OUT = 0x6C656674
    HALVES = 0x68616C66
    PARTITION = 0x70617274
    TUNING = 0x74756E65
    METRIC, SIGNS = 0x61676F70, 0x7369676E
    MEDIAN_DISTANCE = 0x6D656469616E
    RESIDUAL = 0x756E6C


def philox4x32(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return Philox4x32-10 (Salmon et al. 2011): four random words (n, 4) of counters (n, 4) and a key (2,), uint32."""
    c0, c1, c2, c3 = np.asarray(counter, dtype=np.uint64).T
    k0, k1 = (int(k) for k in key)
    m0, m1 = (np.uint64(m) for m in PHILOX_MULTIPLIERS)
    low, shift = np.uint64(_WORD), np.uint64(32)
    for _ in range(PHILOX_ROUNDS):
        p0, p1 = c0 * m0, c2 * m1
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ np.uint64(k0), p1 & low, (p0 >> shift) ^ c3 ^ np.uint64(k1), p0 & low
        k0, k1 = (k0 + PHILOX_WEYL[0]) & _WORD, (k1 + PHILOX_WEYL[1]) & _WORD
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def normal_rows(seed: int, copy: int, row_ids: IntArray, d: int) -> NDArray[np.float32]:
    """Return standard normals (n, d), float32: a function of (seed, copy, row id, column) and of nothing else.

    Columns 4j to 4j + 3 of a row come from the four words x of Philox at counter (j, row id low, row id high, copy) and
    key (seed low, seed high), by Box and Muller's transform of (x0, x1) and of (x2, x3)::

        u = (⌊x0 / 2⁹⌋ + 1/2) 2⁻²³        θ = 2π x1 / 2³²        (√(−2 ln u) cos θ, √(−2 ln u) sin θ)

    u has 23 bits and a half, so that u and 1 − u take the same values, each exact in float32, and neither is ever 0:
    the logarithm is finite, and the largest normal is √(48 ln 2) = 5.77. They are computed in float64 and rounded once.
    The seed is taken modulo 2⁶⁴, the copy modulo 2³².
    """
    words = _row_words(seed, copy & _WORD, row_ids, d, 0).reshape(-1, 2)
    radius = np.sqrt(-2.0 * np.log(((words[:, 0] >> np.uint32(9)) + 0.5) * 2.0**-23))
    angle = words[:, 1] * (2.0 * np.pi / 2.0**32)
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return pairs.reshape(len(row_ids), -(-d // 4) * 4)[:, :d].astype(np.float32)


def uniform_rows(seed: int, copies: int | IntArray, row_ids: IntArray, k: int) -> NDArray[np.float64]:
    """Return uniform numbers (n, k), float64, in (0, 1): a function of (seed, copy, row id, number) and nothing else.

    Numbers 4j to 4j + 3 come from the four words x of Philox at counter (2³¹ + j, row id low, row id high, copy) under
    the key of ``normal_rows``, whose counters stay below 2³¹: the two never share a word. u = (x + 1/2) 2⁻³². The seed
    is taken modulo 2⁶⁴; ``copies``, one number or one a row, modulo 2³².
    """
    return np.asarray((_row_words(seed, copies, row_ids, k, 1 << 31)[:, :k] + 0.5) * 2.0**-32)


def _row_words(seed: int, copies: int | IntArray, row_ids: IntArray, k: int, first: int) -> NDArray[np.uint32]:
    """The k random words of each row, and up to three more, of the counters from ``first`` on: (n, 4 ⌈k / 4⌉)."""
    n, blocks = len(row_ids), -(-k // 4)
    ids = np.asarray(row_ids, dtype=np.int64).view(np.uint64)[:, None]
    counter = np.empty((n, blocks, 4), dtype=np.uint32)
    counter[..., 0] = np.arange(blocks, dtype=np.uint32) + np.uint32(first)
    counter[..., 1] = ids & np.uint64(_WORD)
    counter[..., 2] = ids >> np.uint64(32)
    counter[..., 3] = (np.asarray(copies, dtype=np.int64) & _WORD).reshape(-1, 1)
    return philox4x32(counter.reshape(-1, 4), np.array(seed_words(seed), dtype=np.uint32)).reshape(n, 4 * blocks)


def seed_words(seed: int) -> tuple[int, int]:
    """Split a seed, modulo 2⁶⁴, into its (low, high) 32-bit words: the key of ``philox4x32``."""
    return seed & _WORD, (seed >> 32) & _WORD


def row_hash(row_ids: IntArray, *key: int) -> NDArray[np.uint64]:
    """Hash row ids under a key of integers, in order: 64 well-mixed bits a row, (n,), uint64, a few nanoseconds each.

    The finaliser of SplitMix64 (Steele, Lea, Flood 2014) on a Weyl sequence that starts where the key says. For one key
    it is a bijection, so distinct rows never collide.
    """
    start = len(key)
    for word in key:
        start = _mix(start ^ (word & _WORD64))
    z = np.array(row_ids, dtype=np.int64).view(np.uint64)
    z *= np.uint64(_GAMMA)
    z += np.uint64(start)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MIX[0])
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MIX[1])
    z ^= z >> np.uint64(31)
    return z


_GAMMA = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _mix(word: int) -> int:
    z = (word + _GAMMA) & _WORD64
    z = ((z ^ (z >> 30)) * _MIX[0]) & _WORD64
    z = ((z ^ (z >> 27)) * _MIX[1]) & _WORD64
    return z ^ (z >> 31)


def generator(*parts: SupportsIndex | str) -> np.random.Generator:
    """Return a NumPy generator that is a function of ``parts``, the same in every process and on every platform.

    It costs tens of microseconds: one for a decision, never one for a row. Parts are integers of any size and strings;
    1 and "1" differ, and so do ("ab",) and ("a", "b").
    """
    digest = hashlib.blake2b(digest_size=16, person=b"streamkern")
    for part in parts:
        tag, text = ("s", part) if isinstance(part, str) else ("i", str(operator.index(part)))
        data = text.encode()
        digest.update(f"{tag}{len(data)}:".encode() + data)
    philox: Any = np.random.Philox(key=int.from_bytes(digest.digest(), "little"))
    return np.random.Generator(philox)
