"""A vote of the target's own texts."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.bundled import run
from tests.toys import TableModel, exact_outputs, toy_engine

from antiphon.errors import UserError
from antiphon.methods import Autoregressive, Majority
from antiphon.params import SamplingParams

TARGET = TableModel(3, seed=11)
PROMPT = (1, 0, 2)


def test_one_sample_is_distributed_as_the_targets_texts() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=4, seed=5, n=2000)
    (results,) = toy_engine(TARGET, None, 64).generate([PROMPT], [params], Majority(samples=1))
    truth = exact_outputs(TARGET, PROMPT, params)
    counts = Counter(result.token_ids for result in results)
    distance = sum(abs(counts[t] / 2000 - p) for t, p in truth.items()) / 2
    # E[TV] <= sqrt(81 / 2000) / 2 = 0.101, and P(excess > 0.06) < 1e-6 (McDiarmid).
    assert distance < 0.101 + 0.06


def test_the_most_frequent_answer_wins() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=3, seed=5, n=30)
    (results,) = toy_engine(TARGET, None, 64).generate([PROMPT], [params], Majority(samples=9))
    for result in results:
        counts = Counter(map(tuple, result.rounds[-1].notes["texts"]))
        assert sum(counts.values()) == 9
        # Toy texts hold no numbers: an answer is the whole text.
        assert counts[result.token_ids] == max(counts.values())
        assert result.statistics.target_passes == 3


def test_it_does_not_depend_on_the_batch_and_reads_as_the_target_does() -> None:
    wish = {"temperature": 0.8, "max_tokens": 40}
    together, alone = (run(Majority(samples=3), batch, **wish) for batch in (8, 1))
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]
    assert {who for result in together for who in result.provenance} == {"target"}
    # Nearly greedy texts are all alike, and alike the greedy one.
    cold = run(Majority(samples=3), temperature=1e-4)
    assert [r.token_ids for r in cold] == [r.token_ids for r in run(Autoregressive())]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="samples"):
        Majority(samples=0)
    with pytest.raises(UserError, match="--temperature"):
        toy_engine(TARGET).submit(PROMPT, SamplingParams(), Majority())
