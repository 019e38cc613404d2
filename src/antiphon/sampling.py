"""How a request samples: its parameters, the one logits pipeline, and its random stream.

This file knows how a row of logits becomes a distribution and how a distribution becomes a
token. Target p and draft q go through the same :func:`distribution`, with the history that
holds at their position, because a rejection rule is exact only between like and like.

Every truncation keeps or drops equal logits together. So the result is a function of the
logits alone, not of the order in which a sort on some device happens to leave ties.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from antiphon.params import SamplingParams

_NUCLEUS = 256  # Sorted first for top_p; a nucleus is rarely larger, the vocabulary always is.


@dataclass(frozen=True, slots=True)
class Context:
    """The tokens before a position: what penalties look at. Drafted tokens are output."""

    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()

    def then(self, tokens: Iterable[int]) -> Context:
        """The hypothetical context after ``tokens`` more; this one stays as it is."""
        return Context(self.prompt, (*self.output, *tokens))


def distribution(
    logits: Tensor, params: SamplingParams, contexts: Sequence[Context] = ()
) -> Tensor:
    """The probabilities tokens are drawn from: float32 [R, V] from logits [R, V].

    The order is vLLM's: logit_bias, penalties, temperature, min_p, top_k, top_p. ``contexts``
    holds one Context a row; it may be empty unless ``params.uses_history``. Masked tokens
    (-inf) get probability 0; each row needs at least one finite logit and then always keeps
    its most probable token. At temperature 0 rows are one-hot, the lowest id winning ties.
    ``logits`` is never written to. Raises ValueError if a penalty is on and R contexts are not
    given.
    """
    scores = add_bias(logits.float(), params.logit_bias)
    if params.uses_history:
        if len(contexts) != len(logits):
            raise ValueError(f"{len(logits)} rows of logits but {len(contexts)} contexts")
        scores = repeat_penalty(scores, contexts, params.repetition_penalty)
        scores = occurrence_penalties(
            scores, contexts, params.presence_penalty, params.frequency_penalty
        )
    if params.greedy:
        return one_hot_argmax(scores)
    scores = temper(scores, params.temperature)
    if params.min_p > 0.0:
        scores = keep_min_p(scores, params.min_p)
    if 0 < params.top_k < scores.shape[-1]:
        scores = keep_top_k(scores, params.top_k)
    if params.top_p < 1.0:
        scores = keep_top_p(scores, params.top_p, first=params.top_k or _NUCLEUS)
    return scores.softmax(-1)


def add_bias(scores: Tensor, bias: Mapping[int, float]) -> Tensor:
    """``scores`` [R, V] with ``bias`` added to the tokens it names."""
    if not bias:
        return scores
    ids = torch.tensor(list(bias), device=scores.device)
    values = torch.tensor(list(bias.values()), dtype=scores.dtype, device=scores.device)
    return scores.index_add(1, ids, values.expand(len(scores), -1))


def repeat_penalty(scores: Tensor, contexts: Sequence[Context], penalty: float) -> Tensor:
    """``scores`` [R, V] pushed down by a factor where prompt or output has the token."""
    if penalty == 1.0:
        return scores
    seen, _ = _occurrences(scores, [chain(c.prompt, c.output) for c in contexts])
    score = scores[seen]
    return scores.index_put(seen, torch.where(score > 0, score / penalty, score * penalty))


def occurrence_penalties(
    scores: Tensor, contexts: Sequence[Context], presence: float, frequency: float
) -> Tensor:
    """``scores`` [R, V] less ``presence`` once and ``frequency`` a time for output tokens."""
    if presence == 0.0 and frequency == 0.0:
        return scores
    seen, counts = _occurrences(scores, [context.output for context in contexts])
    return scores.index_put(seen, scores[seen] - frequency * counts - presence)


def one_hot_argmax(scores: Tensor) -> Tensor:
    """Probability 1 on each row's largest score [R, V], the lowest id on ties."""
    return torch.zeros_like(scores).scatter_(1, scores.argmax(-1, keepdim=True), 1.0)


def temper(scores: Tensor, temperature: float) -> Tensor:
    """``scores`` [R, V] over ``temperature``, shifted first so that none can overflow."""
    return (scores - scores.amax(-1, keepdim=True)) / temperature


def keep_min_p(scores: Tensor, min_p: float) -> Tensor:
    """``scores`` [R, V], -inf under ``min_p`` times the top probability (Nguyen et al. 2024)."""
    return _mask_below(scores, scores.amax(-1, keepdim=True) + math.log(min_p))


def keep_top_k(scores: Tensor, k: int) -> Tensor:
    """``scores`` [R, V], -inf under the k-th largest (Fan et al. 2018); its ties stay."""
    return _mask_below(scores, scores.topk(k).values[:, -1:])


def keep_top_p(scores: Tensor, top_p: float, first: int = _NUCLEUS) -> Tensor:
    """``scores`` [R, V], -inf outside the nucleus (Holtzman et al. 2020).

    The nucleus is the shortest run of most probable tokens whose mass reaches ``top_p``, and
    the ties of its last one. Only the ``first`` most probable tokens are sorted, then eight
    times as many while some row needs them.
    """
    log_probs = scores.log_softmax(-1)
    vocab = scores.shape[-1]
    width = min(first, vocab)
    while True:
        ranked = log_probs.topk(width).values
        mass = ranked.exp().cumsum(-1)
        complete = (mass[:, -1] >= top_p) | (ranked[:, -1] == -math.inf)
        if width == vocab or bool(complete.all()):
            break
        width = min(8 * width, vocab)
    last = (mass < top_p).sum(-1, keepdim=True).clamp(max=width - 1)
    return torch.where(log_probs < ranked.gather(-1, last), -math.inf, scores)


def draw(probs: Tensor, u: float) -> int:
    """The token at ``u`` in [0, 1) of the cumulative distribution of ``probs`` [V].

    See :func:`draw_rows`.
    """
    top, token = probs.max(-1)
    # A one-hot row, as every greedy one is, needs no sum over the vocabulary.
    if float(top) == 1.0 and int((probs > 0).sum()) == 1:
        return int(token)
    return draw_rows(probs[None], (u,))[0]


def draw_rows(probs: Tensor, us: Sequence[float]) -> list[int]:
    """One token a row by inverse CDF: ``probs`` [R, V], ``us`` R numbers in [0, 1).

    Summed in float64 and scaled by the sum, so a row need not add up to 1 exactly; a token of
    probability 0 is never drawn. Raises ValueError for a row without mass, or not finite.
    """
    if len(us) != len(probs):
        raise ValueError(f"{len(probs)} rows of probabilities but {len(us)} uniforms")
    weights = probs.cpu() if probs.device.type == "mps" else probs  # MPS has no float64.
    # Parallel scans need not be monotone: only tokens with mass may carry a bound at all.
    bounds = weights.double().cumsum(-1).masked_fill_(weights <= 0, -math.inf)
    total = bounds.amax(-1, keepdim=True)
    if not bool(((total > 0) & (total < math.inf)).all()):
        raise ValueError("cannot draw from probabilities that are all 0, or not finite")
    u = torch.tensor(us, dtype=torch.float64, device=bounds.device)[:, None]
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens: list[int] = (bounds > target).to(torch.uint8).argmax(-1).tolist()
    return tokens


def derived_seed(*parts: object) -> int:
    """A seed made from anything that has a text: equal parts, equal seed."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:7], "big")


class Randomness:
    """A request's random stream: counter-based (Philox), apart from every global generator.

    ``index`` says which of the request's n samples the stream is for: streams of one seed are
    independent. ``seed`` is the seed in use, also where none was given.
    """

    def __init__(self, seed: int | None = None, index: int = 0) -> None:
        self.seed = secrets.randbits(63) if seed is None else seed
        sequence = np.random.SeedSequence(self.seed, spawn_key=(index,))
        self._generator = np.random.Generator(np.random.Philox(sequence))

    def uniform(self) -> float:
        """The next number, in [0, 1)."""
        return float(self._generator.random())

    def uniforms(self, k: int) -> list[float]:
        """The next ``k`` numbers: those that ``k`` calls of :meth:`uniform` would give."""
        numbers: list[float] = self._generator.random(k).tolist()
        return numbers


def logprobs_of(logits: Tensor, tokens: Sequence[int] | Tensor) -> Tensor:
    """Log-probabilities [R], in nats, of ``tokens`` [R] under the raw ``logits`` [R, V]."""
    ids = torch.as_tensor(tokens, dtype=torch.long, device=logits.device)
    return logits.float().log_softmax(-1).gather(-1, ids[:, None])[:, 0]


def top_logprobs(logits: Tensor, k: int) -> list[dict[int, float]]:
    """A row's ``k`` most probable tokens, best first, with raw log-probabilities in nats."""
    top = logits.float().log_softmax(-1).topk(min(k, logits.shape[-1]))
    rows = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [dict(zip(ids, values, strict=True)) for ids, values in rows]


def _mask_below(scores: Tensor, cutoff: Tensor) -> Tensor:
    return torch.where(scores < cutoff, -math.inf, scores)


def _occurrences(
    scores: Tensor, histories: Sequence[Iterable[int]]
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The (row, token) pairs that occur in the rows' histories, and how often each does."""
    V = scores.shape[-1]
    keys = [row * V + token for row, history in enumerate(histories) for token in history]
    flat = torch.tensor(keys, dtype=torch.long, device=scores.device)
    pairs, counts = flat.unique(return_counts=True)
    return (pairs // V, pairs % V), counts
