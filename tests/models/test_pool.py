"""Pools: rows come and go, trees outgrow them, and no tree sees another's slots."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon.lab import pair_path
from antiphon.models.base import Extension
from antiphon.models.hf import HFModel
from antiphon.models.pair import LoadOptions, load_pair
from antiphon.models.pool import SMALLEST, Pools, Storage


def pools() -> Pools:
    return Pools(2, 1, 2, torch.float32, torch.device("cpu"))


@given(st.lists(st.booleans(), max_size=40))
def test_rows_in_use_are_distinct_and_low(moves: list[bool]) -> None:
    pool = pools().of(10)
    rows: list[int] = []
    for take in moves:
        if take or not rows:
            rows.append(pool.take())
        else:
            pool.give_back(rows.pop(0))
        assert len(set(rows)) == len(rows)
        assert all(row < len(pool.keys[0]) for row in rows)
    assert len(pool.keys[0]) <= max(1, 2 * len(moves))


def test_a_tree_that_ends_gives_its_row_and_its_memory_back() -> None:
    shared = pools()
    first, second = Storage(shared, 10), Storage(shared, 10)
    pool = first.pool
    assert (first.row, second.row) == (0, 1)
    del first
    gc.collect()
    assert Storage(shared, 10).row == 0
    del second
    gc.collect()
    assert len(pool.keys[0]) == 0


def test_a_tree_that_outgrows_its_pool_keeps_what_it_holds() -> None:
    shared = pools()
    storage = Storage(shared, 10)
    small = storage.pool
    storage.pool.keys[1][storage.row, :3] = 7.0
    storage.reserve(SMALLEST + 1)
    assert storage.capacity == 2 * SMALLEST
    assert storage.pool.keys[1][storage.row, :3].eq(7.0).all()
    assert not storage.pool.keys[1][storage.row, 3:].any()
    assert len(small.keys[0]) == 0


@pytest.fixture(scope="module")
def model() -> HFModel:
    path = str(pair_path("draft"))
    return load_pair(path, options=LoadOptions(dtype="float32")).target


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 20), st.sampled_from([10, 70, 200])),
        min_size=1,
        max_size=7,
    ),
    st.randoms(use_true_random=False),
)
def test_a_ragged_batch_of_any_shape_scores_each_tree_as_alone(
    model: HFModel, shapes: list[tuple[int, int, int]], random: object
) -> None:
    """Trees of several pools, long and short blocks, in an order that is not that of rows."""
    asks, alone = [], []
    for i, (read, new, capacity) in enumerate(shapes):
        text = tuple((7 * i + 3 * j) % 200 for j in range(read + new))
        for into in (asks, alone):
            tree = model.new_tree(capacity)
            (scores,) = model.forward([Extension(model, tree, text[:read])])
            tree.commit(scores.nodes[-1])
            rows = tuple(range(new))
            into.append(Extension(model, tree, text[read:], rows=rows))
    order = list(range(len(asks)))
    random.shuffle(order)  # type: ignore[attr-defined]
    together = model.forward([asks[i] for i in order])
    for i, scores in zip(order, together, strict=True):
        (single,) = model.forward([alone[i]])
        assert torch.allclose(scores.logits, single.logits, atol=1e-4)
