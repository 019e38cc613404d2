"""The race: contestants take turns, prompt by prompt, and are compared pair by pair.

Machines drift, so a contestant's speed alone says little: every ratio compares laps that ran
one after the other on the same prompts. Its interval is a bootstrap over prompts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.progress import track

from antiphon.bench.contestants import Contestant, Lap
from antiphon.params import SamplingParams

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Row:
    """One contestant against the first one.

    Attributes:
        tokens_per_second: all tokens / all seconds, prefill included.
        decode_tokens_per_second: tokens after the first ones / seconds after them.
        ratio, ratio_low, ratio_high: of `tokens_per_second` to the first contestant's, with
            the bootstrap's 2.5 and 97.5 percentiles.
        decode_ratio, decode_ratio_low, decode_ratio_high: the same, of the decode speeds.
        same_text: prompts on which it wrote the first contestant's very tokens.
    """

    name: str
    tokens_per_second: float
    decode_tokens_per_second: float
    ratio: float
    ratio_low: float
    ratio_high: float
    decode_ratio: float
    decode_ratio_low: float
    decode_ratio_high: float
    same_text: int


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, the first contestant's first."""

    rows: tuple[Row, ...]
    prompts: int
    repeats: int
    batch: int
    max_tokens: int
    temperature: float

    def to_json(self) -> dict[str, Any]:
        first = self.rows[0].name
        ratios = {f"{row.name}/{first}": row.ratio for row in self.rows[1:]}
        decode = {f"{row.name}/{first}": row.decode_ratio for row in self.rows[1:]}
        return asdict(self) | {"ratios": ratios, "decode_ratios": decode}


def race(
    field: Sequence[Contestant],
    prompts: Sequence[str],
    params: SamplingParams,
    repeats: int = 1,
    out: Path | None = None,
) -> Report:
    """Let every contestant answer every group of prompts in turn.

    Args:
        field: contestants; the first is what the others are compared with.
        prompts: answered in groups of the largest batch in the field.
        repeats: times over all prompts.
        out: JSONL file that gets a line per lap as it ends.
    """
    size = max(contestant.batch for contestant in field)
    groups = [list(prompts[i : i + size]) for i in range(0, len(prompts), size)]
    for contestant in field:
        contestant.run(groups[0][:1], SamplingParams(max_tokens=8))  # Warm-up, not counted.
    laps: dict[str, list[Lap]] = {contestant.name: [] for contestant in field}
    for repeat in range(repeats):
        for number, group in enumerate(
            track(groups, f"race {repeat + 1}/{repeats}", transient=True)
        ):
            for contestant in field:
                lap = contestant.run(group, params)
                laps[contestant.name].append(lap)
                if out is not None:
                    _append(out, contestant.name, repeat, number, lap)
    first = laps[field[0].name]
    rows = tuple(_row(contestant.name, laps[contestant.name], first) for contestant in field)
    return Report(rows, len(prompts), repeats, size, params.max_tokens, params.temperature)


def _row(name: str, laps: Sequence[Lap], first: Sequence[Lap]) -> Row:
    same = sum(
        a == b
        for lap, other in zip(laps, first, strict=True)
        for a, b in zip(lap.token_ids, other.token_ids, strict=True)
    )
    speed, ratio, low, high = _compare(
        [(lap.tokens, lap.seconds) for lap in laps],
        [(lap.tokens, lap.seconds) for lap in first],
    )
    decode_speed, decode_ratio, decode_low, decode_high = _compare(
        [(lap.decode_tokens, lap.decode_seconds) for lap in laps],
        [(lap.decode_tokens, lap.decode_seconds) for lap in first],
    )
    return Row(
        name=name,
        tokens_per_second=speed,
        decode_tokens_per_second=decode_speed,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        decode_ratio=decode_ratio,
        decode_ratio_low=decode_low,
        decode_ratio_high=decode_high,
        same_text=same,
    )


def _compare(
    mine: Sequence[tuple[int, float]], theirs: Sequence[tuple[int, float]]
) -> tuple[float, float, float, float]:
    """My speed, its ratio to theirs, and the ratio's bootstrap interval over laps."""
    a, b = np.array(mine, dtype=float), np.array(theirs, dtype=float)
    picks = np.random.default_rng(0).integers(0, len(a), (RESAMPLES, len(a)))

    def speed(laps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray(laps[..., 0].sum(-1) / np.maximum(laps[..., 1].sum(-1), 1e-9))

    low, high = np.percentile(speed(a[picks]) / np.maximum(speed(b[picks]), 1e-9), [2.5, 97.5])
    mean, other = float(speed(a)), float(speed(b))
    return mean, mean / max(other, 1e-9), float(low), float(high)


def _append(out: Path, name: str, repeat: int, group: int, lap: Lap) -> None:
    record = {"contestant": name, "repeat": repeat, "group": group, **asdict(lap)}
    with out.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(record) + "\n")
