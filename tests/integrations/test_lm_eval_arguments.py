"""What lm_eval's users write: every argument is honoured or refused by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import UserError
from antiphon.integrations.lm_eval_arguments import (
    in_flight,
    method_and_models,
    sampling_params,
    with_flags,
)
from antiphon.lab import pair_path
from antiphon.methods import Autoregressive, Majority, Speculative
from antiphon.params import SamplingParams

BUNDLED = str(pair_path("target"))


def understood(
    target: object = None,
    draft: object = None,
    name: str | None = None,
    draft_quant: str = "none",
    **fields: object,
) -> Any:
    return method_and_models(target, draft, name, draft_quant, fields)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({}, (Speculative(), None, None)),
        ({"target": "T"}, (Autoregressive(), "T", None)),
        ({"target": Path("T"), "draft": "D"}, (Speculative(), "T", "D")),
        ({"target": "T", "draft": "self"}, (Speculative(), "T", "self")),
        ({"target": "T", "draft": "ngram"}, (Speculative(drafter="ngram"), "T", None)),
        ({"drafter": "ngram", "gamma": 6}, (Speculative(6, "ngram"), BUNDLED, None)),
        ({"gamma": 3, "confidence": 0.5}, (Speculative(3, confidence=0.5), None, None)),
        ({"gamma": "auto", "chains": None}, (Speculative("auto"), None, None)),
        ({"name": "autoregressive"}, (Autoregressive(), BUNDLED, None)),
        ({"target": "T", "name": "majority", "samples": 4}, (Majority(4), "T", None)),
        ({"draft": "self"}, (Speculative(), None, "self")),
    ],
    ids=repr,
)
def test_model_arguments(arguments: dict[str, Any], wanted: Any) -> None:
    assert understood(**arguments) == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gama": 4}, "'gama' is not known with method=speculative.*gamma"),
        ({"trust_remote_code": True}, "'trust_remote_code' is not known"),
        ({"gamma": 4, "name": "autoregressive"}, "'gamma' is not known"),
        ({"gamma": "many"}, "gamma is 'many'"),
        ({"gamma": True}, "gamma is 'True'"),
        ({"confidence": "x"}, "confidence is 'x'"),
        ({"name": "magic"}, "'magic' is not known: choose"),
        ({"target": 5}, "target is 5: give the text of a path"),
        ({"target": "T", "name": "speculative"}, "needs a draft"),
        ({"draft": "D", "name": "autoregressive"}, "draft does nothing for autoregressive"),
        ({"draft": "D", "drafter": "ngram"}, "draft does nothing for speculative:drafter"),
        ({"draft": "ngram", "drafter": "model"}, "drop one of them"),
        ({"draft": "ngram", "name": "autoregressive"}, "'drafter' is not known"),
        ({"target": "T", "draft_quant": "int8"}, "draft_quant does nothing"),
        ({"draft": "self", "draft_quant": "int8"}, "use target_quant"),
    ],
    ids=repr,
)
def test_model_arguments_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        understood(**arguments)


def test_batch_and_lm_evals_batch_size() -> None:
    assert in_flight(None, None) == in_flight(None, "auto") == in_flight(16, "auto:4") == 16
    assert in_flight(None, 1) == 1
    assert in_flight(None, "8") == in_flight(8, 1) == in_flight(8, "8") == 8
    for batch, batch_size in ((4, 8), (True, 1), (None, "many"), (None, 0)):
        with pytest.raises(UserError, match="batch"):
            in_flight(batch, batch_size)


def test_lm_evals_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    command = {"device": "cuda:0", "batch_size": 1, "max_batch_size": None}
    for gpu, wanted in ((True, "cuda:0"), (False, None)):
        monkeypatch.setattr("torch.cuda.is_available", lambda gpu=gpu: gpu)
        assert with_flags({"gamma": 2}, command).get("device") == wanted
        assert with_flags({"device": "cpu"}, command)["device"] == "cpu"
        assert with_flags({"batch_size": 4}, command)["batch_size"] == 4
        assert with_flags({}, {"device": "cpu"}) == {"device": "cpu"}
        with pytest.raises(UserError, match="device is 'cpu' and --device is 'cuda:1'"):
            with_flags({"device": "cpu"}, {"device": "cuda:1"})


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({}, SamplingParams(max_tokens=256)),
        ({"until": "\n", "max_gen_toks": 9}, SamplingParams(stop=("\n",), max_tokens=9)),
        ({"until": ["", "Q:"], "num_beams": 1}, SamplingParams(stop=("Q:",))),
        ({"max_new_tokens": 9, "max_tokens": 9}, SamplingParams(max_tokens=9)),
        ({"temperature": 0.7, "seed": None}, SamplingParams(temperature=0.7)),
        ({"temperature": 0.7, "do_sample": True}, SamplingParams(temperature=0.7)),
        ({"temperature": 0.7, "do_sample": False}, SamplingParams()),
        ({"temperature": 0.0, "do_sample": False, "top_p": 0.9}, SamplingParams(top_p=0.9)),
        (
            {"temperature": 1, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3},
            SamplingParams(temperature=1, top_p=0.9, top_k=5, min_p=0.1, seed=3),
        ),
        (
            {"repetition_penalty": 1.1, "stop_token_ids": [5], "ignore_eos": True},
            SamplingParams(repetition_penalty=1.1, stop_token_ids=(5,), ignore_eos=True),
        ),
    ],
    ids=repr,
)
def test_generation_arguments(arguments: dict[str, Any], wanted: SamplingParams) -> None:
    assert sampling_params(arguments) == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_q": 1}, "'top_q' is not known"),
        ({"n": 2}, "'n' is not known"),
        ({"stop": "a"}, "'stop' is not known.*until"),
        ({"num_beams": 4}, "num_beams is 4"),
        ({"do_sample": True}, "do_sample is True, but temperature is 0"),
        ({"do_sample": "no"}, "do_sample is 'no'"),
        ({"max_gen_toks": 5, "max_tokens": 6}, "give max_gen_toks alone"),
        ({"max_gen_toks": "5"}, "max_gen_toks is '5'"),
        ({"top_p": 2}, "generation arguments: top_p is 2"),
        ({"until": 5}, "generation arguments: stop is of type int"),
        ({"stop_token_ids": 5}, "generation arguments: stop_token_ids is of type int"),
    ],
    ids=repr,
)
def test_generation_arguments_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        sampling_params(arguments)
