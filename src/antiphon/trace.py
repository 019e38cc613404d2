"""What happened, per round: the record behind statistics, provenance and cost models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from antiphon.request import Provenance


@dataclass(frozen=True, slots=True)
class Round:
    """One commit of one request.

    Attributes:
        index: 0, 1, ... within the request.
        proposed: draft tokens of the round, all chains.
        committed: tokens that stand, after the text was cut where it ends.
        provenance: who wrote each committed token.
        logprobs: the target's log-probability of each, natural log, before temperature.
        seconds: since the request was admitted.
        target_passes, draft_passes: forwards the request took part in since the last round.
        notes: what the method adds.
    """

    index: int
    proposed: tuple[int, ...]
    committed: tuple[int, ...]
    provenance: tuple[Provenance, ...]
    logprobs: tuple[float, ...]
    seconds: float
    target_passes: int
    draft_passes: int
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Statistics:
    """A request in numbers. Names shared with vLLM mean what they mean there.

    Attributes:
        prompt_tokens, completion_tokens: lengths; the output's counts its end token.
        num_spec_steps: rounds in which something was drafted.
        num_draft_tokens: tokens drafted, all chains.
        num_accepted_draft_tokens: drafted tokens that stand in the output.
        draft_acceptance_rate: accepted / drafted, 0 where nothing was drafted.
        mean_acceptance_length: tokens a speculative round emits on average, bonus or
            correction included: 1 + accepted / steps.
        target_passes, draft_passes: forwards, the ones that read the prompt included.
        prefill_seconds: from admission to the first committed token.
        decode_seconds: from there to the end.
        tokens_per_second: completion tokens / (prefill + decode) seconds.
        decode_tokens_per_second: tokens after the first commit / decode seconds.
    """

    prompt_tokens: int
    completion_tokens: int
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    draft_acceptance_rate: float
    mean_acceptance_length: float
    target_passes: int
    draft_passes: int
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float
    decode_tokens_per_second: float


def summarise(
    rounds: Sequence[Round], prompt_tokens: int, completion_tokens: int, seconds: float
) -> Statistics:
    """Fold a request's rounds into its statistics.

    Args:
        rounds: in order, already cut where the text ends.
        completion_tokens: kept output tokens.
        seconds: from admission to the end.
    """
    # A method that commits seldom says how many rounds of drafting a commit stands for.
    steps = sum(int(r.notes.get("rounds", 1)) for r in rounds if r.proposed)
    drafted = sum(len(r.proposed) for r in rounds)
    accepted = sum(r.provenance.count("draft") for r in rounds if r.proposed)
    prefill = rounds[0].seconds if rounds else seconds
    first = len(rounds[0].committed) if rounds else 0
    decode = seconds - prefill
    return Statistics(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        num_spec_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_draft_tokens=accepted,
        draft_acceptance_rate=accepted / drafted if drafted else 0.0,
        mean_acceptance_length=1 + accepted / steps if steps else 1.0,
        target_passes=sum(r.target_passes for r in rounds),
        draft_passes=sum(r.draft_passes for r in rounds),
        prefill_seconds=prefill,
        decode_seconds=decode,
        tokens_per_second=completion_tokens / seconds if seconds > 0 else 0.0,
        decode_tokens_per_second=(completion_tokens - first) / decode if decode > 0 else 0.0,
    )


class TraceWriter:
    """Writes one JSON line per round, and one per finished request, to a file."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("w", encoding="utf-8")

    def round(self, request: str, record: Round) -> None:
        self._write({"event": "round", "request": request, **asdict(record)})

    def finished(self, request: str, record: Mapping[str, Any]) -> None:
        self._write({"event": "finished", "request": request, **record})

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()
