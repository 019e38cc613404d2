"""How a request samples: the one pipeline from logits to a distribution.

This file knows how a row of logits becomes a distribution; `drawing` makes tokens of it.
Target p and draft q go through the same :func:`distribution`, with the history that holds at
their position, because a rejection rule is exact only between like and like.

Every truncation keeps or drops equal logits together. So the result is a function of the
logits alone, not of the order in which a sort on some device happens to leave ties.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from antiphon.drawing import Randomness, draw_rows
from antiphon.logprobs import rows_of, stretches
from antiphon.params import Language, SamplingParams

_NUCLEUS = 256  # Sorted first for top_p; a nucleus is rarely larger, the vocabulary always is.


class Context:
    """The tokens before a position: what penalties look at. Drafted tokens are output.

    Immutable. What :meth:`then` adds is kept beside the context it follows, so that a token
    more costs the same after ten tokens as after ten thousand.
    """

    __slots__ = ("_added", "_before", "length", "prompt")

    def __init__(self, prompt: tuple[int, ...], output: tuple[int, ...] = ()) -> None:
        self.prompt = prompt
        self.length = len(prompt) + len(output)
        self._before: Context | None = None
        self._added = output

    def then(self, tokens: Iterable[int]) -> Context:
        """The hypothetical context after ``tokens`` more; this one stays as it is."""
        after = Context(self.prompt, tuple(tokens))
        after.length = self.length + len(after._added)
        after._before = self
        return after

    @property
    def written(self) -> int:
        """How many tokens the output has."""
        return self.length - len(self.prompt)

    @property
    def output(self) -> tuple[int, ...]:
        if self._before is not None:
            # Joined once. The contexts before may then go, and their joined outputs with them.
            self._added, self._before = self.since(len(self.prompt)), None
        return self._added

    def since(self, read: int) -> tuple[int, ...]:
        """The tokens of prompt and output from index ``read`` on."""
        parts: list[tuple[int, ...]] = []
        at, begin = self, self.length - len(self._added)
        while begin > read and at._before is not None:
            parts.append(at._added)
            at = at._before
            begin = at.length - len(at._added)
        parts.append(at._added[max(read - begin, 0) :])
        if begin > read:  # Nothing but the prompt is left.
            parts.append(self.prompt[read:])
        return tuple(chain.from_iterable(reversed(parts)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Context):
            return NotImplemented
        return (self.prompt, self.output) == (other.prompt, other.output)

    def __hash__(self) -> int:
        return hash((self.prompt, self.output))

    def __repr__(self) -> str:
        return f"Context({self.prompt}, {self.output})"


def distribution(
    logits: Tensor, params: SamplingParams, contexts: Sequence[Context] = ()
) -> Tensor:
    """The probabilities tokens are drawn from: float32 [R, V] from logits [R, V].

    The order is vLLM's: logit_bias, penalties, grammar, temperature, min_p, top_k, top_p.
    ``contexts`` holds one Context a row; it may be empty unless ``params.uses_history``. Masked
    tokens (-inf) get probability 0; each row needs at least one finite logit and then always keeps
    its most probable token. At temperature 0 rows are one-hot, the lowest id winning ties.
    ``logits`` is never written to. Raises ValueError if a penalty is on and R contexts are not
    given.
    """
    if params.greedy:
        return one_hot_argmax(shaped(logits, params, contexts))
    scores = temper(shaped(logits, params, contexts), params.temperature)
    if params.min_p > 0.0:
        scores = keep_min_p(scores, params.min_p)
    if 0 < params.top_k < scores.shape[-1]:
        scores = keep_top_k(scores, params.top_k)
    if params.top_p < 1.0:
        scores = keep_top_p(scores, params.top_p, first=params.top_k or _NUCLEUS)
    if scores.device.type != "cpu" or scores.data_ptr() == logits.data_ptr():
        return scores.softmax(-1)
    # In place: fresh megabytes would cost more than the arithmetic, page by page.
    return torch.softmax(scores, -1, out=scores)


class Distributions:
    """The rows of :func:`distribution`, each computed when it is first asked for.

    A judge that stops at the first refusal never reads the rows after it. Large rows come with
    the next ones, as many as there are threads to compute them meanwhile.
    """

    def __init__(
        self, logits: Tensor, params: SamplingParams, contexts: Sequence[Context] = ()
    ) -> None:
        self._logits, self._params, self._contexts = logits, params, contexts
        some = stretches(logits, len(logits))
        self._wide = some[0].stop if some else 0
        # Small rows cost less than the calls that compute them: those come all at once.
        self._at, self._read = 0, logits[:0]
        if len(some) == 1:
            self._read = distribution(logits, params, contexts)

    def __getitem__(self, row: int) -> Tensor:
        """Row ``row``, [V]."""
        if not self._at <= row < self._at + len(self._read):
            self._at, mine = row, slice(row, row + self._wide)
            self._read = distribution(self._logits[mine], self._params, self._contexts[mine])
        return self._read[row - self._at]

    def log_chances(self, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Logarithms of the probabilities of one token each in some rows, in nats."""
        if len(self._read) == len(self._logits):
            found: list[float] = self._read[list(rows), list(tokens)].double().log().tolist()
            return found
        chances: list[float] = []
        for some in stretches(self._logits, len(rows)):
            picked, ids = rows[some], torch.tensor(tokens[some], device=self._logits.device)
            contexts = [self._contexts[row] for row in picked] if self._contexts else ()
            p = distribution(rows_of(self._logits, picked), self._params, contexts)
            chances += p.gather(-1, ids[:, None])[:, 0].double().log().tolist()
        return chances


def favourites(
    logits: Tensor, params: SamplingParams, contexts: Sequence[Context] = ()
) -> list[int]:
    """Each row's most probable token; arguments as for :func:`distribution`.

    That is all the distribution says at temperature 0, without [R, V] probabilities.
    """
    return argmax_rows(shaped(logits, params, contexts))


def choose(
    logits: Tensor,
    params: SamplingParams,
    contexts: Sequence[Context],
    randomness: Randomness,
) -> list[int]:
    """One token a row of ``logits`` [R, V], drawn from its :func:`distribution`."""
    if params.greedy:
        return favourites(logits, params, contexts)
    return draw_rows(distribution(logits, params, contexts), randomness.uniforms(len(logits)))


def shaped(logits: Tensor, params: SamplingParams, contexts: Sequence[Context]) -> Tensor:
    """float32 scores [R, V]: ``logits`` after bias, penalties and grammar, before temperature."""
    scores = add_bias(logits.float(), params.logit_bias)
    if params.uses_history:
        if len(contexts) != len(logits):
            raise ValueError(f"{len(logits)} rows of logits but {len(contexts)} contexts")
        scores = repeat_penalty(scores, contexts, params.repetition_penalty)
        scores = occurrence_penalties(
            scores, contexts, params.presence_penalty, params.frequency_penalty
        )
        if params.grammar is not None:
            scores = keep_to(scores, contexts, params.grammar)
    return scores


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


def keep_to(scores: Tensor, contexts: Sequence[Context], language: Language) -> Tensor:
    """``scores`` [R, V], -inf where a token would leave the language."""
    rows = [language.allowed(context.output, scores.shape[-1]) for context in contexts]
    allowed = torch.stack(rows).to(scores.device)
    return torch.where(allowed, scores, -math.inf)


def one_hot_argmax(scores: Tensor) -> Tensor:
    """Probability 1 on each row's largest score [R, V], the lowest id on ties."""
    return one_hot(torch.tensor(argmax_rows(scores), device=scores.device), scores.shape[-1])


def one_hot(tokens: Tensor, vocab: int) -> Tensor:
    """float32 [R, V]: probability 1 on each row's token [R]."""
    rows = torch.zeros(len(tokens), vocab, device=tokens.device)
    return rows.scatter_(1, tokens[:, None], 1.0)


def argmax_rows(scores: Tensor) -> list[int]:
    """The index of each row's largest score [R, V], the lowest on ties."""
    # On the CPU NumPy's argmax takes a tenth of PyTorch's time, and promises the lowest index.
    found = scores.argmax(-1) if scores.device.type != "cpu" else scores.detach().numpy().argmax(-1)
    ids: list[int] = found.tolist()
    return ids


def temper(scores: Tensor, temperature: float) -> Tensor:
    """``scores`` [R, V] over ``temperature``; ``scores`` itself at 1."""
    return scores if temperature == 1.0 else scores / temperature


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
