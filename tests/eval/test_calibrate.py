"""Profiles: what is collected, and whose it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from antiphon.api import make_engine, pair_costs
from antiphon.drafting.pace import Pace
from antiphon.errors import UserError
from antiphon.eval import data
from antiphon.eval.calibrate import positions, step_ends
from antiphon.eval.reread import Reread
from antiphon.eval.tasks.lab import Lab
from antiphon.lab import pair_path, profile_path
from antiphon.methods.speculative import block_length
from antiphon.models.pair import LoadOptions, ModelPair, load_pair
from antiphon.params import SamplingParams
from antiphon.profile import LEVELS, Quantiles, load


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return load_pair(options=LoadOptions(dtype="float32"))


def test_the_bundled_pair_comes_with_its_profile(pair: ModelPair) -> None:
    assert pair.profile is not None
    assert pair.profile.pair == pair.fingerprint
    assert set(pair.profile.seen) >= {"0", "0.6", "1"}
    for seen in pair.profile.seen.values():
        assert 0.8 < seen.acceptance < 1
        for name in ("target_entropy", "draft_entropy", "step_min_logprob"):
            quantiles = seen.quantities[name]
            assert quantiles.count > 100
            assert quantiles.at(0.1) <= quantiles.at(0.5) <= quantiles.at(0.97)
    assert pair.profile.nearest(0.95) is pair.profile.seen["1"]
    low, middle, high = (pair.profile.at(t).acceptance for t in (0.8, 0.9, 1.0))
    assert middle == pytest.approx((low + high) / 2)


def test_a_profile_reaches_the_methods(pair: ModelPair) -> None:
    models = make_engine(pair, costs=True).models
    assert models.profile is pair.profile
    length = block_length("auto", "model", SamplingParams(), models)
    assert isinstance(length, Pace)
    assert pair.profile
    assert length.length.acceptance == pytest.approx(pair.profile.at(0.0).acceptance)


def test_costs_of_a_profile_count_on_its_own_machine_alone(pair: ModelPair) -> None:
    from antiphon.api import machine_and_precision

    assert pair.profile
    made_up = {"1": 1.0, "64": 2.0}
    here = replace(
        pair.profile,
        machine=machine_and_precision(pair),
        target_seconds=made_up,
        draft_seconds=made_up,
    )
    assert pair_costs(replace(pair, profile=here)).target.seconds(1) == 1.0
    there = replace(here, machine="another")
    assert pair_costs(replace(pair, profile=there)).target.seconds(1) < 1.0


def test_the_profile_of_another_pair_is_refused(pair: ModelPair, tmp_path: Path) -> None:
    record = json.loads(profile_path().read_text())
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(record | {"pair": "0" * 16}))
    with pytest.raises(UserError, match=r"another pair.*antiphon calibrate"):
        load_pair(profile=path)
    with pytest.raises(UserError, match="another pair"):
        load_pair(str(pair_path("draft")), str(pair_path("draft")), profile=profile_path())


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"seen": {"0": {}}}', '{"seen": 1}'])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(content)
    with pytest.raises(UserError, match="is no profile"):
        load(path, "-")
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "none.json", "-")


def test_quantiles_are_linear_between_levels_and_refuse_disorder() -> None:
    rising = Quantiles(tuple(float(level) for level in LEVELS), 10)
    assert rising.at(0.35) == pytest.approx(0.35)
    assert rising.at(0.0) == LEVELS[0]
    with pytest.raises(UserError, match="rising"):
        Quantiles(tuple(reversed(rising.values)), 10)


def test_positions_are_what_the_models_thought(pair: ModelPair) -> None:
    """Against the plain forward of transformers, on a bundled problem."""
    problem = data.load(Lab(), None, 1).problems[0]
    prompt = tuple(pair.tokenizer(f"<|user|>{problem.question}<|assistant|>").input_ids)
    output = tuple(pair.tokenizer(problem.solution).input_ids)
    found = positions(pair, prompt, output, 0.0, "blank-line")
    from transformers import AutoModelForCausalLM

    stock = [
        AutoModelForCausalLM.from_pretrained(pair_path(which), dtype=torch.float32).eval()
        for which in ("target", "draft")
    ]
    with torch.no_grad():
        p, q = (
            model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            for model in stock
        )
    overlap = torch.minimum(p.exp(), q.exp()).sum(-1)
    assert found["acceptance"] == pytest.approx(overlap.tolist(), abs=1e-4)
    entropy = -(p.exp() * p).sum(-1)
    assert found["target_entropy"] == pytest.approx(entropy.tolist(), abs=1e-3)
    differ = p.argmax(-1) != q.argmax(-1)
    assert len(found["target_entropy_mismatch"]) == int(differ.sum())
    chosen = p.gather(-1, torch.tensor(output)[:, None])[:, 0]
    assert min(found["step_min_logprob"]) == pytest.approx(float(chosen.min()), abs=1e-4)
    ours = Reread(pair.target, prompt, output).logprobs
    assert torch.allclose(ours, p, atol=1e-3)
    cooler = positions(pair, prompt, output, 0.5, "blank-line")
    assert cooler["step_min_logprob"] == pytest.approx(found["step_min_logprob"], abs=1e-4)
    assert max(cooler["target_entropy"]) < max(found["target_entropy"])


def test_steps_end_at_blank_lines_and_cover_the_output(pair: ModelPair) -> None:
    text = "First 1 + 1 = 2.\n\nThen 2 + 2 = 4.\n\nThe answer is 4."
    output = tuple(pair.tokenizer(text).input_ids)
    ends = step_ends(pair.tokenizer, (), output, "blank-line")
    assert ends[-1] == len(output)
    parts = [pair.tokenizer.decode(output[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    assert len(parts) == 3
    assert "".join(parts) == text


def test_steps_may_end_at_lines(pair: ModelPair) -> None:
    output = tuple(pair.tokenizer("First 1 + 1 = 2.\n\nThen 2.\nThe answer is 4.").input_ids)
    ends = step_ends(pair.tokenizer, (), output, "line")
    parts = [pair.tokenizer.decode(output[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    assert [part.strip() for part in parts] == ["First 1 + 1 = 2.", "Then 2.", "The answer is 4."]
