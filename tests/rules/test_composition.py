"""Rescue and veto on top of a base rule: what they may change, and what not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.test_rules import V, evidence_of, random_rows

from antiphon.drawing import Randomness
from antiphon.rules.catalogue import rules
from antiphon.rules.coin import Coin
from antiphon.rules.entropy_veto import EntropyVeto
from antiphon.rules.exact import Exact
from antiphon.rules.fly import FLy
from antiphon.rules.judge import Rules, judge

K = 5
RESCUES = ["fly/window=2", "kl-judge", "fuzzy/threshold=0.2", "topk/k=3", "coin/rate=0.5"]
VETOES = [
    "entropy/target=0.5/draft=0.5/top_n=3/overlap=0.4",
    "entropy/target=-1/draft=-1/overlap=0",
]
SEEDS = st.integers(0, 10**6)


@given(SEEDS, st.sampled_from(["exact", "cactus", "typical", "ears"]), st.sampled_from(RESCUES))
def test_a_rescue_only_lengthens(seed: int, base: str, rescue: str) -> None:
    p, q = random_rows(seed, K + 1), random_rows(seed + 1, K)
    evidence = evidence_of(q.argmax(-1).tolist(), p, q)
    alone = judge(rules(base), evidence, Randomness(seed))
    helped = judge(rules(base, rescue), evidence, Randomness(seed))
    assert len(helped.accepted) >= len(alone.accepted)
    assert (len(helped.accepted) > len(alone.accepted)) == (helped.notes["fired"] > 0)


@given(SEEDS, st.sampled_from(["exact", "cactus", "typical", "ears"]), st.sampled_from(VETOES))
def test_a_veto_only_shortens(seed: int, base: str, veto: str) -> None:
    p, q = random_rows(seed, K + 1), random_rows(seed + 1, K)
    evidence = evidence_of(q.argmax(-1).tolist(), p, q)
    alone = judge(rules(base), evidence, Randomness(seed))
    held = judge(rules(base, veto=veto), evidence, Randomness(seed))
    assert len(held.accepted) <= len(alone.accepted)
    assert (len(held.accepted) < len(alone.accepted)) == (held.notes["fired"] > 0)


@given(SEEDS)
def test_rules_that_never_fire_change_nothing_and_draw_the_same_lots(seed: int) -> None:
    p, q = random_rows(seed, K + 1), random_rows(seed + 1, K)
    evidence = evidence_of(q.argmax(-1).tolist(), p, q)
    alone = judge(rules("exact"), evidence, Randomness(seed))
    for rescue, veto in [
        ("coin/rate=0", ""),
        ("fly/window=6", ""),
        ("kl-judge/kl=-1", ""),
        ("fuzzy/threshold=-1", ""),
        ("", "entropy/target=99/draft=99"),
        ("fly/theta=99", "entropy/target=99/draft=0"),
    ]:
        other = judge(rules("exact", rescue, veto), evidence, Randomness(seed))
        assert (other.accepted, other.token) == (alone.accepted, alone.token)
        assert other.notes == {"fired": 0}


def flat(count: int) -> torch.Tensor:
    return torch.full((count, V), 1 / V)


def test_the_veto_needs_both_entropies_and_the_overlap() -> None:
    sharp = torch.zeros(1, V)
    sharp[0, 0] = 1.0
    veto = EntropyVeto(target=1.0, draft=1.0, top_n=3, overlap=0.5)
    assert veto.refuse(evidence_of([0], flat(2), flat(1))).tolist() == [True]
    assert veto.refuse(evidence_of([0], flat(2), sharp)).tolist() == [False]
    assert veto.refuse(evidence_of([0], torch.cat([sharp, sharp]), flat(1))).tolist() == [False]
    up = torch.tensor([[0.30, 0.25, 0.21, 0.10, 0.08, 0.06]])
    apart = veto.refuse(evidence_of([0], torch.cat([up, up]), up.flip(-1)))
    assert apart.tolist() == [False]
    alike = veto.refuse(evidence_of([0], torch.cat([up, up]), up))
    assert alike.tolist() == [True]
    without = EntropyVeto(target=1.0, draft=1.0, top_n=3, overlap=0.0)
    assert without.refuse(evidence_of([0], torch.cat([up, up]), up.flip(-1))).tolist() == [True]


def test_the_redraw_excludes_penalises_or_leaves_the_token() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2, 0.0, 0.0, 0.0]] * 2)
    evidence = evidence_of([0], p, p[:1])
    draws = {
        penalty: EntropyVeto(0, 0, penalty=penalty).redraw(evidence, 0).tolist()
        for penalty in (0.0, 0.5, 1.0)
    }
    assert draws[0.0] == pytest.approx([0, 0.6, 0.4, 0, 0, 0])
    assert draws[0.5] == pytest.approx([1 / 3, 0.4, 0.8 / 3, 0, 0, 0])
    assert draws[1.0] == pytest.approx(p[0].tolist())


def test_at_temperature_0_a_veto_takes_the_targets_second_choice() -> None:
    p, q = random_rows(1, rows=2), random_rows(1, rows=2)[:1]
    x = int(p[0].argmax())
    evidence = evidence_of([x], p, q, greedy=True)
    veto = EntropyVeto(target=-1, draft=-1, overlap=0)
    verdict = judge(Rules(Exact(), veto=veto), evidence, Randomness(0))
    assert verdict.accepted == ()
    assert verdict.token == int(p[0].argsort(descending=True)[1])


def test_a_coin_keeps_its_share_and_tosses_by_the_tokens() -> None:
    """Of 1,000 coins a share so far off is seen once in 10^8 times."""
    p, q = random_rows(1, rows=5), random_rows(2, rows=4)
    blocks = [[i % 6, i // 6 % 6, i // 36 % 6, i // 216 % 6] for i in range(1000)]
    kept = torch.stack([Coin(0.3).keep(evidence_of(x, p, q)) for x in blocks])
    # Blocks that begin alike share their first coins: the last ones are a thousand.
    assert abs(float(kept[:, 3].float().mean()) - 0.3) < 0.083
    again = torch.stack([Coin(0.3).keep(evidence_of(x, p, q)) for x in blocks])
    assert torch.equal(kept, again)
    other = torch.stack([Coin(0.3, seed=1).keep(evidence_of(x, p, q)) for x in blocks])
    assert not torch.equal(kept, other)
    assert Coin(1.0).keep(evidence_of(blocks[0], p, q)).all()


def test_fly_looks_ahead_inside_the_block_and_asks_for_doubt() -> None:
    p = random_rows(2, rows=5, sharp=0.3)
    best = p.argmax(-1).tolist()
    wrong = [(best[0] + 1) % V, *best[1:4]]
    evidence = evidence_of(wrong, p, random_rows(3, rows=4))
    assert FLy(theta=0.0, window=3).keep(evidence).tolist()[0]
    assert not FLy(theta=0.0, window=5).keep(evidence).any()
    assert not FLy(theta=2.0, window=3).keep(evidence).any()
    twice = [wrong[0], (best[1] + 1) % V, *best[2:4]]
    assert not FLy(theta=0.0, window=3).keep(evidence_of(twice, p, random_rows(3, rows=4)))[0]
    assert not FLy(theta=0.0, window=3).keep(evidence)[2:].any()


def test_a_sparing_veto_leaves_the_targets_first_choice_alone() -> None:
    p, q = random_rows(6, 4), random_rows(7, 3)
    tokens = [int(p[0].argmax()), int(p[1].argmin()), int(p[2].argmax())]
    evidence = evidence_of(tokens, p, q)
    assert EntropyVeto(0, 0, overlap=0).refuse(evidence).tolist() == [True, True, True]
    spared = EntropyVeto(0, 0, overlap=0, spare=True).refuse(evidence).tolist()
    assert spared == [False, True, False]
