"""From a request to its samples' news: what is checked, put in line, told and cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from antiphon.api import encode_messages
from antiphon.errors import UserError
from antiphon.grammar import Grammar, json_grammar
from antiphon.methods import Method, spec
from antiphon.models.pair import ModelPair
from antiphon.params import SamplingParams, check
from antiphon.result import Delta, Result
from antiphon.serve.answers import Answer, Told
from antiphon.serve.fields import ChatRequest, CompletionRequest, FieldError, Message
from antiphon.serve.limits import Limits
from antiphon.serve.metrics import Metrics
from antiphon.serve.offers import Offers
from antiphon.serve.worker import ClosingError, Worker

DEFAULT_TOKENS = 16
"""Of a completion that gives no `max_tokens`; OpenAI's."""


class SampleError(RuntimeError):
    """A sample could not be finished; the message says why."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request that was checked as far as it can be without the engine."""

    prompts: tuple[tuple[int, ...], ...]
    params: SamplingParams
    method: Method
    answer: Answer
    stream: bool
    include_usage: bool


class Service:
    """Serves requests over one worker. Its methods but `prepare` belong to the event loop."""

    def __init__(
        self, pair: ModelPair, worker: Worker, offers: Offers, metrics: Metrics, limits: Limits
    ) -> None:
        self.pair, self.worker, self.offers = pair, worker, offers
        self.metrics, self.limits = metrics, limits
        context = worker.engine.context_length
        self.context = min(context, limits.max_context or context)

    def prepare(self, request: CompletionRequest | ChatRequest) -> Job:
        """Check a request and read its prompts.

        Raises:
            FieldError, UserError: for what is refused.
            UnknownModelError: for a model that is not offered.
        """
        request.refuse()
        method = self.offers.find(request.model, request.method, request.knobs())
        if isinstance(request, ChatRequest):
            prompts = [self.conversation(request.messages)]
            given, alternatives = request.max_completion_tokens, request.alternatives
        else:
            prompts = [self._ids(prompt) for prompt in request.prompts()]
            given, alternatives = None, request.logprobs
        length = max(map(len, prompts))
        room = self.context - length
        if room < 1:
            raise UserError(
                f"the prompt has {length} tokens, this server takes {self.context} with the "
                "answer: shorten it"
            )
        wanted = request.max_tokens if given is None else given
        if wanted is None:
            wanted = room if isinstance(request, ChatRequest) else min(DEFAULT_TOKENS, room)
        if wanted > room:
            raise FieldError(
                "max_tokens",
                f"prompt ({length}) and max_tokens ({wanted}) exceed the {self.context} tokens "
                f"this server takes: lower max_tokens to {room}",
            )
        params = request.sampling(wanted, alternatives, self._grammar(request))
        if len(prompts) * params.n > self.limits.max_samples:
            raise FieldError(
                "n", f"{len(prompts) * params.n} samples: give at most {self.limits.max_samples}"
            )
        check(params, self.pair.target.vocab_size, {token for ids in prompts for token in ids})
        return Job(
            prompts=tuple(prompts),
            params=params,
            method=method,
            answer=Answer(
                self.pair.tokenizer,
                chat=isinstance(request, ChatRequest),
                model=request.model or self.offers.name,
                prompt_tokens=sum(map(len, prompts)),
                alternatives=alternatives,
                verbose=bool(request.antiphon),
            ),
            stream=bool(request.stream),
            include_usage=bool(request.stream_options and request.stream_options.include_usage),
        )

    def _grammar(self, request: CompletionRequest | ChatRequest) -> Grammar | None:
        """The language that `response_format` asks for; its states are this request's own."""
        wanted = request.response_format
        if wanted is None or wanted.type == "text":
            return None
        try:
            text = json_grammar(wanted.schema_or_none)
            return Grammar(self.pair.tokenizer, text, sorted(self.pair.eos_token_ids))
        except FieldError:
            raise
        except UserError as error:
            raise FieldError("response_format", f"response_format: {error}") from error

    async def begin(self, job: Job) -> Run:
        """Put a job in line; raises what `Worker.submit` does."""
        run = Run(self, job)
        asks = [(prompt, job.params, job.method) for prompt in job.prompts]
        groups = await asyncio.wrap_future(self.worker.submit(asks, run.hear))
        run.expect(groups)
        return run

    def conversation(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a conversation; raises UserError for one that the template refuses."""
        turns = [message.turn() for message in messages]
        if not getattr(self.pair.tokenizer, "chat_template", None):
            raise FieldError("messages", "this model has no chat template: use /v1/completions")
        try:
            ids = encode_messages(self.pair, turns)
        except UserError:
            raise
        except Exception as error:  # Templates raise what they like.
            raise FieldError("messages", f"the chat template refuses this: {error}") from error
        return self._checked(ids)

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a text as it is."""
        try:
            return tuple(self.pair.tokenizer(text).input_ids)
        except Exception as error:  # A lone surrogate, for one.
            raise FieldError("prompt", f"prompt is not a text: {error}") from error

    def _ids(self, prompt: str | list[int]) -> tuple[int, ...]:
        return self._checked(self.text_ids(prompt) if isinstance(prompt, str) else tuple(prompt))

    @staticmethod
    def _checked(ids: tuple[int, ...]) -> tuple[int, ...]:
        if not ids:
            raise FieldError("prompt", "prompt is empty: give at least one token")
        return ids


class Run:
    """One job's samples on their way."""

    def __init__(self, service: Service, job: Job) -> None:
        self.service, self.job = service, job
        self.results: dict[int, Result] = {}
        self.voices: list[Told] = []
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[tuple[str, Delta | None]] = asyncio.Queue()
        self._index: dict[str, int] = {}
        self._first: dict[int, float] = {}
        self._began = time.perf_counter()

    def hear(self, name: str, delta: Delta | None) -> None:
        """The worker's listener, called in its thread."""
        self._loop.call_soon_threadsafe(self._news.put_nowait, (name, delta))

    def expect(self, groups: Sequence[Sequence[str]]) -> None:
        """Learn the names of the samples, prompt by prompt."""
        for prompt, names in zip(self.job.prompts, groups, strict=True):
            for name in names:
                self._index[name] = len(self._index)
                self.voices.append(Told(self.service.pair.tokenizer, prompt))

    @property
    def in_order(self) -> list[Result]:
        """All results; to be asked for when `news` has ended."""
        return [self.results[index] for index in range(len(self._index))]

    async def news(self) -> AsyncIterator[tuple[int, Delta]]:
        """Each sample's number and deltas, to the end of all; leaving it cancels them.

        Raises SampleError where a method failed, ClosingError where the engine ended, and
        TimeoutError after the most seconds.
        """
        left = set(self._index)
        end = self._loop.time() + self.service.limits.timeout
        try:
            async with asyncio.timeout_at(end):
                while left:
                    name, delta = await self._news.get()
                    if delta is None:
                        raise ClosingError("the server is shutting down")
                    index = self._index[name]
                    if delta.text:
                        self._first.setdefault(index, time.perf_counter() - self._began)
                    if delta.result is not None:
                        left.discard(name)
                        self._ended(index, delta.result)
                    yield index, delta
        finally:
            if left:
                self.service.worker.cancel(sorted(left))

    def _ended(self, index: int, result: Result) -> None:
        self.results[index] = result
        kind = spec.name_of(self.job.method)
        whole = time.perf_counter() - self._began
        self.service.metrics.ended(kind, result, self._first.get(index), whole)
        if result.error:
            raise SampleError(result.error)
