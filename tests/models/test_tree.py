"""KVTree against a naive tree that keeps every node's path in the open."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.models.pool import Pools, Storage
from antiphon.models.tree import ROOT, KVTree


class NaiveTree:
    """Every node by name, with its whole path; nothing is ever moved."""

    def __init__(self) -> None:
        self.paths: dict[int, tuple[int, ...]] = {ROOT: ()}
        self.above: dict[int, int] = {}
        self.tip = ROOT

    def descends(self, node: int, from_node: int) -> bool:
        while node != from_node and node in self.above:
            node = self.above[node]
        return node == from_node


def storage() -> Storage:
    return Storage(Pools(2, 1, 2, torch.float32, torch.device("cpu")), 2)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_sequence_of_operations_keeps_paths_slots_and_stored_values(
    data: st.DataObject,
) -> None:
    """Guards compaction: a surviving node finds its own keys and sees exactly its ancestors."""
    tree, naive = KVTree(storage()), NaiveTree()
    alive: set[int] = set()
    for _ in range(data.draw(st.integers(1, 8))):
        kind = data.draw(st.sampled_from(["grow", "commit", "prune"]))
        if kind == "grow" or not alive:
            tokens = data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=5))
            parents: list[int] = []
            for i in range(len(tokens)):
                names = sorted(alive) + [tree.tip] + [tree.next_node + j for j in range(i)]
                parents.append(data.draw(st.sampled_from(names)))
            nodes = tree.grow(parents, tokens)
            assert tree.storage is not None
            first = tree.slots - len(tokens)
            for i, (node, parent, token) in enumerate(zip(nodes, parents, tokens, strict=True)):
                naive.paths[node] = (*naive.paths[parent], token)
                naive.above[node] = parent
                for layer in range(2):
                    pool, mine = tree.storage.pool, tree.storage.row
                    pool.keys[layer][mine, first + i] = float(node)
                    pool.values[layer][mine, first + i] = float(-node)
                alive.add(node)
        elif kind == "commit":
            node = data.draw(st.sampled_from(sorted(alive)))
            tree.commit(node)
            naive.tip = node
            alive = {n for n in alive if n != node and naive.descends(n, node)}
        else:
            keep = data.draw(st.lists(st.sampled_from(sorted(alive)), max_size=3))
            tree.prune(keep)
            alive = {n for n in alive if any(naive.descends(k, n) for k in keep)}

        assert set(tree.crown) == alive
        assert tree.tip == naive.tip
        assert tuple(tree.path(tree.tip)) == naive.paths[naive.tip]
        seen = tree.visible(len(alive)) if alive else None
        for row, node in enumerate(tree.crown):
            assert tuple(tree.path(node)) == naive.paths[node]
            slot = tree.length + row
            assert tree.storage is not None
            for layer in range(2):
                pool, mine = tree.storage.pool, tree.storage.row
                assert pool.keys[layer][mine, slot, 0, 0] == node
                assert pool.values[layer][mine, slot, 0, 0] == -node
            if seen is not None:
                expected = [True] * tree.length
                expected += [naive.descends(node, other) for other in tree.crown]
                assert seen[row].tolist() == expected
            assert tree.positions(len(alive))[row] == len(naive.paths[node]) - 1


def test_one_new_node_on_a_chain_needs_no_mask() -> None:
    tree = KVTree()
    tree.commit(tree.grow(tree.chain(ROOT, 3), [1, 2, 3])[-1])
    node = tree.grow((tree.tip,), (4,))[0]
    assert tree.visible(1) is None
    tree.grow((node,), (5,))
    assert tree.visible(1) is None
    tree.grow((node,), (6,))
    assert tree.visible(1) is not None


def test_a_window_hides_what_is_too_far_back() -> None:
    tree = KVTree()
    tree.commit(tree.grow(tree.chain(ROOT, 5), range(5))[-1])
    tree.grow((tree.tip,), (9,))
    seen = tree.visible(1, window=3)
    assert seen is not None
    assert seen[0].tolist() == [False, False, False, True, True, True]
    assert tree.visible(1, window=6) is None


def test_growing_from_a_buried_or_pruned_node_is_an_error() -> None:
    tree = KVTree()
    a, b = tree.grow((ROOT, ROOT), (1, 2))
    tree.commit(a)
    for gone in (ROOT, b):
        with pytest.raises(ValueError, match="neither the trunk's tip nor in the crown"):
            tree.grow((gone,), (3,))
