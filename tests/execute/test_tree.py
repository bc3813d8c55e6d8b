"""The tree's sum has the same bits however its leaves are dealt out and whenever their sums arrive."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkern.execute.base import Stack, Tree, add


def leaves(n):
    """Numbers whose sum depends on the order of additions; a Python float, and a name to be kept."""
    rng = np.random.default_rng(n)
    values = rng.normal(size=(n, 8)) * 10.0 ** rng.integers(-6, 6, (n, 8))
    return [(row.astype(np.float32), float(row[0]), Stack((i,))) for i, row in enumerate(values)]


def by_levels(parts):
    """The tree written another way: neighbours are added, level by level; one without a neighbour moves up."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [tuple(a + b for a, b in zip(*pair, strict=True)) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


def assert_same(total, expected):
    np.testing.assert_array_equal(total[0], expected[0])
    assert total[1:] == expected[1:]


@pytest.mark.parametrize("n", range(1, 71))
def test_leaves_in_order_sum_to_the_tree(n):
    tree = Tree(n)
    for i, parts in enumerate(leaves(n)):
        tree.put(0, i, parts)
        assert len(tree.nodes) <= n.bit_length()  # sums are taken as soon as they can be
    assert_same(tree.total(), by_levels(leaves(n)))
    assert tree.total()[2] == tuple(range(n))


def test_the_order_of_additions_matters_to_these_leaves():
    parts = [values for values, _, _ in leaves(70)]
    assert (by_levels([(p,) for p in parts])[0] != np.sum(parts, axis=0, dtype=np.float32)).any()


@given(n=st.integers(1, 70), data=st.data())
def test_any_contiguous_shares_arriving_in_any_order_give_the_same_bits(n, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=8))) if n > 1 else []
    parts, nodes = leaves(n), []
    for first, last in zip([0, *cuts], [*cuts, n], strict=True):
        share = Tree(n)
        for i in data.draw(st.permutations(range(first, last))):
            share.put(0, i, parts[i])
        assert len(share.nodes) <= 2 * n.bit_length()  # what a worker sends does not grow with its lanes
        nodes += share.nodes.items()
    tree = Tree(n)
    for (level, index), total in data.draw(st.permutations(nodes)):
        tree.put(level, index, total)
    assert_same(tree.total(), by_levels(leaves(n)))


def test_a_missing_leaf_is_an_error():
    tree = Tree(3)
    tree.put(0, 0, (1,))
    tree.put(0, 2, (1,))
    with pytest.raises(KeyError):
        tree.total()


@given(n=st.integers(1, 70), data=st.data())
def test_a_tree_left_at_any_moment_goes_on_to_the_same_bits(n, data):
    stop = data.draw(st.integers(0, n))
    parts, tree = leaves(n), Tree(n)
    for i in range(stop):
        tree.put(0, i, parts[i])
    kept = dict(tree.nodes)
    for i in range(stop, n):
        tree.put(0, i, parts[i])  # the sums that were kept are not written over by what follows
    again, parts = Tree(n, kept), leaves(n)
    for i in range(stop, n):
        again.put(0, i, parts[i])
    assert_same(again.total(), by_levels(leaves(n)))
    assert_same(tree.total(), by_levels(leaves(n)))


def test_a_narrow_sum_does_not_narrow_a_wide_one():
    (total,) = add((np.ones(1, np.float32),), (np.full(1, 1e-12),))
    assert total.dtype == np.float64
    assert total[0] > 1
