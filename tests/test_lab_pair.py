"""The bundled pair: greedy speculation is the target's own text, on a real model.

By default a few problems and settings; `--slow` runs 200 problems, every drafter, block lengths
1 to 12, alone and in batches of 16.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from antiphon.api import encode, generate, generate_many, make_engine, stream
from antiphon.lab import pair_path, problems
from antiphon.methods import Autoregressive, Method, Speculative
from antiphon.models.pair import SELF, LoadOptions, ModelPair, load_pair
from antiphon.params import SamplingParams
from antiphon.result import Result

GREEDY = SamplingParams(max_tokens=120)
QUESTIONS = [problem.question for problem in problems("test")[:200]]


@functools.cache
def pair(draft: str | None = None) -> ModelPair:
    return load_pair(draft=draft, options=LoadOptions(dtype="float32"))


@functools.cache
def reference(count: int) -> list[tuple[int, ...]]:
    """Transformers' own greedy `generate`, one prompt at a time."""
    stock: Any = AutoModelForCausalLM.from_pretrained(pair_path("target"), dtype=torch.float32)
    outputs = []
    for question in QUESTIONS[:count]:
        ids = torch.tensor([encode(pair(), question)])
        with torch.no_grad():
            out = stock.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=GREEDY.max_tokens,
                do_sample=False,
            )
        outputs.append(tuple(out[0, ids.shape[1] :].tolist()))
    return outputs


def texts(method: Method, count: int, batch: int, draft: str | None = None) -> list[Any]:
    groups = generate_many(pair(draft), QUESTIONS[:count], method, GREEDY, batch=batch)
    return [group[0].token_ids for group in groups]


@pytest.mark.parametrize("batch", [1, 16])
def test_autoregressive_decoding_is_transformers_generate(batch: int) -> None:
    assert texts(Autoregressive(), 16, batch) == reference(16)


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize(
    ("method", "draft"),
    [
        (Speculative(gamma=1), None),
        (Speculative(gamma=5), None),
        (Speculative(gamma=12), None),
        (Speculative(gamma=4, chains=3), None),
        (Speculative(gamma=8, confidence=0.6), None),
        (Speculative(gamma=4), SELF),
        (Speculative(gamma=6, drafter="ngram"), None),
    ],
    ids=str,
)
def test_greedy_speculation_is_the_same(method: Method, draft: str | None, batch: int) -> None:
    assert texts(method, 8, batch, draft) == reference(16)[:8]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("gamma", range(1, 13))
@pytest.mark.parametrize("drafter", ["model", "chains", "ngram", "self"])
def test_all_of_it_on_200_problems(drafter: str, gamma: int, batch: int) -> None:
    method = Speculative(
        gamma=gamma,
        drafter="ngram" if drafter == "ngram" else "model",
        chains=3 if drafter == "chains" else 1,
    )
    draft = SELF if drafter == "self" else None
    assert texts(method, 200, batch, draft) == reference(200)


SAMPLING = SamplingParams(temperature=0.8, top_p=0.95, seed=11, max_tokens=80)
SAMPLING_METHODS: list[Method] = [
    Autoregressive(),
    Speculative(gamma=4),
    Speculative(gamma=3, chains=2),
    Speculative(gamma=5, drafter="ngram"),
]


@pytest.mark.parametrize("method", SAMPLING_METHODS, ids=str)
def test_same_seed_same_text_at_any_batch_beside_any_neighbour_streamed_or_not(
    method: Method,
) -> None:
    """Fixed seeds: a false alarm would need a random number within 1e-6 of a boundary."""
    questions = QUESTIONS[:6]
    alone = [generate(pair(), q, method, SAMPLING).token_ids for q in questions]
    batched = generate_many(pair(), questions, method, SAMPLING, batch=16)
    assert [group[0].token_ids for group in batched] == alone

    engine = make_engine(pair(), batch=16)
    names = []
    for i, question in enumerate(questions):
        other = SAMPLING_METHODS[i % len(SAMPLING_METHODS)]
        engine.submit(encode(pair(), QUESTIONS[50 + i]), SAMPLING, other)
        names += engine.submit(encode(pair(), question), SAMPLING, method)
    done: dict[str, Result] = {}
    while engine.busy:
        done |= {delta.request: delta.result for delta in engine.step() if delta.result}
    assert [done[name].token_ids for name in names] == alone

    deltas = list(stream(pair(), questions[0], method, SAMPLING))
    assert deltas[-1].result is not None
    assert deltas[-1].result.token_ids == alone[0]
    assert "".join(delta.text for delta in deltas) == deltas[-1].result.text


def test_logprobs_are_the_targets_at_every_position() -> None:
    """Guards llama.cpp's zero logprobs: drafted positions carry the target's own."""
    plain = generate(pair(), QUESTIONS[0], Autoregressive(), GREEDY)
    fast = generate(pair(), QUESTIONS[0], Speculative(gamma=4), GREEDY)
    assert fast.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
    assert "draft" in fast.provenance


def test_every_token_of_a_self_draft_is_accepted() -> None:
    result = generate(pair(SELF), QUESTIONS[1], Speculative(gamma=4), SAMPLING)
    assert result.statistics.draft_acceptance_rate > 0.99
