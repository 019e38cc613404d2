"""One request in flight: its generator, what it waits for, and what it has written."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from antiphon.models.base import Extension, Scores
from antiphon.request import Commit, Provenance, Request, Steps, judge
from antiphon.result import Delta, FinishReason, Result
from antiphon.trace import Round, summarise

if TYPE_CHECKING:
    from antiphon.methods.base import Method, Models
    from antiphon.stopping import Stopper


class Live:
    """Drives one method's generator between forwards.

    `waiting` holds the asks without an answer yet; the engine answers them with `answer` and
    then calls `advance`, which runs the generator up to its next ask. An exception inside the
    method ends this request alone, with finish reason "error".
    """

    def __init__(
        self, name: str, request: Request, method: Method, models: Models, stopper: Stopper
    ) -> None:
        self.name = name
        self.request = request
        self.models = models
        self.stopper = stopper
        self.result: Result | None = None
        self.waiting: dict[int, Extension] = {}
        self._asks: tuple[Extension, ...] = ()
        self._answers: dict[int, Scores] = {}
        self._generator = _begun(method, request, models)
        self._began = time.perf_counter()
        self._tokens: list[int] = []
        self._provenance: list[Provenance] = []
        self._logprobs: list[float] = []
        self._tops: list[Mapping[int, float]] = []
        self._rounds: list[Round] = []
        self._passes = [0, 0]
        self._told = 0

    @property
    def finished(self) -> bool:
        return self.result is not None

    def answer(self, index: int, scores: Scores) -> None:
        """Take the scores of ask `index`."""
        extension = self.waiting.pop(index)
        self._answers[index] = scores
        self._passes[0 if extension.model is self.models.target else 1] += 1

    def advance(self) -> Delta | None:
        """Run until the next ask or the end; returns what became visible, if anything."""
        if self.waiting or self.finished:
            return None
        reply = tuple(self._answers[i] for i in range(len(self._asks)))
        self._answers.clear()
        text = ""
        try:
            while True:
                event = self._generator.send(reply or None)  # type: ignore[arg-type]
                if not isinstance(event, Commit):
                    break
                text += self._commit(event)
                if self.stopper.finish_reason is not None:
                    return self._delta(text)
                reply = ()
            for extension in event:
                extension.check()
        except StopIteration:
            return self._delta(text + self.end("length"))
        except Exception as error:
            return self._delta(text + self.fail(error))
        self._asks = event
        self.waiting = dict(enumerate(event))
        return self._delta(text) if text else None

    def end(self, reason: FinishReason, error: str | None = None) -> str:
        """Stop here; returns the text that was still held back."""
        held = "" if self.stopper.finish_reason else self.stopper.cancel().text
        self._finish(reason, error)
        return held

    def fail(self, error: Exception) -> str:
        """End with an error; what was written before it stays in the result."""
        return self.end("error", f"{type(error).__name__}: {error}")

    def last_delta(self, text: str) -> Delta:
        return self._delta(text)

    def _commit(self, commit: Commit) -> str:
        cut = self.stopper.push(commit.tokens)
        judged = commit.judged
        if commit.logits is not None:
            judged = judge(commit.logits, commit.tokens, self.request.params.logprobs, commit.rows)
        scores = [each.logprob for each in judged]
        self._tokens += commit.tokens
        self._provenance += commit.provenance
        self._logprobs += scores
        if self.request.params.logprobs:
            self._tops += [each.top or {} for each in judged]
        self._rounds.append(
            Round(
                index=len(self._rounds),
                proposed=commit.proposed,
                committed=commit.tokens,
                provenance=commit.provenance,
                logprobs=tuple(scores),
                seconds=time.perf_counter() - self._began,
                target_passes=self._passes[0],
                draft_passes=self._passes[1],
                notes=commit.notes,
            )
        )
        self._passes = [0, 0]
        if cut.finish_reason is not None:
            self._finish(cut.finish_reason)
        return cut.text

    def _finish(self, reason: FinishReason, error: str | None = None) -> None:
        self._generator.close()
        self.waiting.clear()
        seconds = time.perf_counter() - self._began
        length = self.stopper.length
        rounds = _cut(self._rounds, length)
        tops = tuple(self._tops[:length]) if self.request.params.logprobs else None
        self.result = Result(
            request=self.name,
            text=self.stopper.text,
            token_ids=tuple(self._tokens[:length]),
            finish_reason=reason,
            stop_reason=self.stopper.stop_reason,
            logprobs=tuple(self._logprobs[:length]),
            top_logprobs=tops,
            provenance=tuple(self._provenance[:length]),
            statistics=summarise(rounds, len(self.request.prompt), length, seconds),
            rounds=rounds,
            seed=self.request.randomness.seed,
            error=error,
        )

    def _delta(self, text: str) -> Delta:
        done = self.result is not None
        stable = self.stopper.length if done else self.stopper.stable_length
        # A stop string may end the text before a token that was already told: never less.
        new = slice(self._told, max(stable, self._told))
        self._told = new.stop
        return Delta(
            request=self.name,
            text=text,
            token_ids=tuple(self._tokens[new]),
            provenance=tuple(self._provenance[new]),
            logprobs=tuple(self._logprobs[new]),
            top_logprobs=tuple(self._tops[new]),
            result=self.result,
        )


def _begun(method: Method, request: Request, models: Models) -> Steps[None]:
    """What a method raises before its first step must be raised by its generator, too."""
    yield from method.run(request, models)


def _cut(rounds: list[Round], length: int) -> tuple[Round, ...]:
    """The rounds of the first `length` tokens; the last one keeps only what stands."""
    kept: list[Round] = []
    room = length
    for record in rounds:
        if len(record.committed) <= room:
            kept.append(record)
            room -= len(record.committed)
            continue
        kept.append(
            Round(
                index=record.index,
                proposed=record.proposed,
                committed=record.committed[:room],
                provenance=record.provenance[:room],
                logprobs=record.logprobs[:room],
                seconds=record.seconds,
                target_passes=record.target_passes,
                draft_passes=record.draft_passes,
                notes=record.notes,
            )
        )
        room = 0
    return tuple(kept)
