"""The loop: live requests ask for forwards, forwards are batched, answers go back.

Every step runs one model once, for all live requests that wait for it. Drafts go first: so
requests draft together and are verified together, whatever their block lengths. Requests
join and leave between steps; what one writes depends on no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from antiphon.detokenizer import Detokenizes
from antiphon.drawing import Randomness
from antiphon.errors import UserError
from antiphon.live import Live
from antiphon.methods.base import Method, Models
from antiphon.params import SamplingParams, check
from antiphon.request import Request
from antiphon.result import Delta, Result
from antiphon.stopping import Stopper
from antiphon.trace import TraceWriter


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the engine must know of the tokenizer.

    Attributes:
        detokenizer: makes an incremental detokenizer for text after the given prompt ids.
        eos_token_ids: the tokens that end a text.
    """

    detokenizer: Callable[[Sequence[int]], Detokenizes]
    eos_token_ids: frozenset[int]


Inbox: TypeAlias = "deque[tuple[str, Delta | None]]"
"""News of samples that somebody waits for."""


class Engine:
    """Serves requests of any method, many at a time, over one set of models.

    Args:
        models: target, draft and their costs.
        vocabulary: the tokenizer's side.
        max_batch: requests in flight at once; the others wait in line.
        trace: where a finished request's rounds are written.
    """

    def __init__(
        self,
        models: Models,
        vocabulary: Vocabulary,
        max_batch: int = 16,
        trace: TraceWriter | None = None,
    ) -> None:
        if max_batch < 1:
            raise UserError(f"batch is {max_batch}: give a whole number >= 1")
        self.models = models
        self.vocabulary = vocabulary
        self.max_batch = max_batch
        self.trace = trace
        self._line: deque[tuple[str, Request, Method]] = deque()
        self._live: dict[str, Live] = {}
        self._awaited: dict[str, Inbox] = {}
        self._count = 0

    @property
    def busy(self) -> bool:
        return bool(self._line or self._live)

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output that all models take."""
        draft = self.models.draft
        own = self.models.target.context_length
        return own if draft is None else min(own, draft.context_length)

    @property
    def waiting(self) -> int:
        """Samples in line, which no step works on yet."""
        return len(self._line)

    @property
    def in_flight(self) -> tuple[str, ...]:
        """The samples that steps work on now; those still in line are not among them."""
        return tuple(self._live)

    def submit(self, prompt: Sequence[int], params: SamplingParams, method: Method) -> list[str]:
        """Put a prompt in line; returns the names of its ``params.n`` samples.

        Raises UserError, before any work, where prompt and output cannot fit the context,
        the parameters name tokens outside the vocabulary, or the method lacks a model.
        """
        self._refuse(prompt, params)
        method.check(self.models, params)
        names = []
        seed = params.seed
        ends = frozenset() if params.ignore_eos else self.vocabulary.eos_token_ids
        for index in range(params.n):
            randomness = Randomness(seed, index)
            seed = randomness.seed
            request = Request(
                tuple(prompt),
                params,
                randomness,
                ends,
                self.vocabulary.detokenizer,
                lambda: max(len(self._live), 1),
            )
            names.append(str(self._count))
            self._line.append((names[-1], request, method))
            self._count += 1
        return names

    def step(self) -> list[Delta]:
        """Run one model once; returns the news it brought."""
        deltas = [delta for live in self._admit() if (delta := live.advance())]
        draft, target = self.models.draft, self.models.target
        for model in (draft, target) if draft is not None else (target,):
            asked = [
                (live, index, ask)
                for live in self._live.values()
                for index, ask in live.waiting.items()
                if ask.model is model
            ]
            if not asked:
                continue
            try:
                scores = model.forward([ask for _, _, ask in asked])
            except Exception as error:
                hit = {live.name: live for live, _, _ in asked}.values()
                deltas += [live.last_delta(live.fail(error)) for live in hit]
                break
            for (live, index, _), answer in zip(asked, scores, strict=True):
                live.answer(index, answer)
            moved = {live.name: live for live, _, _ in asked}.values()
            deltas += [delta for live in moved if (delta := live.advance())]
            break
        self._retire()
        for delta in deltas:
            self._post(delta.request, delta)
        return deltas

    def cancel(self, name: str) -> Delta | None:
        """End a sample now; its last delta holds what it wrote. None: it is not in flight."""
        self._line = deque(item for item in self._line if item[0] != name)
        live = self._live.get(name)
        if live is None:
            self._post(name, None)
            return None
        delta = live.last_delta(live.end("cancelled"))
        self._retire()
        self._post(name, delta)
        return delta

    def stream(
        self, prompt: Sequence[int], params: SamplingParams, method: Method
    ) -> Iterator[Delta]:
        """Deltas of one prompt's samples as they come; leaving the loop cancels them.

        Several streams may be read in turns: each steps the engine for all.
        """
        yield from self._news(self.submit(prompt, params, method))

    def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], method: Method
    ) -> list[list[Result]]:
        """Finish all prompts; per prompt its ``n`` samples.

        Raises UserError before any work if one of them cannot be served.
        """
        for prompt, wish in zip(prompts, params, strict=True):
            self._refuse(prompt, wish)
            method.check(self.models, wish)
        names = [
            self.submit(prompt, wish, method) for prompt, wish in zip(prompts, params, strict=True)
        ]
        news = self._news([name for group in names for name in group])
        done = {delta.request: delta.result for delta in news if delta.result is not None}
        return [[done[name] for name in group] for group in names]

    def _news(self, names: Sequence[str]) -> Iterator[Delta]:
        """Deltas of these samples until all have ended; whoever leaves earlier cancels the rest."""
        left = set(names)
        inbox: Inbox = deque()
        self._awaited |= dict.fromkeys(names, inbox)
        try:
            while left:
                while inbox:
                    name, delta = inbox.popleft()
                    if delta is None or delta.result is not None:
                        left.discard(name)
                    if delta is not None:
                        yield delta
                if left:
                    self.step()
        finally:
            for name in names:
                del self._awaited[name]
            for name in left:
                self.cancel(name)

    def _post(self, name: str, delta: Delta | None) -> None:
        """Lay news by for who waits for them; None: the sample has gone without a word."""
        if name in self._awaited:
            self._awaited[name].append((name, delta))

    def _admit(self) -> list[Live]:
        fresh = []
        while self._line and len(self._live) < self.max_batch:
            name, request, method = self._line.popleft()
            stopper = Stopper(
                self.vocabulary.detokenizer(request.prompt),
                request.params,
                request.eos_token_ids,
                request.params.max_tokens,
            )
            live = Live(name, request, method, self.models, stopper)
            self._live[name] = live
            fresh.append(live)
        return fresh

    def _retire(self) -> None:
        for name, live in list(self._live.items()):
            if live.result is None:
                continue
            del self._live[name]
            if self.trace is not None:
                for record in live.result.rounds:
                    self.trace.round(name, record)
                self.trace.finished(name, live.result.to_json())

    def _refuse(self, prompt: Sequence[int], params: SamplingParams) -> None:
        if not prompt:
            raise UserError("the prompt is empty: give at least one token")
        context = self.context_length
        if len(prompt) >= context:
            raise UserError(
                f"the prompt has {len(prompt)} tokens, the models' context is {context}: shorten it"
            )
        if len(prompt) + params.max_tokens > context:
            raise UserError(
                f"prompt ({len(prompt)}) and max_tokens ({params.max_tokens}) exceed the models' "
                f"context of {context}: lower max_tokens to {context - len(prompt)}"
            )
        check(params, self.models.target.vocab_size)
