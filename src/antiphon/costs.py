"""What a pass costs on this machine: seconds over the number of rows, measured once.

Decoding is bound by reading weights, so a pass over 8 tokens costs nearly as much as one over
1 up to some ridge. Everything speculation can win turns on how flat that curve is and on the
ratio of a draft pass to a target pass.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from antiphon.cache import cache_home, mark, whole
from antiphon.models import fused
from antiphon.models.base import Extension, LanguageModel

ROWS = (1, 2, 4, 8, 16, 32, 64)
CACHED = 64
"""Tokens already in the tree while a pass is timed."""


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Median seconds of one pass, by rows; `seconds` interpolates linearly between them."""

    by_rows: Mapping[int, float]

    def __post_init__(self) -> None:
        if not self.by_rows or min(self.by_rows.values()) <= 0:
            raise ValueError("pass costs need at least one positive measurement")

    def seconds(self, rows: int) -> float:
        """Seconds of a pass over `rows` tokens (beyond the last one measured: its slope)."""
        known = sorted(self.by_rows)
        if rows <= known[0] or len(known) == 1:
            return self.by_rows[known[0]]
        upper = next((i for i, r in enumerate(known) if r >= rows), len(known) - 1)
        lo, hi = known[upper - 1], known[upper]
        slope = (self.by_rows[hi] - self.by_rows[lo]) / (hi - lo)
        return max(self.by_rows[lo] + slope * (rows - lo), self.by_rows[known[0]])


@dataclass(frozen=True, slots=True)
class PairCosts:
    """Pass costs of a target and of its draft (None: drafting is free, as n-grams are)."""

    target: PassCosts
    draft: PassCosts | None

    def round_seconds(self, gamma: int, crowd: int = 1) -> float:
        """One speculative round: gamma draft passes and a target pass over gamma + 1 rows.

        Args:
            crowd: requests that go through the round together, with as many rows each.
        """
        drafting = self.draft.seconds(crowd) * gamma if self.draft else 0.0
        return drafting + self.target.seconds(crowd * (gamma + 1))

    @property
    def ratio(self) -> float:
        """c: a draft pass in units of a target pass, both over one row."""
        return self.draft.seconds(1) / self.target.seconds(1) if self.draft else 0.0


def measure(model: LanguageModel, repeats: int = 7, seconds: float = 1.5) -> PassCosts:
    """Time passes over `ROWS` rows after `CACHED` cached tokens.

    The median of at least two passes, and of up to `repeats` while `seconds` last.
    """
    by_rows: dict[int, float] = {}
    for rows in ROWS:
        if CACHED + rows > model.context_length:
            break
        tree = model.new_tree(CACHED + max(ROWS))
        prefix = tuple(i % model.vocab_size for i in range(CACHED))
        scores = model.forward([Extension(model, tree, prefix)])[0]
        tree.commit(scores.nodes[-1])
        ask = Extension(model, tree, tuple(i % model.vocab_size for i in range(rows)))
        times: list[float] = []
        while len(times) < 3 or (len(times) <= repeats and sum(times) < seconds):
            began = time.perf_counter()
            model.forward([ask])
            times.append(time.perf_counter() - began)
            tree.prune()
        by_rows[rows] = statistics.median(times[1:])  # The first pass warms up.
    return PassCosts(by_rows)


def measured(
    model: LanguageModel,
    key: str,
    fresh: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> PassCosts:
    """Pass costs from this machine's profile, measured and stored on the first call.

    Args:
        model: the loaded model.
        key: what else the costs depend on: configuration, precision, device.
        fresh: measure again even if the profile has them.
        say: is told before a measurement, which takes a while on a large model.
    """
    mine = _fingerprint(model.name, key, fused.version())
    path = _profile_folder() / f"{mine}.json"
    if not fresh:
        try:
            stored = json.loads(path.read_text())
            return PassCosts({int(rows): float(s) for rows, s in stored["seconds"].items()})
        except (OSError, ValueError, KeyError):
            pass
    say(f"measuring the pass costs of {model.name}, once for this machine and precision")
    costs = measure(model)
    record = {"model": model.name, "key": key, "machine": machine(), "seconds": costs.by_rows}
    whole(path, lambda partial: partial.write_text(json.dumps(record, indent=1)))
    return costs


def machine() -> str:
    """This machine in a few words: processor, cores in use, PyTorch."""
    name = platform.processor() or platform.machine()
    try:
        with Path("/proc/cpuinfo").open() as lines:
            name = next(
                (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
                name,
            )
    except OSError:
        pass
    features = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {features}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _profile_folder() -> Path:
    return cache_home() / "costs"


def _fingerprint(*parts: str) -> str:
    return mark(*parts, machine())
