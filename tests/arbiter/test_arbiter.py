"""The arbiter: features, policy, mining, warm start and reinforcement, each resumable."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.rules.test_rules import evidence_of, random_rows
from tests.toys import TableModel, toy_engine

from antiphon.api import encode, make_engine
from antiphon.arbiter import mine, reinforce, warm
from antiphon.arbiter.features import NAMES, features
from antiphon.arbiter.mine import Branch, Mined, Miner
from antiphon.arbiter.policy import Policy, load
from antiphon.checkpoint import bind, packed, unpacked
from antiphon.cli.train import curves, train_problems
from antiphon.errors import UserError
from antiphon.eval.prompting import Prompting
from antiphon.eval.task import Problem
from antiphon.eval.tasks.lab import Lab
from antiphon.lab import pair_path
from antiphon.lab import problems as bundled
from antiphon.methods import CoSpec, Speculative
from antiphon.methods.cospec import Fixed, Rollout
from antiphon.models.pair import LoadOptions, ModelPair, load_pair
from antiphon.params import SamplingParams
from antiphon.rules.arbiter import Arbiter


@cache
def pair() -> ModelPair:
    return load_pair(options=LoadOptions(dtype="float32"))


def trained(seed: int, width: int = 64) -> Policy:
    """A policy with an opinion."""
    torch.manual_seed(seed)
    policy = Policy(width=width)
    torch.nn.init.normal_(policy.outer.weight, std=1.0)
    return policy.eval()


def test_features_are_finite_and_what_they_are_called() -> None:
    p, q = random_rows(1, rows=4), random_rows(2, rows=3)
    x = q.argmax(-1).tolist()
    found = features(evidence_of(x, p, q))
    assert found.shape == (3, len(NAMES))
    named = dict(zip(NAMES, found[0].tolist(), strict=True))
    assert named["p of the draft's token"] == pytest.approx(float(p[0, x[0]]))
    assert named["largest q"] == pytest.approx(float(q[0].max()))
    assert named["log rank of the draft's token in p"] == pytest.approx(
        float(torch.log1p((p[0] > p[0, x[0]]).sum().float()))
    )
    hot = torch.zeros(2, 6)
    hot[:, 0] = 1.0
    assert features(evidence_of([0], hot, random_rows(3))).isfinite().all()


def test_a_new_policy_stays_near_the_target() -> None:
    found = features(evidence_of([0, 1], random_rows(1, 3), random_rows(2, 2)))
    assert Policy()(found).sigmoid().tolist() == pytest.approx([0.0759, 0.0759], abs=1e-3)


@pytest.mark.parametrize("width", [0, 64])
def test_a_saved_policy_comes_back_and_another_pairs_is_refused(tmp_path: Path, width: int) -> None:
    policy = trained(0, width)
    policy.pair = "abc"
    saved = Policy("abc", width)
    saved.load_state_dict(policy.state_dict())
    saved.save_pretrained(str(tmp_path / "arbiter"))
    found = features(evidence_of([0, 1], random_rows(1, 3), random_rows(2, 2)))
    assert torch.equal(load(tmp_path / "arbiter", "abc")(found), policy(found))
    with pytest.raises(UserError, match=r"another pair.*train-arbiter"):
        load(tmp_path / "arbiter", "xyz")
    with pytest.raises(UserError, match="holds no arbiter"):
        load(tmp_path / "none", "abc")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_threshold_one_is_exact_and_below_zero_refuses_nothing(temperature: float) -> None:
    target, draft = TableModel(5, seed=1), TableModel(5, seed=2)
    prompts = [(i % 5, (i * 3) % 5) for i in range(10)]
    params = [SamplingParams(temperature=temperature, max_tokens=25, seed=i) for i in range(10)]
    exact = toy_engine(target, draft).generate(prompts, params, Speculative())
    strict = toy_engine(target, draft).generate(prompts, params, Fixed(trained(1), 1.0))
    open_ = toy_engine(target, draft).generate(prompts, params, Fixed(trained(1), -1.0))
    assert [r.token_ids for (r,) in strict] == [r.token_ids for (r,) in exact]
    for (result,) in open_:
        assert set(result.provenance) <= {"draft", "bonus", "target"}


def test_decisions_follow_the_policys_chances() -> None:
    evidence = evidence_of([0, 1], random_rows(1, 3), random_rows(2, 2))
    policy = trained(2)
    chances = policy(features(evidence)).sigmoid()
    assert Arbiter(policy, 0.3).keep(evidence).tolist() == (chances > 0.3).tolist()


def test_cospec_without_an_arbiter_names_the_fix(tmp_path: Path) -> None:
    engine = toy_engine(TableModel(5, seed=1), TableModel(5, seed=2))
    with pytest.raises(UserError, match="train-arbiter"):
        engine.submit((1,), SamplingParams(), CoSpec())
    with pytest.raises(UserError, match="holds no arbiter"):
        engine.submit((1,), SamplingParams(), CoSpec(arbiter=str(tmp_path)))


def made_up(count: int) -> list[Mined]:
    """Branches whose better side shows in one feature, with some noise."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for i in range(count):
        row = torch.randn(len(NAMES), generator=generator)
        better = bool(row[3] + 0.1 * torch.randn((), generator=generator) > 0)
        branch = Branch(0, tuple(row.tolist()), better, not better)
        found.append(Mined(f"p{i}", True, 1, (branch,)))
    return found


@pytest.mark.parametrize(("width", "epochs"), [(64, 25), (0, 200)])
def test_the_warm_start_learns_what_there_is_to_learn(
    tmp_path: Path, width: int, epochs: int
) -> None:
    recipe = warm.Recipe(epochs=epochs, width=width)
    train, held = warm.split(made_up(1500), recipe)
    policy = warm.warm_start(recipe, train, held, "abc", tmp_path / "checkpoint.pt")
    assert policy.pair == "abc"
    # Guessing is right on half of them; the noise leaves about 97 % to be had.
    assert warm.agreement(policy, held) > 0.85


def test_a_stopped_warm_start_ends_at_the_same_weights(tmp_path: Path) -> None:
    train, held = warm.split(made_up(300), recipe := warm.Recipe(epochs=6))
    whole = warm.warm_start(recipe, train, held, "", tmp_path / "whole.pt")

    class StopError(Exception):
        pass

    def stop(epoch: int, _: float) -> None:
        if epoch == 3:
            raise StopError

    with pytest.raises(StopError):
        warm.warm_start(recipe, train, held, "", tmp_path / "broken.pt", stop)
    broken = warm.warm_start(recipe, train, held, "", tmp_path / "broken.pt")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, broken.state_dict()[name])


def test_a_checkpoint_of_other_settings_is_not_taken_for_this_one(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    quiet, loud = (warm.Recipe(epochs=3, noise=noise) for noise in (0.0, 2.0))
    train, held = warm.split(made_up(300), quiet)
    first = warm.warm_start(quiet, train, held, "", path)
    again = warm.warm_start(loud, train, held, "", path)
    fresh = warm.warm_start(loud, train, held, "", tmp_path / "fresh.pt")
    for name, value in again.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name])
    assert not torch.equal(*(next(each.parameters()) for each in (first, again)))
    # A reinforcement has cost too much to be thrown away unasked.
    problems, lessons = lab_problems(3), reinforce.Recipe(steps=1, problems=1, rollouts=2)
    place = tmp_path / "reinforce.pt"
    reinforce.reinforce(lessons, miner(), pair(), problems, [], trained(3), place)
    with pytest.raises(UserError, match="delete it"):
        reinforce.reinforce(
            replace(lessons, rate=0.1), miner(), pair(), problems, [], trained(3), place
        )


def test_labels_by_the_targets_answer() -> None:
    """AutoJudge's: right or wrong does not matter, only whether the answer is the same."""
    cases = [(True, True, True), (False, True, False), (True, False, False), (False, False, True)]
    mined = [
        Mined(f"p{i}", True, 1, (Branch(0, (float(i % 4),) * 16, *cases[i % 4][:2], "", same),))
        for i, same in enumerate([case[2] for case in cases] * 30)
    ]
    for labels, taught in (("target", {0: 1, 1: 0, 2: 0, 3: 1}), ("gold", {0: 1, 1: 0, 2: 1})):
        train, held = warm.split(mined, warm.Recipe(labels=labels))
        seen = {
            (int(row[0]), float(label))
            for part in (train, held)
            for row, label in zip(part.features, part.labels, strict=True)
        }
        assert seen == {(case, float(label)) for case, label in taught.items()}
    old = [
        Mined(f"p{i}", True, 1, (Branch(0, (float(i % 4),) * 16, *cases[i % 4][:2]),))
        for i in range(120)
    ]
    train, _ = warm.split(old, warm.Recipe(labels="target"))
    assert {int(row[0]) for row in train.features} == {0, 1, 2}
    with pytest.raises(UserError, match="gold, target"):
        warm.Recipe(labels="odd")


def test_branches_that_cannot_teach_are_refused() -> None:
    same = [Mined(f"p{i}", True, 1, (Branch(0, (0.0,) * 16, True, True),)) for i in range(50)]
    with pytest.raises(UserError, match="mine more"):
        warm.split(same, warm.Recipe(both_right=0.0))


def lab_problems(count: int) -> list[Problem]:
    return train_problems(Lab(), None, count)


def miner(most: int = 3) -> Miner:
    return Miner(Lab(), Prompting(), 100, None, most, batch=8)


def test_a_target_branch_on_the_targets_own_text_ends_as_that_text(tmp_path: Path) -> None:
    """And a draft's branch is what generating from there gives; a torn file goes on."""
    problems = lab_problems(16)
    path = tmp_path / "branches.jsonl"
    found = mine.mine(miner(), pair(), problems, path)
    assert [one.problem for one in found] == [problem.id for problem in problems]
    branches = [(one, branch) for one in found for branch in one.branches]
    assert branches
    assert all(branch.target_right == one.right for one, branch in branches)
    assert all(len(one.branches) == min(one.mismatches, 3) for one in found)
    content = path.read_text()
    lines = content.splitlines(keepends=True)
    path.write_text("".join(lines[:8]) + lines[8][:20])
    assert mine.mine(miner(), pair(), problems, path) == found
    # Nothing tells this walk from the target's own, except that it is not known to be that.
    other = replace(miner(), walk=Speculative())
    assert mine.mine(other, pair(), problems, tmp_path / "again.jsonl") == found
    assert path.read_text() == content


def test_branches_of_other_prompts_do_not_join(tmp_path: Path) -> None:
    path = tmp_path / "arbiter" / "mining.json"
    bind(path, {"shots": ["a", "b"], "branches": 8})
    bind(path, {"shots": ["a", "b"], "branches": 8})
    with pytest.raises(UserError, match=r"begun with shots \['a', 'b'\], not \[\].*another --out"):
        bind(path, {"shots": [], "branches": 8})


def test_decoding_sees_what_was_mined_hidden_states_included() -> None:
    """Up to the first judged mismatch greedy decoding walks where the miner walked."""
    width = pair().target.config.hidden_size
    policy = Policy(pair().fingerprint, states=width)
    prompts = [encode(pair(), problem.question) for problem in bundled("test")[:10]]
    params = [SamplingParams(max_tokens=80, seed=i) for i in range(10)]
    heard: dict[int, torch.Tensor] = {}
    rollout = Rollout(policy, lambda seed, found, _: heard.setdefault(seed, found) and None)
    engine = make_engine(pair())
    engine.generate(prompts, params, rollout)
    texts = engine.generate(prompts, params, Speculative())
    for i, (result,) in enumerate(texts):
        spots, mined, _ = mine.mismatches(pair(), prompts[i], result.token_ids, states=True)
        assert not spots or mined.shape[1] == len(NAMES) + 2 * width
        assert spots or i not in heard
        if i in heard:
            # A mismatch where the whole block before it was right is never judged: nothing was
            # drafted there. So the first one that is heard of may be a later one.
            apart = (mined - heard[i]).abs() / (1 + mined.abs())
            assert float(apart.amax(1).min()) < 2e-3
    assert heard
    some = torch.randn(2 * width)
    torch.testing.assert_close(unpacked(packed(some)), some, atol=1e-2, rtol=1e-3)


def test_branches_without_states_cannot_teach_a_policy_that_wants_them() -> None:
    bare = [
        Mined(f"p{i}", True, 1, (Branch(0, (0.0,) * 16, i % 2 == 0, i % 2 == 1),))
        for i in range(50)
    ]
    with pytest.raises(UserError, match="--no-states"):
        warm.split(bare, warm.Recipe(both_right=0.0), states=True)


def test_train_problems_are_no_test_problems() -> None:
    tested = {problem.question for problem in bundled("test")}
    assert not tested & {problem.question for problem in lab_problems(200)}


@pytest.mark.parametrize("width", [64, 0])
def test_a_stopped_reinforcement_ends_at_the_same_weights(tmp_path: Path, width: int) -> None:
    problems = lab_problems(6)
    recipe = reinforce.Recipe(steps=4, problems=2, rollouts=2, every=2, patience=9)
    torch.manual_seed(3)
    start = Policy(width=width).state_dict()

    def run(steps: int, path: Path) -> Policy:
        policy = Policy(width=width)
        policy.load_state_dict(start)
        shortened = replace(recipe, steps=steps)
        return reinforce.reinforce(
            shortened, miner(), pair(), problems[2:], problems[:2], policy, path
        )

    whole = run(4, tmp_path / "whole.pt")
    run(2, tmp_path / "broken.pt")
    broken = run(4, tmp_path / "broken.pt")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, broken.state_dict()[name])
    state = torch.load(tmp_path / "whole.pt", weights_only=True)
    moved = [not torch.equal(value, start[name]) for name, value in state["policy"].items()]
    assert any(moved)


def test_reward_moves_the_policy_the_right_way() -> None:
    """One update where keeping was rewarded raises the chance of keeping."""
    policy, warm_policy = trained(4), trained(4)
    found = features(evidence_of([0], random_rows(1, 2), random_rows(2, 1)))
    before = float(policy(found).detach())
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-3)
    recipe = reinforce.Recipe()
    loss = reinforce.surrogate(
        policy, warm_policy, found, torch.tensor([1.0]), torch.tensor([1.0]), recipe
    )
    loss.backward()
    optimiser.step()
    assert float(policy(found).detach()) > before


def test_the_bundled_pair_has_an_arbiter_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Offline, without a flag; at threshold 1 it is exact, and at its own it keeps something."""
    prompts = [encode(pair(), problem.question) for problem in bundled("test")[:24]]
    params = [SamplingParams(max_tokens=100)] * 24
    engine = make_engine(pair())
    exact = engine.generate(prompts, params, Speculative())
    strict = engine.generate(prompts, params, CoSpec(threshold=1.0))
    assert [r.token_ids for (r,) in strict] == [r.token_ids for (r,) in exact]
    capsys.readouterr()
    load(pair_path("arbiter"), pair().fingerprint)
    assert capsys.readouterr().out == ""
    free = engine.generate(prompts, params, CoSpec())
    assert not [r.error for (r,) in free if r.error]
    assert sum(record.notes["fired"] for (r,) in free for record in r.rounds) > 0
    alone = make_engine(pair(), batch=1).generate(prompts[:6], params[:6], CoSpec())
    assert [r.token_ids for (r,) in alone] == [r.token_ids for (r,) in free[:6]]


def test_a_trained_arbiter_decodes(tmp_path: Path) -> None:
    policy = Policy(pair().fingerprint)
    policy.save_pretrained(str(tmp_path))
    prompts = [encode(pair(), problem.question) for problem in bundled("test")[:3]]
    params = [SamplingParams(max_tokens=60)] * 3
    engine = make_engine(pair())
    found = engine.generate(prompts, params, CoSpec(arbiter=str(tmp_path)))
    exact = engine.generate(prompts, params, Speculative())
    # The untrained policy's chance is 0.08 everywhere: it keeps nothing.
    assert [r.token_ids for (r,) in found] == [r.token_ids for (r,) in exact]


def test_curves_of_a_reinforcement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            drawn.append((name, value, step))

        def flush(self) -> None:
            pass

    board = types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    curves(tmp_path)(reinforce.Update(7, 0.5, 0.4, 3.0, 0.2, None))
    assert drawn == [
        ("reward", 0.5, 7),
        ("right", 0.4, 7),
        ("tokens_per_pass", 3.0, 7),
        ("kept", 0.2, 7),
    ]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="pip install tensorboard"):
        curves(tmp_path)
