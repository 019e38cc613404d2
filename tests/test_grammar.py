"""A grammar masks p and q alike, so every method keeps to it and the exact ones stay exact."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from tests.bundled import pair

from antiphon.api import encode, make_engine
from antiphon.errors import UserError
from antiphon.methods import SMC, Autoregressive, CoSpec, Speculative, StepScore
from antiphon.params import SamplingParams
from antiphon.sampling import Context, distribution

pytest.importorskip("llguidance")

from antiphon.grammar import Grammar, json_grammar

SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "right": {"enum": ["yes", "no"]},
    },
    "required": ["count", "right"],
    "additionalProperties": False,
}


def grammar() -> Grammar:
    return Grammar(pair().tokenizer, json_grammar(SCHEMA), sorted(pair().eos_token_ids))


def run(method: Any, **fields: Any) -> list[Any]:
    params = SamplingParams(**{"max_tokens": 60, "seed": 2, "grammar": grammar(), **fields})
    prompts = [encode(pair(), f"Tom has {i} apples. How many apples?") for i in range(6)]
    results = make_engine(pair()).generate(prompts, [params] * 6, method)
    assert not [result.error for (result,) in results if result.error]
    return [result for (result,) in results]


@pytest.mark.parametrize(
    "method",
    [
        Autoregressive(),
        Speculative(),
        Speculative(chains=2),
        Speculative(drafter="ngram"),
        SMC(particles=3, gamma=3),
        StepScore(threshold=-3.0),
        CoSpec(),
    ],
    ids=repr,
)
def test_every_method_writes_json_of_the_schema(method: Any) -> None:
    for result in run(method, temperature=1.0):
        found = json.loads(result.text)
        assert found.keys() == {"count", "right"}
        assert 0 <= found["count"] <= 99
        assert found["right"] in ("yes", "no")
        assert result.finish_reason == "stop"


def test_greedy_speculation_writes_the_targets_own_json() -> None:
    alone, drafted = run(Autoregressive()), run(Speculative())
    assert [result.token_ids for result in alone] == [result.token_ids for result in drafted]


def test_what_is_allowed_is_what_the_pattern_allows() -> None:
    """Token by token against the language itself: digits, then anything that may follow."""
    lexicon = Grammar(pair().tokenizer, _regex("(12|15|3)x"), sorted(pair().eos_token_ids))
    tokenizer, size = pair().tokenizer, pair().target.vocab_size
    written: tuple[int, ...] = ()
    for step in "15x":
        allowed = lexicon.allowed(written, size).nonzero()[:, 0].tolist()
        text = tokenizer.decode(list(written))
        for token in allowed:
            whole = text + tokenizer.decode([token])
            assert re.fullmatch("(12|15|3)x", whole) or any(
                full.startswith(whole) for full in ("12x", "15x", "3x")
            )
        written += tuple(tokenizer(step, add_special_tokens=False).input_ids)
    ends = lexicon.allowed(written, size).nonzero()[:, 0].tolist()
    assert set(ends) <= set(pair().eos_token_ids)


def test_masked_rows_are_distributions_over_what_is_allowed() -> None:
    language, size = grammar(), pair().target.vocab_size
    params = SamplingParams(temperature=0.7, grammar=language)
    row = distribution(torch.randn(1, size), params, [Context((1, 2))])[0]
    allowed = language.allowed((), size)
    assert float(row.sum()) == pytest.approx(1.0)
    assert bool((row[~allowed] == 0).all())
    # A draft that has left the language is refused before its rows are looked at.
    assert bool(language.allowed((5, 5, 5), size).all())


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(UserError, match="refused"):
        Grammar(pair().tokenizer, json_grammar({"type": "nonsense"}), [0])


def _regex(pattern: str) -> str:
    import llguidance

    return str(llguidance.LLMatcher.grammar_from_regex(pattern))
