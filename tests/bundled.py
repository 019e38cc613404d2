"""The bundled pair in float32, loaded once a process, and what methods write with it."""

from __future__ import annotations

from functools import cache
from typing import Any

from antiphon.api import encode, make_engine, needs_costs
from antiphon.lab import problems
from antiphon.models.pair import LoadOptions, ModelPair, load_pair
from antiphon.params import SamplingParams

PROBLEMS = problems("test")[:8]


@cache
def pair() -> ModelPair:
    return load_pair(options=LoadOptions(dtype="float32"))


def run(method: Any, batch: int = 16, models: ModelPair | None = None, **fields: Any) -> list[Any]:
    """A method's results on `PROBLEMS`, none of which may have failed."""
    models = models or pair()
    params = [SamplingParams(**{"max_tokens": 80, "seed": 3, **fields})] * len(PROBLEMS)
    prompts = [encode(models, problem.question) for problem in PROBLEMS]
    engine = make_engine(models, batch=batch, costs=needs_costs(method))
    results = engine.generate(prompts, params, method)
    assert not [result.error for (result,) in results if result.error]
    return [result for (result,) in results]
