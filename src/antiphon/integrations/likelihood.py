"""How likely the target finds given texts, from its forward over trees.

Texts with a common beginning share one tree: the beginning is read once, as the trunk, and every
continuation is a branch of the crown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import TypeAlias

import torch

from antiphon.logprobs import logprobs_of
from antiphon.models.base import Extension, LanguageModel, Scores

Tokens: TypeAlias = tuple[int, ...]
Likelihood: TypeAlias = tuple[float, bool]
"""The log-probability of a continuation in nats, and whether greedy decoding would write it."""

ROWS = 2048
"""Tokens a pass reads at most; it bounds the logits ``[ROWS, V]`` that are held at once."""

_Branches: TypeAlias = list[tuple[int, Tokens]]
_Reading: TypeAlias = Generator[Extension, Scores, list[tuple[int, Likelihood]]]


def likelihoods(
    model: LanguageModel, pairs: Sequence[tuple[Tokens, Tokens]], batch: int
) -> Iterator[tuple[int, Likelihood]]:
    """Score every pair of a prefix and its continuation, `batch` trees at a time.

    Args:
        model: the model that judges.
        pairs: prefix and continuation, at least one token each; together at most one token
            more than the model's context, since the last token is not read.
        batch: trees in one pass, at least 1.

    Yields:
        The index of a pair and its likelihood, as they become known: long ones first.
    """
    width = max(1, ROWS // batch)
    line = deque(_read(model, prefix, some, width) for prefix, some in _trees(pairs, width))
    live: list[tuple[_Reading, Extension]] = []
    while line or live:
        while line and len(live) < batch:
            reading = line.popleft()
            live.append((reading, next(reading)))
        answers = model.forward([ask for _, ask in live])
        unfinished = []
        for (reading, _), answer in zip(live, answers, strict=True):
            try:
                unfinished.append((reading, reading.send(answer)))
            except StopIteration as end:
                yield from end.value
        live = unfinished


def _trees(
    pairs: Sequence[tuple[Tokens, Tokens]], width: int
) -> Iterator[tuple[Tokens, _Branches]]:
    """Gather pairs of one prefix, as many as one pass can read; the longest come first."""
    trees: list[tuple[Tokens, _Branches]] = []
    newest: dict[Tokens, tuple[_Branches, int]] = {}
    longest_first = sorted(range(len(pairs)), key=lambda i: -sum(map(len, pairs[i])))
    for index in longest_first:
        prefix, continuation = pairs[index]
        branches, size = newest.get(prefix, ([], 0))
        size += len(continuation) - 1
        if not branches or size > width:
            branches, size = [], len(continuation) - 1
            trees.append((prefix, branches))
        branches.append((index, continuation))
        newest[prefix] = branches, size
    return iter(trees)


def _read(model: LanguageModel, prefix: Tokens, branches: _Branches, width: int) -> _Reading:
    """Read one tree, `width` tokens a pass; returns the likelihood of each branch."""
    tree = model.new_tree(len(prefix) + sum(len(tokens) for _, tokens in branches))
    for start in range(0, len(prefix), width):
        scores = yield Extension(model, tree, prefix[start : start + width])
        tree.commit(scores.nodes[-1])
    # The prefix's last token predicts every branch's first one, each token of a branch the next.
    owners = list(range(len(branches)))
    judged = _judge(
        scores.logits[-1:].expand(len(branches), -1), [tokens[0] for _, tokens in branches]
    )
    first = tree.next_node
    crown: list[int] = []
    parents: list[int] = []
    wanted: list[int] = []
    for owner, (_, tokens) in enumerate(branches):
        for place, token in enumerate(tokens[:-1]):
            parents.append(first + len(crown) - 1 if place else tree.tip)
            crown.append(token)
            wanted.append(tokens[place + 1])
            owners.append(owner)
    for start in range(0, len(crown), width):
        part = slice(start, start + width)
        tokens = tuple(crown[part])
        scores = yield Extension(
            model, tree, tokens, tuple(parents[part]), rows=tuple(range(len(tokens)))
        )
        judged += _judge(scores.logits, wanted[part])
        if len(branches) == 1:
            tree.commit(scores.nodes[-1])  # A crown's mask grows with its square, a trunk has none.
    totals = [0.0] * len(branches)
    greedy = [True] * len(branches)
    for owner, (logprob, is_top) in zip(owners, judged, strict=True):
        totals[owner] += logprob
        greedy[owner] &= is_top
    return [(index, (totals[i], greedy[i])) for i, (index, _) in enumerate(branches)]


def _judge(logits: torch.Tensor, tokens: Sequence[int]) -> list[Likelihood]:
    """Per row of logits ``[R, V]``: its token's log-probability, and whether none is larger."""
    logprobs = logprobs_of(logits, tokens).tolist()
    tops = logits.argmax(-1).tolist()
    return [
        (logprob, top == token) for logprob, top, token in zip(logprobs, tops, tokens, strict=True)
    ]
