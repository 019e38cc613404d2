"""Laws of sampling: one pure pipeline, an exact draw, a stream of one's own."""

import math
import pickle
import random
from collections import Counter
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from antiphon.drawing import Randomness, draw, draw_rows
from antiphon.errors import UserError
from antiphon.logprobs import logprobs_of, top_logprobs
from antiphon.params import SamplingParams, check
from antiphon.sampling import (
    Context,
    Distributions,
    choose,
    distribution,
    favourites,
    keep_top_p,
)

V = 7
FALSE_ALARM = 1e-4


# An independent pipeline, a token at a time in float64: what the fast one has to equal.


def softmax(scores):
    peak = max(scores)
    weights = [math.exp(score - peak) for score in scores]
    return [weight / sum(weights) for weight in weights]


def naive_scores(logits, params, context):
    scores = list(logits)
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    for token in set(context.prompt) | set(context.output):
        if scores[token] > 0:
            scores[token] /= params.repetition_penalty
        else:
            scores[token] *= params.repetition_penalty
    for token, count in Counter(context.output).items():
        scores[token] -= params.frequency_penalty * count + params.presence_penalty
    return scores


def naive_distribution(logits, params, context):
    """The distribution, and how far it is from one where a threshold falls elsewhere."""
    scores = naive_scores(logits, params, context)
    if params.temperature == 0:
        best = scores.index(max(scores))
        return [float(token == best) for token in range(len(scores))], math.inf
    scores = [score / params.temperature for score in scores]
    margin = math.inf

    probs = softmax(scores)
    if params.min_p > 0:
        floor = params.min_p * max(probs)
        if params.min_p < 1:
            margin = min(abs(prob / floor - 1) for prob in probs)
        scores = [s if p >= floor else -math.inf for s, p in zip(scores, probs, strict=True)]

    if 0 < params.top_k < len(scores):
        floor = sorted(scores, reverse=True)[params.top_k - 1]
        scores = [score if score >= floor else -math.inf for score in scores]

    if params.top_p < 1:
        probs = softmax(scores)
        mass = 0.0
        for prob in sorted(probs, reverse=True):
            mass += prob
            margin = min(margin, abs(mass - params.top_p))
            if mass >= params.top_p:
                break
        scores = [s if p >= prob else -math.inf for s, p in zip(scores, probs, strict=True)]
    return softmax(scores), margin


tokens = st.integers(0, V - 1)
histories = st.lists(tokens, max_size=5).map(tuple)
# Few distinct values, so that ties are common; some tokens masked.
logit_rows = st.lists(
    st.one_of(st.integers(-12, 12).map(lambda i: i / 4), st.just(-math.inf)),
    min_size=V,
    max_size=V,
).filter(lambda row: max(row) > -math.inf)
params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.integers(0, V + 2),
    top_p=st.sampled_from([1.0, 0.15, 0.6, 0.9]),
    min_p=st.sampled_from([0.0, 0.07, 0.4, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.6]),
    presence_penalty=st.sampled_from([0.0, -0.9, 1.3]),
    frequency_penalty=st.sampled_from([0.0, -0.4, 0.6]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, -1.5, 0.5, 3.0]), max_size=3),
)


@settings(max_examples=100)
@given(
    rows=st.lists(st.tuples(logit_rows, histories, histories), min_size=1, max_size=3),
    params=params_strategy,
)
def test_pipeline_equals_the_naive_one(rows, params):
    """Guards the formulas and the order of the processors."""
    contexts = [Context(prompt, output) for _, prompt, output in rows]
    probs = distribution(torch.tensor([row for row, _, _ in rows]), params, contexts)
    assert probs.dtype == torch.float32
    for got, (row, _, _), context in zip(probs.tolist(), rows, contexts, strict=True):
        want, margin = naive_distribution(row, params, context)
        # Where a threshold falls on a token's very edge either side is right.
        assume(margin > 1e-4)
        assert got == pytest.approx(want, abs=2e-6)


@settings(max_examples=40)
@given(
    rows=st.lists(st.tuples(logit_rows, histories, histories), min_size=2, max_size=4),
    params=params_strategy,
)
def test_pipeline_is_pure_and_a_row_ignores_its_neighbours(rows, params):
    """Guards against writing to the caller's logits, and seeds that depend on the batch."""
    logits = torch.tensor([row for row, _, _ in rows])
    contexts = [Context(prompt, output) for _, prompt, output in rows]
    before, contexts_before = logits.clone(), list(contexts)
    together = distribution(logits, params, contexts)
    assert torch.equal(logits, before)
    assert contexts == contexts_before
    assert together.data_ptr() != logits.data_ptr()
    for r in range(len(rows)):
        assert torch.equal(distribution(logits[r : r + 1], params, [contexts[r]])[0], together[r])


@settings(max_examples=60)
@given(row=logit_rows, params=params_strategy, prompt=histories, output=histories)
def test_something_always_survives_and_masked_tokens_never_do(row, params, prompt, output):
    """Guards against NaN, an empty support, and reviving a masked token."""
    probs = distribution(torch.tensor([row]), params, [Context(prompt, output)])[0]
    assert torch.isfinite(probs).all()
    assert probs.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert all(probs[token] == 0 for token in range(V) if row[token] == -math.inf)


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1e4])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_extreme_logits_and_temperatures_stay_finite(temperature, scale):
    """Guards against overflow in division: inf - inf is NaN."""
    logits = torch.tensor([[3.0, 2.0, -1.0, -math.inf]]) * scale
    params = SamplingParams(
        temperature=temperature, min_p=0.1, top_k=3, top_p=0.9, repetition_penalty=100.0
    )
    probs = distribution(logits, params, [Context((0,), (2,))])
    assert torch.isfinite(probs).all()
    assert probs.sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_float_type_gives_float32(dtype):
    """Guards against sampling in the model's own, coarser type."""
    logits = torch.tensor([[0.5, 1.5, -2.0]], dtype=dtype)
    probs = distribution(logits, SamplingParams(temperature=1.0))
    assert probs.dtype == torch.float32
    assert torch.equal(probs, logits.float().softmax(-1))


def test_greedy_is_one_hot_on_the_lowest_of_the_largest_after_bias_and_penalties():
    """Guards greedy identity between p and q, and penalties skipped at temperature 0."""
    logits = torch.tensor([[1.0, 4.0, 4.0, 0.0]])
    assert distribution(logits, SamplingParams()).tolist() == [[0, 1, 0, 0]]
    biased = SamplingParams(logit_bias={3: 4.5})
    assert distribution(logits, biased).tolist() == [[0, 0, 0, 1]]
    penalised = SamplingParams(presence_penalty=1.0)
    assert distribution(logits, penalised, [Context((), (1,))]).tolist() == [[0, 0, 1, 0]]


def test_drafted_positions_see_the_hypothetical_history():
    """Guards against penalties that look at committed tokens only, inside a drafted block."""
    params = SamplingParams(temperature=1.0, frequency_penalty=0.5, repetition_penalty=1.3)
    context = Context(prompt=(1, 2), output=(3,))
    draft = (3, 0, 3)
    logits = torch.randn(len(draft) + 1, V, generator=torch.Generator().manual_seed(0))
    block = [context.then(draft[:k]) for k in range(len(draft) + 1)]
    together = distribution(logits, params, block)
    for k in range(len(draft) + 1):
        real = Context(prompt=(1, 2), output=(3, *draft[:k]))
        assert torch.equal(together[k], distribution(logits[k : k + 1], params, [real])[0])
    assert context == Context((1, 2), (3,))


def test_presence_and_frequency_ignore_the_prompt():
    """Guards OpenAI's formula: a question's words are not punished in the answer."""
    logits = torch.zeros(1, 3)
    params = SamplingParams(temperature=1.0, presence_penalty=1.0, frequency_penalty=1.0)
    probs = distribution(logits, params, [Context((0, 0), (1, 1))])[0]
    assert probs[0] == probs[2]
    assert (probs[1] / probs[0]).item() == pytest.approx(math.exp(-3), rel=1e-5)


def test_penalties_need_a_context_a_row():
    """Guards against a penalty silently off because a caller gave no history."""
    params = SamplingParams(presence_penalty=1.0)
    assert params.uses_history
    with pytest.raises(ValueError, match="2 rows of logits but 0 contexts"):
        distribution(torch.zeros(2, V), params)
    assert not SamplingParams(temperature=1.0, top_p=0.5).uses_history


@pytest.mark.parametrize("first", [1, 3, 256, 10_000])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.999])
@pytest.mark.parametrize("spread", [0.0, 0.01, 4.0])
def test_nucleus_does_not_depend_on_how_much_is_sorted_first(first, top_p, spread):
    """Guards the shortcut of top_p: sorting a part must give what sorting all gives."""
    scores = spread * torch.randn(3, 5000, generator=torch.Generator().manual_seed(1))
    scores[0, 50:] = -math.inf
    assert torch.equal(keep_top_p(scores, top_p, first), keep_top_p(scores, top_p, 5000))


def test_top_k_and_top_p_keep_ties_together():
    """Guards against results that depend on how a device's sort leaves ties."""
    logits = torch.tensor([[1.0, 0.0, 0.0, 0.0, -3.0]])
    for params in (
        SamplingParams(temperature=1.0, top_k=2),
        SamplingParams(temperature=1.0, top_p=0.5),
        SamplingParams(temperature=1.0, top_k=2, top_p=0.5),
    ):
        probs = distribution(logits, params)[0]
        assert (probs > 0).tolist() == [True, True, True, True, False]


# Drawing


def naive_draw(probs, u):
    """Exact inverse CDF, in rationals."""
    masses = [Fraction(p) for p in probs]
    target, below = Fraction(u) * sum(masses), Fraction(0)
    for token, mass in enumerate(masses):
        below += mass
        if target < below:
            return token
    raise AssertionError(u)


@settings(max_examples=100)
@given(
    weights=st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any),
    scale=st.sampled_from([1.0, 0.25, 1e-6, 0.1]),
    u=st.one_of(
        st.integers(0, 63).map(lambda i: i / 64),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from([0.0, math.nextafter(1.0, 0.0)]),
    ),
)
def test_draw_is_the_inverse_of_the_cumulative_distribution(weights, scale, u):
    """Guards against bias, off-by-one at edges, and sums that are not 1."""
    probs = torch.tensor(weights, dtype=torch.float32) * scale
    got = draw(probs, u)
    assert probs[got] > 0
    target = Fraction(u) * sum(weights)
    edge = min(abs(target - sum(weights[:k])) for k in range(len(weights) + 1))
    # Rounding may decide just beside an edge; on it, sums of whole numbers are exact.
    if edge > 1e-9 or (scale in (1.0, 0.25) and edge == 0):
        assert got == naive_draw(probs.tolist(), u)


def test_an_edge_belongs_to_the_token_above_it():
    """Guards the half-open intervals: u = 0 is the first token's, the sum no one's."""
    probs = torch.tensor([0.25, 0.25, 0.0, 0.5])
    assert draw_rows(probs.expand(4, -1), [0.0, 0.25, 0.5, 0.75]) == [0, 1, 3, 3]


@pytest.mark.parametrize("u", [0.0, 1e-320, 0.5, math.nextafter(1.0, 0.0), 1.0])
@pytest.mark.parametrize("total", [0.999, 1.0, 1.001])
def test_draw_never_gives_a_token_without_probability(u, total):
    """Guards the edges: u = 0 before a leading zero, u near 1 after a trailing one."""
    probs = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0, 0.0]) * total
    assert draw(probs, u) in (1, 3)


def test_draw_over_a_large_vocabulary_keeps_to_its_support():
    """Guards against a float32 sum that loses the tail of 150,000 tokens."""
    probs = torch.zeros(150_000)
    probs[7::1000] = 1 / 150
    drawn = draw_rows(probs.expand(10, -1), [k / 10 + 0.001 for k in range(10)])
    assert drawn == [7 + 15_000 * k for k in range(10)]


@pytest.mark.parametrize("vocab", [V, 30_000])
def test_draw_rows_is_draw_row_by_row(vocab):
    """Guards against rows that share a uniform, and rows that are drawn from more than once."""
    probs = torch.rand(6, vocab, generator=torch.Generator().manual_seed(2))
    us = Randomness(3).uniforms(6)
    assert draw_rows(probs, us) == [draw(row, u) for row, u in zip(probs, us, strict=True)]
    picked = [2, 2, 5, 0, 2, 1]
    want = [draw(probs[row], u) for row, u in zip(picked, us, strict=True)]
    assert draw_rows(probs, us, picked) == want
    with pytest.raises(ValueError, match="6 rows of probabilities but 5 uniforms"):
        draw_rows(probs, us[:5])


@pytest.mark.parametrize("bad", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_draw_refuses_what_is_no_distribution(bad):
    """Guards against a silent token 0 from an empty residual or a broken model."""
    with pytest.raises(ValueError, match="all 0, or not finite"):
        draw(torch.tensor(bad), 0.5)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=5, top_p=0.9, presence_penalty=0.4),
    ],
)
def test_draws_follow_the_distribution(params):
    """Guards the whole of pipeline, stream and draw against bias (false alarms: 1e-4)."""
    logits = torch.tensor([[1.2, 0.3, -0.5, 0.8, -1.0, 0.0, 0.1]])
    probs = distribution(logits, params, [Context((), (3,))])[0]
    count = 20_000
    drawn = Counter(draw_rows(probs.expand(count, -1), Randomness(11).uniforms(count)))
    support = [token for token in range(V) if probs[token] > 0]
    assert set(drawn) <= set(support)
    expected = probs[support].double()
    expected = expected / expected.sum() * count
    assert chisquare([drawn[token] for token in support], expected).pvalue > FALSE_ALARM


def cumulative_draw(probs, u):
    """Inverse CDF over one running sum, and how far u is from a bound, both relative to it."""
    bounds = probs.double().cumsum(-1)
    target = min(u * float(bounds[-1]), math.nextafter(float(bounds[-1]), 0.0))
    above = (bounds > target) & (probs > 0)
    return int(above.to(torch.uint8).argmax()), float((bounds - target).abs().min() / bounds[-1])


@settings(max_examples=60)
@given(
    vocab=st.sampled_from([1, 5, 1023, 4096, 4097, 9000, 50_001]),
    spread=st.sampled_from([0.0, 1.0, 6.0, 30.0]),
    kept=st.sampled_from([1.0, 0.5, 0.001]),
    seed=st.integers(0, 999),
    u=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53])),
)
def test_a_draw_in_stretches_is_the_draw_from_one_running_sum(vocab, spread, kept, seed, u):
    """Guards the two steps of a draw: stretches without mass, the last and shorter one."""
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(vocab, generator=generator)
    scores[torch.rand(vocab, generator=generator) > kept] = -math.inf
    scores[int(torch.randint(vocab, (), generator=generator))] = 0.0
    probs = scores.softmax(-1)
    got, (want, edge) = draw(probs, u), cumulative_draw(probs, u)
    assert probs[got] > 0
    if edge > 1e-13:
        assert got == want


# Shortcuts: what is not written down must be what would have been written.


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(logit_rows, histories, histories), min_size=1, max_size=4),
    params=params_strategy,
    seed=st.integers(0, 99),
)
def test_favourites_and_choices_are_those_of_the_distribution(rows, params, seed):
    """Guards the path without probabilities at temperature 0, and row-wise ones above it."""
    logits = torch.tensor([row for row, _, _ in rows])
    contexts = [Context(prompt, output) for _, prompt, output in rows]
    greedy = replace(params, temperature=0.0)
    one_hot = distribution(logits, greedy, contexts)
    assert favourites(logits, greedy, contexts) == one_hot.argmax(-1).tolist()
    probs = distribution(logits, params, contexts)
    drawn = choose(logits, params, contexts, Randomness(seed))
    assert drawn == draw_rows(probs, Randomness(seed).uniforms(len(rows)))


@pytest.mark.parametrize("vocab", [7, 30_000])
def test_lazy_rows_are_the_rows_of_the_distribution(vocab):
    """Guards rows computed one at a time, each with its own context."""
    logits = 3 * torch.randn(4, vocab, generator=torch.Generator().manual_seed(0))
    params = SamplingParams(temperature=0.7, top_p=0.9, frequency_penalty=1.0)
    contexts = [Context((1,), (2,) * row) for row in range(4)]
    lazy, whole = Distributions(logits, params, contexts), distribution(logits, params, contexts)
    assert all(torch.equal(lazy[row], whole[row]) for row in (2, 0, 3, 1))


@pytest.mark.parametrize("vocab", [7, 30_000])
@pytest.mark.parametrize("rows", [None, (0, 3, 1, 1)])
def test_logprobs_do_not_depend_on_how_rows_are_read(vocab, rows):
    """Guards rows picked out of many, and those read one at a time."""
    logits = 3 * torch.randn(4, vocab, generator=torch.Generator().manual_seed(0))
    tokens = [3, 0, 6, 2]
    picked = logits if rows is None else logits[list(rows)]
    want = picked.log_softmax(-1)[range(4), tokens]
    assert torch.equal(logprobs_of(logits, tokens, rows), want)
    assert logprobs_of(logits, [], ()).shape == (0,)


@given(
    prompt=histories,
    parts=st.lists(histories, max_size=6),
    read=st.integers(0, 30),
    peeks=st.sets(st.integers(0, 6)),
)
def test_a_context_is_its_tokens_however_it_came_about(prompt, parts, read, peeks):
    """Guards shared beginnings: what is after an index, before and after outputs were joined."""
    context, output = Context(prompt), ()
    chain = [(context, output)]
    for i, part in enumerate(parts):
        if i in peeks:
            assert context.output == output
        context, output = context.then(part), output + part
        chain.append((context, output))
    for each, tokens in chain:
        assert each.since(read) == (prompt + tokens)[read:]
        assert (each.length, each.written) == (len(prompt) + len(tokens), len(tokens))
        assert each.output == tokens
        assert each.since(read) == (prompt + tokens)[read:]
        assert each == Context(prompt, tokens)
        assert hash(each) == hash(Context(prompt, tokens))


def test_a_long_context_goes_without_a_deep_recursion():
    """Guards the chain of contexts behind a long text, when it is dropped at once."""
    context = Context((1,))
    for token in range(200_000):
        context = context.then((token,))
    assert context.since(199_999) == (199_998, 199_999)
    del context


# Randomness


def test_a_stream_is_fixed_by_seed_and_index_alone():
    """Guards reproducibility: however the numbers are asked for, whatever else runs."""
    numbers = Randomness(5, 2).uniforms(6)
    again = Randomness(5, 2)
    np.random.default_rng(5).random(100)
    assert [again.uniform(), *again.uniforms(3), again.uniform(), again.uniform()] == numbers
    assert all(0 <= number < 1 for number in numbers)


def test_streams_of_other_seeds_and_indices_differ():
    """Guards against n samples that are one sample n times."""
    streams = [Randomness(seed, index).uniforms(4) for seed in range(3) for index in range(3)]
    assert len({tuple(stream) for stream in streams}) == 9


def test_no_seed_is_a_fresh_seed_that_can_be_used_again():
    """Guards against runs that nobody can repeat."""
    first, second = Randomness(), Randomness()
    assert first.seed != second.seed
    assert Randomness(first.seed).uniforms(3) == first.uniforms(3)


def test_global_generators_are_left_alone():
    """Guards the caller's own random state."""
    states = (random.getstate(), repr(np.random.get_state()), torch.get_rng_state())  # noqa: NPY002
    draw_rows(torch.ones(4, V), Randomness(1).uniforms(4))
    assert random.getstate() == states[0]
    assert repr(np.random.get_state()) == states[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


# Log-probabilities


def test_logprobs_are_of_the_raw_logits():
    """Guards against reporting tempered or truncated probabilities."""
    logits = torch.tensor([[1.0, 3.0, 2.0], [0.0, -math.inf, 0.0]])
    want = [[s - math.log(sum(map(math.exp, row))) for s in row] for row in logits.tolist()]
    assert logprobs_of(logits, [2, 0]).tolist() == pytest.approx([want[0][2], want[1][0]])
    top = top_logprobs(logits, 2)
    assert list(top[0]) == [1, 2]
    assert top[0][2] == pytest.approx(want[0][2])
    assert set(top[1]) == {0, 2}
    assert top[0][2] == logprobs_of(logits, [2, 0])[0].item()
    assert top_logprobs(logits, 0) == [{}, {}]
    assert len(top_logprobs(logits, 99)[0]) == 3


# Parameters


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -1, "temperature is -1.0: use 0 to 10000 (0 is greedy)"),
        ("temperature", math.nan, "temperature is nan"),
        ("temperature", math.inf, "temperature is inf"),
        ("temperature", "1", "temperature is of type str: use a number"),
        ("temperature", True, "temperature is of type bool"),
        ("temperature", 1e-7, "use 0 (greedy) or at least 1e-05"),
        ("top_k", -1, "top_k is -1: use 0 or more (0 turns it off)"),
        ("top_k", 1.0, "top_k is of type float: use a whole number"),
        ("top_k", False, "top_k is of type bool"),
        ("top_p", 0, "top_p is 0.0"),
        ("top_p", 1.5, "top_p is 1.5: use 1e-06 to 1 (1 turns it off)"),
        ("min_p", -0.1, "min_p is -0.1"),
        ("min_p", 1.1, "min_p is 1.1"),
        ("repetition_penalty", 0, "repetition_penalty is 0.0"),
        ("presence_penalty", 2.5, "presence_penalty is 2.5: use -2 to 2"),
        ("frequency_penalty", None, "frequency_penalty is of type NoneType"),
        ("logit_bias", [1], "logit_bias is of type list: use a map"),
        ("logit_bias", {"5": 1.0}, "a token id in logit_bias is of type str"),
        ("logit_bias", {-5: 1.0}, "a token id in logit_bias is -5"),
        ("logit_bias", {5: math.nan}, "logit_bias of token 5 is nan"),
        ("logit_bias", {5: -101}, "logit_bias of token 5 is -101.0: use -100 to 100"),
        ("max_tokens", 0, "max_tokens is 0: use 1 or more"),
        ("max_tokens", 2.5, "max_tokens is of type float"),
        ("stop", ("a", 3), "stop has an entry of type int: use strings"),
        ("stop", b"a", "stop is of type bytes"),
        ("stop", 3, "stop is of type int: use a string or a list of strings"),
        ("stop", ["a", ""], "stop has an empty string: leave it out"),
        ("stop", "", "stop has an empty string"),
        ("stop_token_ids", 3, "stop_token_ids is of type int: use a list of token ids"),
        ("stop_token_ids", "12", "stop_token_ids is of type str"),
        ("stop_token_ids", ["12"], "an id in stop_token_ids is of type str"),
        ("stop_token_ids", [-1], "an id in stop_token_ids is -1"),
        ("ignore_eos", 1, "ignore_eos is of type int: use True or False"),
        ("seed", -1, "seed is -1: use 0 or more (None takes a fresh one)"),
        ("seed", 1.5, "seed is of type float"),
        ("n", 0, "n is 0: use 1 or more"),
        ("logprobs", -1, "logprobs is -1: use 0 or more (None reports none)"),
        ("logprobs", True, "logprobs is of type bool"),
    ],
)
def test_a_wrong_value_is_refused_by_name_in_one_line(field, value, message):
    """Guards against a bad request that fails late, or not at all."""
    arguments: dict[str, Any] = {field: value}
    with pytest.raises(UserError) as caught:
        SamplingParams(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_params_are_normalised_immutable_values():
    """Guards against a caller's dict or list changing a running request."""
    bias, stop = {4: 1}, ["\n\n", "END"]
    params = SamplingParams(
        logit_bias=bias,
        stop=stop,  # type: ignore[arg-type]
        stop_token_ids=[np.int64(9)],  # type: ignore[arg-type]
        temperature=1,
    )
    bias[5], stop[0] = 2, "x"
    assert params.logit_bias == {4: 1.0}
    assert params.stop == ("\n\n", "END")
    assert params.stop_token_ids == (9,)
    assert type(params.temperature) is float
    assert type(params.stop_token_ids[0]) is int
    with pytest.raises(FrozenInstanceError):
        params.top_k = 3  # type: ignore[misc]
    assert SamplingParams(stop="ab").stop == ("ab",)  # type: ignore[arg-type]
    for same in (replace(params), pickle.loads(pickle.dumps(params))):
        assert same == params
        assert hash(same) == hash(params)
    assert replace(params, seed=1) != params


def test_check_refuses_ids_that_the_vocabulary_lacks():
    """Guards against an index error, or another token, deep inside a forward."""
    check(SamplingParams(logit_bias={9: 1}, stop_token_ids=(9,), logprobs=10), 10, (0, 9))
    with pytest.raises(UserError, match="logit_bias has token id 10: this vocabulary ends at 9"):
        check(SamplingParams(logit_bias={10: 1}), 10)
    with pytest.raises(UserError, match="stop_token_ids has token id 12"):
        check(SamplingParams(stop_token_ids=(1, 12)), 10)
    with pytest.raises(UserError, match="the prompt has token id -1"):
        check(SamplingParams(), 10, [3, -1])
    with pytest.raises(UserError, match="logprobs is 11: this vocabulary has 10 tokens"):
        check(SamplingParams(logprobs=11), 10)


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7},
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 1.3, "top_p": 0.8, "min_p": 0.05},
        {"temperature": 1e-5},
    ],
)
def test_chances_of_single_tokens_are_those_of_the_distribution(
    fields: dict[str, Any], one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards small rows, which come all at once, and large ones, which come a few at a time."""
    if one_by_one:
        monkeypatch.setattr("antiphon.logprobs._SMALL", 0)
    params = SamplingParams(**fields)
    logits = 3 * torch.randn(4, V, generator=torch.Generator().manual_seed(1))
    rows, tokens = [0, 0, 1, 3, 2], [0, 6, 2, 5, 1]
    found = Distributions(logits, params).log_chances(rows, tokens)
    assert found == distribution(logits, params)[rows, tokens].double().log().tolist()
