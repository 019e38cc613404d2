"""The OpenAI objects of an answer, whole or in chunks, with ours beside where they are wanted."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from antiphon.detokenizer import Detokenizer
from antiphon.request import Provenance
from antiphon.result import Delta, Result

LOWEST = -9999.0
"""JSON has no -inf; OpenAI writes this."""


@dataclass
class Told:
    """One sample as it is told: its tokens' texts, from the first one on.

    Attributes:
        text_offset: characters told so far.
    """

    tokenizer: Any
    prompt: Sequence[int]
    text_offset: int = 0
    reader: Detokenizer = field(init=False)

    def __post_init__(self) -> None:
        self.reader = Detokenizer(self.tokenizer, self.prompt)

    def texts(self, token_ids: Sequence[int]) -> list[str]:
        """What each next token adds to the text."""
        return [self.reader.push(token) for token in token_ids]


class Answer:
    """Writes one request's answer as ``text_completion`` or ``chat.completion`` objects.

    Args:
        chat: which of the two.
        model: as the request named it.
        prompt_tokens: of all its prompts.
        alternatives: how many a token's log-probabilities are told with; None: none are told.
        verbose: tell our own things too: who wrote each token, and the statistics.
    """

    def __init__(
        self,
        tokenizer: Any,
        chat: bool,
        model: str,
        prompt_tokens: int,
        alternatives: int | None,
        verbose: bool,
    ) -> None:
        self.tokenizer, self.chat, self.model = tokenizer, chat, model
        self.prompt_tokens = prompt_tokens
        self.alternatives, self.verbose = alternatives, verbose
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    def whole(self, told: Sequence[Told], results: Sequence[Result]) -> dict[str, Any]:
        """The answer in one object."""
        choices = []
        for index, (voice, result) in enumerate(zip(told, results, strict=True)):
            choice = self._choice(index, result.finish_reason)
            if self.chat:
                choice["message"] = {"role": "assistant", "content": result.text, "refusal": None}
            else:
                choice["text"] = result.text
            pieces = voice.texts(result.token_ids)
            tops = result.top_logprobs or ()
            choice["logprobs"] = self._logprobs(voice, pieces, result.logprobs, tops)
            if self.verbose:
                choice["antiphon"] = _ours(pieces, result.provenance) | end_notes(result)
            choices.append(choice)
        return self._envelope(choices, chunk=False) | {"usage": usage(self.prompt_tokens, results)}

    def opening(self, index: int) -> dict[str, Any] | None:
        """A chat's first chunk says who speaks."""
        if not self.chat:
            return None
        choice = self._choice(index, None) | {"delta": {"role": "assistant", "content": ""}}
        return self._envelope([choice], chunk=True)

    def chunk(self, index: int, voice: Told, delta: Delta) -> dict[str, Any]:
        """What a delta adds."""
        result = delta.result
        choice = self._choice(index, result.finish_reason if result else None)
        if self.chat:
            choice["delta"] = {"content": delta.text} if delta.text else {}
        else:
            choice["text"] = delta.text
        pieces = voice.texts(delta.token_ids)
        choice["logprobs"] = self._logprobs(voice, pieces, delta.logprobs, delta.top_logprobs)
        if self.verbose:
            choice["antiphon"] = _ours(pieces, delta.provenance)
            if result is not None:
                choice["antiphon"] |= end_notes(result)
        return self._envelope([choice], chunk=True)

    def closing(self, results: Sequence[Result]) -> dict[str, Any]:
        """The chunk that ``stream_options.include_usage`` asks for."""
        return self._envelope([], chunk=True) | {"usage": usage(self.prompt_tokens, results)}

    def _envelope(self, choices: list[dict[str, Any]], chunk: bool) -> dict[str, Any]:
        kind = "text_completion"
        if self.chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _choice(self, index: int, reason: str | None) -> dict[str, Any]:
        return {"index": index, "finish_reason": reason, "logprobs": None}

    def _logprobs(
        self,
        voice: Told,
        pieces: Sequence[str],
        logprobs: Sequence[float],
        tops: Sequence[Mapping[int, float]],
    ) -> dict[str, Any] | None:
        if self.alternatives is None:
            return None
        values = [_finite(value) for value in logprobs]
        named = [
            {self.tokenizer.decode([token]): _finite(value) for token, value in top.items()}
            for top in tops or [{}] * len(pieces)
        ]
        if self.chat:
            return {
                "content": [
                    _token(piece, value)
                    | {"top_logprobs": [_token(text, lp) for text, lp in top.items()]}
                    for piece, value, top in zip(pieces, values, named, strict=True)
                ]
            }
        offsets = []
        for piece in pieces:
            offsets.append(voice.text_offset)
            voice.text_offset += len(piece)
        return {
            "tokens": list(pieces),
            "token_logprobs": values,
            "top_logprobs": named if self.alternatives else None,
            "text_offset": offsets,
        }


def usage(prompt_tokens: int, results: Sequence[Result]) -> dict[str, int]:
    """Token counts; a prompt with several samples counts once, as `prompt_tokens` does."""
    completion = sum(len(result.token_ids) for result in results)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
    }


def end_notes(result: Result) -> dict[str, Any]:
    """What is known at the end: statistics, rounds, the seed and what ended the text."""
    return {
        "statistics": asdict(result.statistics),
        "seed": result.seed,
        "stop_reason": result.stop_reason,
        "rounds": [
            {
                "proposed": len(record.proposed),
                "provenance": list(record.provenance),
                "seconds": record.seconds,
                "target_passes": record.target_passes,
                "draft_passes": record.draft_passes,
                "notes": clean(record.notes),
            }
            for record in result.rounds
        ],
    }


def _ours(pieces: Sequence[str], provenance: Sequence[Provenance]) -> dict[str, Any]:
    return {
        "tokens": [{"text": text, "who": who} for text, who in zip(pieces, provenance, strict=True)]
    }


def clean(value: Any) -> Any:
    """JSON knows no infinity."""
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _token(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "logprob": value, "bytes": list(text.encode("utf-8"))}


def _finite(value: float) -> float:
    return value if math.isfinite(value) else LOWEST
