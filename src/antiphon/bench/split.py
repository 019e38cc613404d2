"""Where a round's time goes: draft passes, target passes, and everything else.

The clock sits around each model's forward, outside of method and engine: whatever a round
takes beyond its passes is overhead, wherever it is spent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from antiphon.engine import Engine, Vocabulary
from antiphon.errors import UserError
from antiphon.methods import Method, Models
from antiphon.models.base import Extension, LanguageModel, Scores
from antiphon.models.tree import KVTree
from antiphon.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Split:
    """A method's mean round, in milliseconds.

    A round ends with a target pass, whichever requests of the batch take part in it. The
    first one of each batch reads the prompts and does not count.

    Attributes:
        name: the method's.
        rounds: how many were timed.
        requests: that took part in a target pass, on average.
        draft_ms, target_ms: in the models' forwards.
        engine_ms: everything else: sampling, judging, trees, text, statistics.
    """

    name: str
    rounds: int
    requests: float
    draft_ms: float
    target_ms: float
    engine_ms: float

    @property
    def round_ms(self) -> float:
        return self.draft_ms + self.target_ms + self.engine_ms

    @property
    def engine_share(self) -> float:
        """The engine's part of a round, 0 to 1."""
        return self.engine_ms / self.round_ms

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"round_ms": self.round_ms, "engine_share": self.engine_share}


@dataclass
class Timed:
    """A `LanguageModel` that notes when its passes began and ended.

    Attributes:
        passes: begin, end (seconds) and number of asks of each forward so far.
    """

    model: LanguageModel
    passes: list[tuple[float, float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.model.name
        self.vocab_size = self.model.vocab_size
        self.context_length = self.model.context_length

    def new_tree(self, capacity: int) -> KVTree:
        return self.model.new_tree(capacity)

    def forward(self, asks: Sequence[Extension]) -> list[Scores]:
        began = time.perf_counter()
        scores = self.model.forward(asks)
        if scores[0].logits.is_cuda:
            torch.cuda.synchronize()  # A pass is over when its logits are there.
        self.passes.append((began, time.perf_counter(), len(asks)))
        return scores


def split_rounds(
    name: str,
    method: Method,
    models: Models,
    vocabulary: Vocabulary,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    batch: int,
) -> Split:
    """Run a method on `prompts`, `batch` at a time, and split its rounds.

    Raises:
        UserError: where no request writes more than one round.
        RuntimeError: if the method itself failed.
    """
    target = Timed(models.target)
    draft = None if models.draft is None else Timed(models.draft)
    engine = Engine(replace(models, target=target, draft=draft), vocabulary, batch)
    engine.generate(prompts[:1], [replace(params, max_tokens=8)], method)  # Warms up.
    rounds = asked = 0
    seconds = {"target": 0.0, "draft": 0.0, "all": 0.0}
    for start in range(0, len(prompts), batch):
        group = prompts[start : start + batch]
        target.passes.clear()
        results = engine.generate(group, [params] * len(group), method)
        error = next((result.error for (result, *_) in results if result.error), None)
        if error:
            raise RuntimeError(f"{name}: {error}")
        (_, begin, _), *timed = target.passes
        if not timed:
            continue
        rounds += len(timed)
        asked += sum(count for _, _, count in timed)
        end = timed[-1][1]
        seconds["all"] += end - begin
        seconds["target"] += sum(ended - began for began, ended, _ in timed)
        drafted = draft.passes if draft is not None else []
        seconds["draft"] += sum(ended - began for began, ended, _ in drafted if begin < began < end)
    if not rounds:
        raise UserError("nothing was left to time after the prompts: raise --max-tokens")
    engine_seconds = seconds["all"] - seconds["target"] - seconds["draft"]
    return Split(
        name=name,
        rounds=rounds,
        requests=asked / rounds,
        draft_ms=1e3 * seconds["draft"] / rounds,
        target_ms=1e3 * seconds["target"] / rounds,
        engine_ms=1e3 * engine_seconds / rounds,
    )
