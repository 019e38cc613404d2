"""How a decoding method talks to the engine: it asks for forwards and commits tokens.

A method is a generator for one request. It yields a tuple of `Extension`s and receives as
many `Scores`, or it yields a `Commit` and receives nothing. `ask` and `ask_all` give both
conversations a type and a name.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import torch

from antiphon.detokenizer import Detokenizes
from antiphon.drawing import Randomness
from antiphon.logprobs import logprobs_of, top_logprobs
from antiphon.models.base import Extension, Scores
from antiphon.params import SamplingParams

Provenance = Literal["target", "draft", "bonus", "correction"]
"""Who wrote a token: the target alone, the draft (accepted), the target after a whole block
was accepted (bonus), or the target in place of a refused draft token (correction)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Judged:
    """What the target thought of a token, natural logs before temperature and truncation.

    Attributes:
        logprob: of the token.
        top: the most probable alternatives, where the request asks for them.
    """

    logprob: float
    top: Mapping[int, float] | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that stand, in text order.

    Attributes:
        tokens: ``C`` token ids.
        provenance: who wrote each.
        logits: the target's raw logits ``[R, V]`` that the tokens were judged by; None where
            `judged` holds what is needed of them.
        rows: the row of `logits` each token was judged by; None: token after token (R = C).
        judged: one a token, for a method that commits tokens long after it scored them.
        proposed: the draft tokens of this round; empty where none were drafted.
        notes: what a method adds to the round's trace, JSON-ready.
    """

    tokens: tuple[int, ...]
    provenance: tuple[Provenance, ...]
    logits: torch.Tensor | None = None
    rows: tuple[int, ...] | None = None
    judged: tuple[Judged, ...] = ()
    proposed: tuple[int, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)


Event: TypeAlias = tuple[Extension, ...] | Commit
Steps: TypeAlias = Generator[Event, tuple[Scores, ...], T]
"""A (part of a) method that yields `Event`s and returns a ``T``."""


def alone() -> int:
    """The company of a request that has none, or must not look at it: itself."""
    return 1


@dataclass(frozen=True, slots=True)
class Request:
    """What a method knows of the request it serves.

    Attributes:
        prompt: token ids.
        params: sampling parameters; `max_tokens` bounds the output.
        randomness: the request's own random stream.
        eos_token_ids: tokens after which drafting on is pointless.
        detokenizer: makes an incremental detokenizer for text after the given ids, for methods
            that look at text.
        company: how many requests, this one among them, share the passes now. What is written
            must not depend on it.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    randomness: Randomness
    eos_token_ids: frozenset[int]
    detokenizer: Callable[[Sequence[int]], Detokenizes] | None = None
    company: Callable[[], int] = alone

    @property
    def longest(self) -> int:
        """Slots the request can need: prompt and output."""
        return len(self.prompt) + self.params.max_tokens

    def room(self, written: int) -> int:
        """Tokens the output may still take after `written` of them."""
        return self.params.max_tokens - written


def judge(
    logits: torch.Tensor, tokens: Sequence[int], top: int | None, rows: Sequence[int] | None = None
) -> tuple[Judged, ...]:
    """What raw logits ``[R, V]`` say of ``C`` tokens, with `top` alternatives each.

    `rows` says which row each token is judged by; None: token after token (R = C).
    """
    values = logprobs_of(logits, tokens, rows).tolist()
    if not top:
        return tuple(map(Judged, values))
    alternatives = top_logprobs(logits if rows is None else logits[list(rows)], top)
    return tuple(map(Judged, values, alternatives))


def ask(extension: Extension) -> Steps[Scores]:
    """Ask for one forward and return its scores."""
    (scores,) = yield (extension,)
    return scores


def ask_all(*extensions: Extension) -> Steps[tuple[Scores, ...]]:
    """Ask for forwards that do not depend on each other; the answers come together."""
    return (yield extensions)
