"""The exact rule's shortcuts: deterministic drafters without q, greedy without p."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.drawing import Randomness
from antiphon.rules.base import Block
from antiphon.rules.exact import exact, greedy
from antiphon.sampling import one_hot

V = 4


@st.composite
def deterministic_blocks(draw: st.DrawFn) -> Block:
    """Trees of distinct tokens below each row, some of them drawn twice."""
    tokens: list[int] = []
    parents: list[int] = []
    draws: list[list[tuple[int, int]]] = [[]]
    for count in range(draw(st.integers(0, 6))):
        row = draw(st.integers(0, len(tokens)))
        token = draw(st.integers(0, V - 1))
        child = next((c for c, _ in draws[row] if tokens[c] == token), None)
        if child is None:
            child = len(tokens)
            tokens.append(token)
            parents.append(row)
            draws.append([])
        draws[row].append((child, count))
    return Block(tuple(tokens), tuple(parents), tuple(map(tuple, draws)))


def with_rows(block: Block) -> Block:
    """The same block with its one-hot q written down."""
    source = {draw: token for row in block.draws for token, draw in row}
    rows = one_hot(torch.tensor([block.tokens[source[i]] for i in range(len(source))] or [0]), V)
    return Block(block.tokens, block.parents, block.draws, tuple(rows))


@settings(max_examples=200)
@given(deterministic_blocks(), st.integers(0, 999))
def test_a_block_without_q_is_judged_as_one_with_one_hot_rows(block: Block, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p = (2 * torch.randn(len(block) + 1, V, generator=generator)).softmax(-1)
    assert exact(block, p, Randomness(seed)) == exact(with_rows(block), p, Randomness(seed))


@settings(max_examples=200)
@given(deterministic_blocks(), st.data())
def test_comparing_first_choices_is_the_exact_rule_on_one_hot_rows(
    block: Block, data: st.DataObject
) -> None:
    rows = len(block) + 1
    best = data.draw(st.lists(st.integers(0, V - 1), min_size=rows, max_size=rows))
    p = one_hot(torch.tensor(best), V)
    assert greedy(block, best) == exact(with_rows(block), p, Randomness(0))
