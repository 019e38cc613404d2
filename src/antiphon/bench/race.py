"""The race: contestants take turns, prompt by prompt, and are compared pair by pair.

Machines drift, so a contestant's speed alone says little: every ratio compares laps that ran
one after the other on the same prompts. Its interval is a bootstrap over prompts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.progress import track

from antiphon.bench.laps import Contestant, Lap, PeerError
from antiphon.eval.statistics import Estimate
from antiphon.params import SamplingParams

RESAMPLES = 2000

Laps = npt.NDArray[np.float64]
"""Tokens and seconds of each lap."""


@dataclass(frozen=True, slots=True)
class Row:
    """One contestant against the first one.

    Attributes:
        tokens_per_second: all tokens / all seconds, prefill included.
        decode_tokens_per_second: tokens after the first ones / seconds after them; 0 where a
            contestant cannot tell when its first tokens came, or wrote none after them.
        ratio, ratio_low, ratio_high: of `tokens_per_second` to the first contestant's, with
            the bootstrap's 2.5 and 97.5 percentiles.
        decode_ratio, decode_ratio_low, decode_ratio_high: the same, of the decode speeds.
        same_text: prompts on which it wrote the first contestant's very tokens.
        speed_low, speed_high, decode_speed_low, decode_speed_high: percentiles of both speeds.
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
    speed_low: float
    speed_high: float
    decode_speed_low: float
    decode_speed_high: float


@dataclass(frozen=True, slots=True)
class Versus:
    """Two contestants' speeds as ratios, with and without the reading of the prompts.

    Attributes:
        decode: None where one of them has no decode speed.
    """

    whole: Estimate
    decode: Estimate | None


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, the first contestant's first.

    Attributes:
        versus: "A/B" -> A's speed over B's: all over the first, each method over each peer.
        about: contestant -> what it told of itself, where it told anything.
        failed: peers that dropped out -> why; they have no row.
    """

    rows: tuple[Row, ...]
    prompts: int
    repeats: int
    batch: int
    max_tokens: int
    temperature: float
    versus: Mapping[str, Versus]
    about: Mapping[str, Mapping[str, Any]]
    failed: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        record = asdict(self)
        del record["versus"]
        whole = {pair: versus.whole for pair, versus in self.versus.items()}
        decode = {pair: versus.decode for pair, versus in self.versus.items() if versus.decode}
        for prefix, ratios in (("", whole), ("decode_", decode)):
            record[f"{prefix}ratios"] = {pair: ratio.value for pair, ratio in ratios.items()}
            record[f"{prefix}ratio_intervals"] = {
                pair: [ratio.low, ratio.high] for pair, ratio in ratios.items()
            }
        return record


def race(
    field: Sequence[Contestant],
    prompts: Sequence[str],
    params: SamplingParams,
    repeats: int = 1,
    out: Path | None = None,
) -> Report:
    """Let every contestant answer every group of prompts in turn.

    A peer that fails drops out, and the others go on.

    Args:
        field: contestants; the first is what the others are compared with.
        prompts: answered in groups of the largest batch in the field.
        repeats: times over all prompts.
        out: JSONL file that gets a line per lap as it ends.

    Raises:
        PeerError: if no contestant is left.
    """
    size = max(contestant.batch for contestant in field)
    groups = [list(prompts[i : i + size]) for i in range(0, len(prompts), size)]
    running = list(field)
    laps: dict[str, list[Lap]] = {contestant.name: [] for contestant in field}
    failed: dict[str, str] = {}

    def turns(group: Sequence[str], params: SamplingParams, repeat: int, number: int) -> None:
        for contestant in tuple(running):
            try:
                lap = contestant.run(group, params)
            except PeerError as error:
                failed[contestant.name] = str(error)
                running.remove(contestant)
                if not running:
                    raise
                continue
            if number < 0:
                continue
            laps[contestant.name].append(lap)
            if out is not None:
                _append(out, contestant.name, repeat, number, lap)

    turns(groups[0][:1], replace(params, max_tokens=8), 0, -1)  # Warm-up, not counted.
    for repeat in range(repeats):
        for number, group in enumerate(
            track(groups, f"race {repeat + 1}/{repeats}", transient=True)
        ):
            turns(group, params, repeat, number)
    first = laps[running[0].name]
    return Report(
        rows=tuple(_row(each.name, laps[each.name], first) for each in running),
        prompts=len(prompts),
        repeats=repeats,
        batch=size,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        versus={
            f"{mine.name}/{theirs.name}": _versus(laps[mine.name], laps[theirs.name])
            for mine in running
            for theirs in running
            if mine is not theirs and (theirs is running[0] or (theirs.peer and not mine.peer))
        },
        about={each.name: dict(each.about) for each in running if each.about},
        failed=failed,
    )


def _row(name: str, laps: Sequence[Lap], first: Sequence[Lap]) -> Row:
    same = sum(
        a == b
        for lap, other in zip(laps, first, strict=True)
        for a, b in zip(lap.token_ids, other.token_ids, strict=True)
    )
    versus = _versus(laps, first)
    decode = versus.decode or Estimate(0.0, 0.0, 0.0)
    speed, decode_speed = _estimate(_whole(laps)), _estimate(_decode(laps))
    return Row(
        name=name,
        tokens_per_second=speed.value,
        decode_tokens_per_second=decode_speed.value,
        ratio=versus.whole.value,
        ratio_low=versus.whole.low,
        ratio_high=versus.whole.high,
        decode_ratio=decode.value,
        decode_ratio_low=decode.low,
        decode_ratio_high=decode.high,
        same_text=same,
        speed_low=speed.low,
        speed_high=speed.high,
        decode_speed_low=decode_speed.low,
        decode_speed_high=decode_speed.high,
    )


def _whole(laps: Sequence[Lap]) -> Laps:
    return np.array([(lap.tokens, lap.seconds) for lap in laps], dtype=float)


def _decode(laps: Sequence[Lap]) -> Laps:
    return np.array([(lap.decode_tokens, lap.decode_seconds) for lap in laps], dtype=float)


def _versus(mine: Sequence[Lap], theirs: Sequence[Lap]) -> Versus:
    both = _decode(mine), _decode(theirs)
    known = all(_speed(laps) > 0 for laps in both)
    return Versus(_compare(_whole(mine), _whole(theirs)), _compare(*both) if known else None)


def _compare(mine: Laps, theirs: Laps) -> Estimate:
    """The ratio of two speeds, and its bootstrap interval over laps."""
    picks = _picks(len(mine))
    ratios = _speeds(mine[picks]) / np.maximum(_speeds(theirs[picks]), 1e-9)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Estimate(_speed(mine) / max(_speed(theirs), 1e-9), float(low), float(high))


def _estimate(laps: Laps) -> Estimate:
    """One speed with its interval."""
    low, high = np.percentile(_speeds(laps[_picks(len(laps))]), [2.5, 97.5])
    return Estimate(_speed(laps), float(low), float(high))


def _picks(laps: int) -> npt.NDArray[np.int64]:
    """Which laps each resample holds: the same for all, so that ratios are of paired laps."""
    return np.random.default_rng(0).integers(0, laps, (RESAMPLES, laps))


def _speeds(laps: Laps) -> Laps:
    """Tokens per second of the laps along the last but one axis."""
    return np.asarray(laps[..., 0].sum(-1) / np.maximum(laps[..., 1].sum(-1), 1e-9))


def _speed(laps: Laps) -> float:
    return float(_speeds(laps))


def _append(out: Path, name: str, repeat: int, group: int, lap: Lap) -> None:
    record = {"contestant": name, "repeat": repeat, "group": group, **asdict(lap)}
    with out.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(record) + "\n")
