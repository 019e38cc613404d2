"""What a caller gets: a `Result` per sample, and `Delta`s on the way there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from antiphon.request import Provenance
from antiphon.trace import Round, Statistics

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Result:
    """One finished sample; everything in it ends at the same place.

    Attributes:
        request: the engine's name for the sample.
        text: the visible text, without the stop string or end token.
        token_ids: the output; an end token stays its last id, as in vLLM and transformers.
        finish_reason: "stop", "length", "cancelled" (by the caller) or "error".
        stop_reason: the stop string or stop token id that ended the text, if one did.
        logprobs: the target's log-probability of each token, natural log, before temperature
            and truncation.
        top_logprobs: per token the most probable alternatives, if they were asked for.
        provenance: who wrote each token.
        statistics: counts and times.
        rounds: the trace.
        seed: the seed in use, also when none was given.
        error: what went wrong, for "error".
    """

    request: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: tuple[float, ...]
    top_logprobs: tuple[Mapping[int, float], ...] | None
    provenance: tuple[Provenance, ...]
    statistics: Statistics
    rounds: tuple[Round, ...]
    seed: int
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The result as one JSON-ready object, without the rounds."""
        record = {name: getattr(self, name) for name in self.__slots__ if name != "rounds"}
        return record | {"statistics": asdict(self.statistics)}


@dataclass(frozen=True, slots=True)
class Delta:
    """News of one sample: text that will not be taken back, and the end, when it comes.

    Attributes:
        request: the sample.
        text: newly safe text; concatenated, the deltas give `Result.text`.
        token_ids, provenance, logprobs: the tokens whose text is now complete.
        top_logprobs: their alternatives; empty if none were asked for.
        result: the finished sample, in its last delta.
    """

    request: str
    text: str
    token_ids: tuple[int, ...]
    provenance: tuple[Provenance, ...]
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[Mapping[int, float], ...] = ()
    result: Result | None = None
