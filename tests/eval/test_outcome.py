"""Reward models from outcomes: what is read, how a run goes on, and what a head learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.cli.run import antiphon

from antiphon.checkpoint import packed
from antiphon.errors import UserError
from antiphon.eval import outcome
from antiphon.eval.calibrate import step_ends
from antiphon.eval.outcome import HELD_OUT, ReadAnswer, collect, graded, teach
from antiphon.lab import pair_path
from antiphon.lab.value_head import ValueHead
from antiphon.methods import rewards
from antiphon.models.pair import LoadOptions, ModelPair, load_pair

EXACT = ("--dtype", "float32", "--threads", "1")


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return load_pair(options=LoadOptions(dtype="float32"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both models' answers to a few problems."""
    path = tmp_path_factory.mktemp("outcome") / "run.jsonl"
    methods = ("--no-baselines", "--method", "draft-only", "--method", "autoregressive")
    asked = ("eval", "--task", "lab", "--limit", "40", "--temperature", "1", "--seeds", "0")
    assert antiphon(*asked, *methods, *EXACT, "--out", str(path)).returncode == 0
    return path


def made_up(count: int, steps: int = 3, width: int = 4, seed: int = 0) -> list[ReadAnswer]:
    """Answers whose states tell whether they are right."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        states = torch.randn(steps, width, generator=generator)
        right = i % 2 == 0
        states[:, 0] += 4.0 if right else -4.0
        found.append(ReadAnswer(f"run/{i}", f"problem {i}", right, packed(states), width))
    return found


def test_states_are_the_targets_own_at_the_ends_of_steps(
    pair: ModelPair, run: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(pair_path("target"), dtype=torch.float32)
    named = graded([run])
    found = collect(pair, named, "blank-line", tmp_path / "steps.jsonl")
    assert [one.answer for one in found] == list(named)
    for one in found[:5]:
        answer, prompting = named[one.answer]
        prompt, output = prompting.reread(pair.tokenizer, answer)
        assert pair.tokenizer.decode(output) == answer.outputs[-1]
        ends = step_ends(pair.tokenizer, prompt, output, "blank-line")
        with torch.no_grad():
            text = torch.tensor([prompt + output])
            whole = module.model(text).last_hidden_state[0]
        expected = whole[[len(prompt) + end - 1 for end in ends]]
        # Kept as float16.
        torch.testing.assert_close(one.rows(), expected, atol=2e-2, rtol=2e-3)
        assert (one.right, one.problem) == (answer.right, answer.problem)


def test_a_killed_reading_goes_on(pair: ModelPair, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    named = graded([run])
    some = dict(list(named.items())[:6])
    whole = collect(pair, some, "line", path)
    content = path.read_text()
    lines = content.splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][:40])
    told: list[ReadAnswer] = []
    assert collect(pair, some, "line", path, told.append) == whole
    assert [one.answer for one in told] == list(some)[3:]
    assert path.read_text() == content
    # Another choice of answers takes its own from the file, no others.
    fewer = dict(list(named.items())[4:6])
    assert collect(pair, fewer, "line", path, told.append) == whole[4:6]
    assert len(told) == 3


def test_a_head_learns_what_states_tell_and_is_tried_on_other_problems() -> None:
    answers = made_up(200)
    taught = teach(answers)
    assert taught.report.auroc > 0.99
    assert taught.report.held_out_steps + taught.report.training_steps == 600
    assert 0.05 < taught.report.held_out_steps / 600 < 2 / HELD_OUT
    assert taught.quantile(0.1) < 0.5 < taught.quantile(0.9)
    again = teach(answers)
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            taught.head.state_dict().values(), again.head.state_dict().values(), strict=True
        )
    )


def test_rewards_are_the_chances_they_say() -> None:
    """States that tell nothing but the base rate give that rate, whatever the width."""
    generator = torch.Generator().manual_seed(0)
    answers = [
        ReadAnswer(
            f"run/{i}",
            f"problem {i}",
            i % 4 == 0,
            packed(torch.randn(2, 64, generator=generator)),
            64,
        )
        for i in range(600)
    ]
    taught = teach(answers)
    assert taught.penalty == max(outcome.PENALTIES)
    assert all(0.1 < reward < 0.45 for reward in taught.rewards)


def test_too_little_to_learn_from_is_told() -> None:
    for few in ([], made_up(10), [one for one in made_up(300) if one.right]):
        with pytest.raises(UserError, match="give more answers"):
            teach(few)


def test_the_command_makes_what_rsd_takes(pair: ModelPair, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "reward"
    asked = ("train-reward", "--answers", str(run), "--out", str(out), *EXACT)
    made = antiphon(*asked)
    assert made.returncode == 0, made.stderr
    report = json.loads(made.stdout.splitlines()[-1])
    assert report["reward"] == str(out)
    assert 0 <= report["auroc"] <= 1
    reward = rewards.load(str(out), pair.target, pair.fingerprint)
    head = ValueHead.load(out)
    state = torch.randn(head.hidden)
    with torch.no_grad():
        expected = float(head(state).sigmoid())
    assert reward((1, 2), state) == pytest.approx(expected)
    answered = antiphon("generate", "2 + 2?", "--method", f"rsd:reward={out}", *EXACT)
    assert answered.returncode == 0, answered.stderr
    # The same folder takes no steps that end elsewhere.
    refused = antiphon(*asked, "--boundary", "line")
    assert refused.returncode == 2
    assert "another --out" in refused.stderr


def test_bad_files_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="check the path"):
        graded([tmp_path / "nowhere.jsonl"])
    ungraded = tmp_path / "ungraded.jsonl"
    lines = run.read_text().splitlines()
    ungraded.write_text(lines[0] + "\n")
    with pytest.raises(UserError, match="no graded answers"):
        graded([ungraded])
    other = tmp_path / "other.jsonl"
    other.write_text("something else")
    with pytest.raises(UserError, match="another --out"):
        outcome.read(other)
    other.write_text('{"answer": 1}\n')
    with pytest.raises(UserError, match="delete it"):
        outcome.read(other)
