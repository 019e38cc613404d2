"""Every rule alone: what it writes, against its formula computed by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from antiphon.drawing import Randomness, draw
from antiphon.errors import UserError
from antiphon.rules.base import BaseRule
from antiphon.rules.catalogue import BASES, KINDS, parse, rules
from antiphon.rules.evidence import Evidence, divergence
from antiphon.rules.exact import Exact
from antiphon.rules.judge import Rules, judge
from antiphon.rules.mentored import Mentored

V = 6
FALSE_ALARM = 1e-6  # per chi-square; there are 20 of them.


def random_rows(seed: int, rows: int = 1, sharp: float = 1.5) -> torch.Tensor:
    logits = np.random.default_rng(seed).standard_normal((rows, V)) * sharp
    return torch.tensor(logits, dtype=torch.float32).softmax(-1)


def evidence_of(
    tokens: list[int], p: torch.Tensor, q: torch.Tensor, greedy: bool = False
) -> Evidence:
    if not greedy:
        return Evidence(torch.tensor(tokens), p, q, p, q)
    hot = [torch.nn.functional.one_hot(rows.argmax(-1), V).float() for rows in (p, q)]
    return Evidence(torch.tensor(tokens), hot[0], hot[1], p, q, greedy=True)


def written(rule: BaseRule, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """What a rule writes at one position, by summing over every draft token and lot."""
    out = torch.zeros(V, dtype=torch.float64)
    for x in range(V):
        acceptance = rule.judge(evidence_of([x], torch.stack([p, p]), q[None]))
        chance = float((acceptance.score[0] / q[x]).clamp(0, 1))
        out[x] += float(q[x]) * chance
        if chance < 1:
            out += float(q[x]) * (1 - chance) * acceptance.residual(0).double()
    return out


def plus(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    left = (p - q).clamp_min(0)
    return left / left.sum() if left.sum() > 0 else p


def by_lots(chance: torch.Tensor, rest: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Accept with the given chances ``[V]``, else draw from `rest`."""
    kept = q * chance.clamp(0, 1)
    return kept + (1 - kept.sum()) * rest


def cactus(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(V)
    for x in range(V):
        h = min(1.0, float(p[x] + (2 * 0.4 * p[x] * (1 - p[x])).sqrt()))
        chance = min(1.0, h / float(q[x]))
        g = p * (1 - h) / (1 - p[x])
        g[x] = h
        out[x] += q[x] * chance
        out += q[x] * (1 - chance) * plus(g, q)
    return out


def typical(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    entropy = -(p * p.log()).sum()
    return by_lots((p > min(0.09, 0.3 * float((-entropy).exp()))).float(), p, q)


def fuzzy(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    m = (p + q) / 2
    js = float(((p * (p / m).log()).sum() + (q * (q / m).log()).sum()) / 2)
    return q if js <= 0.15 else p


def opt(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    distance = float((p - q).abs().sum() / 2)
    return p if q.max() < p.max() - 0.3 * distance else q


def contrast(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    s = torch.where(p >= 0.1 * p.max(), p**1.5 / q**0.5, torch.zeros(V))
    return s / s.sum()


FORMULAS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "exact": lambda p, q: p,
    "lenience/l=0.5": lambda p, q: by_lots(p / 0.5 / q, plus(p, q), q),
    "lenience/l=1": lambda p, q: p,
    "cactus/delta=0.4": cactus,
    "cactus/delta=0": lambda p, q: p,
    "ears/a=0.3": lambda p, q: by_lots(p / q + 0.3 * (1 - p.max()), plus(p, q), q),
    "ears/a=0": lambda p, q: p,
    "typical": typical,
    "topk/k=2": lambda p, q: by_lots((p >= p.sort().values[-2]).float(), p, q),
    "fuzzy/threshold=0.15": fuzzy,
    "ensemble/w=0.3": lambda p, q: 0.3 * q + 0.7 * p,
    "ensemble/w=0": lambda p, q: p,
    "cascade/kind=chow/a=0.5": lambda p, q: p if q.max() < 0.5 else q,
    "cascade/kind=diff/a=0.1": lambda p, q: p if q.max() < p.max() - 0.1 else q,
    "cascade/kind=opt/a=0.3": opt,
    "cascade/kind=chow/a=-2": lambda p, q: p,
    "cascade/kind=diff/a=-2": lambda p, q: p,
    "contrastive": contrast,
    "contrastive/a=0/b=0": lambda p, q: p,
    "mentored/bound=0": lambda p, q: p,
    "forced/rate=0.7": lambda p, q: 0.7 * q + 0.3 * p,
}


@pytest.mark.parametrize("text", FORMULAS)
def test_a_rule_writes_what_its_formula_says(text: str) -> None:
    rule = parse("rule", text)
    for seed in range(20):
        p, q = random_rows(seed)[0], random_rows(seed + 100)[0]
        wanted = FORMULAS[text](p, q)
        assert written(rule, p, q).tolist() == pytest.approx(wanted.tolist(), abs=1e-5)


@pytest.mark.parametrize("text", FORMULAS)
def test_judged_blocks_follow_the_formula(text: str) -> None:
    """Chi-square of 2,000 judged drafts of one token; false-alarm rate 1e-6 each."""
    p, q = random_rows(7, rows=2), random_rows(8)
    composed, counts = rules(text), Counter[int]()
    for seed in range(2000):
        randomness = Randomness(seed)
        x = draw(q[0], randomness.uniform())
        verdict = judge(composed, evidence_of([x], p, q), randomness)
        counts[x if verdict.accepted else verdict.token] += 1
    wanted = FORMULAS[text](p[0], q[0])
    cells = [i for i in range(V) if wanted[i] * 2000 >= 5]
    observed = np.array([counts[i] for i in cells], dtype=float)
    expected = np.array([float(wanted[i]) for i in cells])
    expected *= observed.sum() / expected.sum()
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


@pytest.mark.parametrize("bound", [0.02, 0.1, 0.5])
def test_mentored_decoding_spends_its_divergence_and_not_more(bound: float) -> None:
    rule = Mentored(bound)
    for seed in range(30):
        p, q = random_rows(seed)[0], random_rows(seed + 300)[0]
        out = written(rule, p, q)
        assert float(out.sum()) == pytest.approx(1, abs=1e-5)
        spent = float(divergence(p.double(), out))
        assert spent <= bound + 1e-3
        if float(divergence(p, q)) > bound:
            assert spent == pytest.approx(bound, rel=0.02)
            exact = float(torch.minimum(p, q).sum())
            accepted = float(torch.minimum(q.double(), out).sum())
            assert accepted >= exact
        else:
            assert out.tolist() == pytest.approx(q.tolist(), abs=1e-5)


def test_mentored_is_the_best_of_its_family() -> None:
    """No other output at the same divergence has a larger overlap with q: 2,000 tries."""
    p, q = random_rows(3)[0].double(), random_rows(303)[0].double()
    out = written(Mentored(0.1), p.float(), q.float())
    best = float(torch.minimum(q, out).sum())
    generator = torch.Generator().manual_seed(0)
    for _ in range(2000):
        noise = torch.randn(V, generator=generator, dtype=torch.float64) * 0.3
        other = (out.log() + noise).softmax(-1)
        if float(divergence(p, other)) <= 0.1:
            assert float(torch.minimum(q, other).sum()) <= best + 1e-6


@pytest.mark.parametrize(
    "name", [name for name in BASES if name not in ("fuzzy", "topk", "forced")]
)
def test_at_temperature_0_a_block_of_the_targets_own_choices_stands(name: str) -> None:
    p = random_rows(5, rows=4)
    tokens = p[:3].argmax(-1).tolist()
    hot = torch.nn.functional.one_hot(torch.tensor(tokens), V).float()
    evidence = Evidence(
        torch.tensor(tokens),
        torch.nn.functional.one_hot(p.argmax(-1), V).float(),
        hot,
        p,
        p[:3],
        greedy=True,
    )
    verdict = judge(rules(name), evidence, Randomness(0))
    assert verdict.accepted == (0, 1, 2)
    assert verdict.token == int(p[3].argmax())


@pytest.mark.parametrize("text", ["lenience", "cactus", "ears", "typical", "mentored", "topk/k=1"])
def test_rules_that_say_so_are_exact_at_temperature_0(text: str) -> None:
    for seed in range(30):
        p, q = random_rows(seed, rows=4), random_rows(seed + 50, rows=3)
        tokens = q.argmax(-1).tolist()
        for_rule = judge(rules(text), evidence_of(tokens, p, q, greedy=True), Randomness(seed))
        for_exact = judge(Rules(Exact()), evidence_of(tokens, p, q, greedy=True), Randomness(seed))
        assert for_rule == for_exact


BAD = [
    ("rule", "exactly", "choose exact"),
    ("rule", "cactus/dela=1", "it takes delta"),
    ("rule", "cactus/delta", "argument=value"),
    ("rule", "cactus/delta=x", "give a number"),
    ("rule", "cactus/delta=-1", ">= 0"),
    ("rule", "cactus/delta=nan", ">= 0"),
    ("rule", "lenience/l=0", "at most 1"),
    ("rule", "topk/k=1.5", "whole number"),
    ("veto", "entropy/target=1/draft=1/spare=yes", "give true or false"),
    ("rule", "topk/k=0", ">= 1"),
    ("rule", "ensemble/w=2", "0 to 1"),
    ("rule", "cascade/kind=odd", "chow"),
    ("rule", "fuzzy/div=odd", "js"),
    ("rule", "fuzzy/threshold=nan", "not a number"),
    ("rule", "exact/a=1", "takes none"),
    ("rescue", "exact", "choose fly"),
    ("rescue", "fly/window=0", ">= 1"),
    ("rescue", "coin/rate=2", "0 to 1"),
    ("rescue", "coin", "needs rate"),
    ("veto", "entropy", "needs target, draft"),
    ("veto", "entropy/target=1/draft=1/overlap=2", "0 to 1"),
]


@pytest.mark.parametrize(("kind", "text", "fix"), BAD)
def test_rules_that_cannot_be_are_refused_by_name(kind: str, text: str, fix: str) -> None:
    with pytest.raises(UserError, match=fix):
        parse(kind, text)


@pytest.mark.parametrize("said", ["true", "false"])
def test_truth_values_are_read_as_they_are_meant(said: str) -> None:
    assert parse("veto", f"entropy/target=1/draft=1/spare={said}").spare is (said == "true")


def test_every_rule_says_what_it_guarantees_and_where_it_is_from() -> None:
    for known in KINDS.values():
        for config in known.values():
            assert config.GUARANTEE
            assert config.SOURCE
