"""A pair's profile: what methods need to know of two models before they decode.

Thresholds differ from pair to pair, so they are collected once (`antiphon calibrate`), on
problems no result is reported on, and kept in a small JSON file. A profile belongs to one pair:
its fingerprint is made from both models' configurations, and the profile of another pair is
refused instead of silently deciding with foreign thresholds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.errors import UserError

LEVELS = (0.01, 0.02, 0.05, *(round(0.1 * i, 1) for i in range(1, 10)), 0.95, 0.98, 0.99)
"""The levels at which quantiles are kept."""
_VOLATILE = ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "quantization_config")


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution in short: its values at `LEVELS`, and how many numbers they come from."""

    values: tuple[float, ...]
    count: int

    def __post_init__(self) -> None:
        if len(self.values) != len(LEVELS) or list(self.values) != sorted(self.values):
            raise UserError(f"quantiles need {len(LEVELS)} rising values, one a level")

    def at(self, level: float) -> float:
        """The quantile at `level`, 0 to 1, linear between the kept ones."""
        return float(np.interp(level, LEVELS, self.values))


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured at one temperature, on text the target wrote at it.

    p and q below are the distributions at that temperature; at temperature 0, where those are
    one-hot, the ones at temperature 1 on greedy text.

    Attributes:
        acceptance: mean chance that a draft token passes the exact rule: the sum of min(p, q),
            at temperature 0 the agreement.
        agreement: share of positions at which both models' most probable tokens agree.
        quantities: name -> quantiles. ``target_entropy`` and ``draft_entropy`` (nats, at every
            position), the same with ``_mismatch`` where the most probable tokens differ;
            ``step_min_logprob`` and ``step_mean_logprob`` (the target's, per step of the text,
            nats, before temperature), ``draft_step_min_logprob``, ``draft_step_min_grounding``.
    """

    acceptance: float
    agreement: float
    quantities: Mapping[str, Quantiles]

    def quantile(self, name: str, level: float) -> float:
        """A quantile by name; raises UserError for a quantity that the profile lacks."""
        if name not in self.quantities:
            raise UserError(
                f"the profile has no {name!r}: run antiphon calibrate again "
                f"(it has {', '.join(self.quantities)})"
            )
        return self.quantities[name].at(level)


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of a pair.

    Attributes:
        pair: fingerprint of the pair, see `fingerprint`.
        description: the pair in words.
        source: task, data and number of problems it was collected on.
        seen: temperature, as text -> what was seen at it.
        machine, target_seconds, draft_seconds: pass costs by rows, and where they were taken;
            empty where they were not.
        boundary: where the text's steps end, of `methods.boundary.BOUNDARIES`.
    """

    pair: str
    description: str
    source: str
    seen: Mapping[str, Seen]
    machine: str
    target_seconds: Mapping[str, float]
    draft_seconds: Mapping[str, float]
    boundary: str = "blank-line"

    def __post_init__(self) -> None:
        if not self.seen:
            raise UserError("a profile needs one temperature at least")

    def at(self, temperature: float) -> Seen:
        """What was seen at a temperature, or what lies between its two neighbours.

        Temperature 0 is a case of its own and no neighbour. Raises UserError for a temperature
        beyond those that were looked at.
        """
        found = self.seen.get(f"{temperature:g}")
        if found is not None:
            return found
        warm = sorted(float(known) for known in self.seen if float(known) > 0)
        below = [known for known in warm if known < temperature]
        above = [known for known in warm if known > temperature]
        if not below or not above or temperature == 0:
            raise UserError(
                f"the profile knows the temperatures {', '.join(self.seen)}, not {temperature:g}: "
                "use one of them or one between, or run antiphon calibrate --temperatures "
                f"{','.join(self.seen)},{temperature:g}"
            )
        low, high = below[-1], above[0]
        share = (temperature - low) / (high - low)
        return _between(self.seen[f"{low:g}"], self.seen[f"{high:g}"], share)

    def nearest(self, temperature: float) -> Seen:
        """What was seen at the nearest temperature, where near is good enough."""
        return self.seen[min(self.seen, key=lambda known: abs(float(known) - temperature))]

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        partial.replace(path)


def load(path: Path, pair: str) -> Profile:
    """Read a profile for the pair of this fingerprint.

    Raises UserError for a file that is no profile, or another pair's.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        profile = Profile(**record | {"seen": _seen(record["seen"])})
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): check --profile") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: is no profile: make one with antiphon calibrate") from None
    if profile.pair != pair:
        raise UserError(
            f"{path}: is the profile of another pair ({profile.description}): "
            "make one for this pair with antiphon calibrate"
        )
    return profile


def _between(low: Seen, high: Seen, share: float) -> Seen:
    """A straight line from `low` (share 0) to `high` (share 1), number by number."""

    def mix(a: float, b: float) -> float:
        return a + share * (b - a)

    return Seen(
        acceptance=mix(low.acceptance, high.acceptance),
        agreement=mix(low.agreement, high.agreement),
        quantities={
            name: Quantiles(
                tuple(map(mix, a.values, high.quantities[name].values)),
                min(a.count, high.quantities[name].count),
            )
            for name, a in low.quantities.items()
            if name in high.quantities
        },
    )


def _seen(record: Any) -> dict[str, Seen]:
    return {
        temperature: Seen(
            acceptance=entry["acceptance"],
            agreement=entry["agreement"],
            quantities={
                name: Quantiles(tuple(kept["values"]), kept["count"])
                for name, kept in entry["quantities"].items()
            },
        )
        for temperature, entry in record.items()
    }


def fingerprint(*configs: Any) -> str:
    """16 hex digits of the models' transformers configurations; precision does not count."""
    plain = [
        {key: value for key, value in config.to_dict().items() if key not in _VOLATILE}
        for config in configs
    ]
    text = json.dumps(plain, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
