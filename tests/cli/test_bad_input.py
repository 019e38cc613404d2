"""Bad input: one line naming the fix, exit code 2, nothing half-done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import pytest
import torch
from tests.cli.run import Outcome, antiphon
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from antiphon.lab import pair_path


def refused(outcome: Outcome, fix: str) -> None:
    lines = [line for line in outcome.stderr.splitlines() if line.strip()]
    assert outcome.returncode == 2, outcome.stderr
    assert outcome.stdout == ""
    assert lines[-1].startswith("error: ")
    assert fix in lines[-1]
    assert "Traceback" not in outcome.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the bundled target that a test may spoil."""
    return Path(shutil.copytree(pair_path("target"), tmp_path / "model"))


def test_a_missing_folder(tmp_path: Path) -> None:
    refused(antiphon("generate", "hi", "--target", str(tmp_path / "none")), "check the path")


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    refused(antiphon("generate", "hi", "--target", str(tmp_path)), "config.json")


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_text("not a model")
    refused(antiphon("generate", "hi", "--target", str(file)), "GGUF")


def test_a_gguf_of_an_unknown_architecture(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "quokka")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(antiphon("generate", "hi", "--target", str(file)), "original weights")


def test_corrupt_safetensors(copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    refused(antiphon("generate", "hi", "--target", str(copy)), "fetch the model again")


def test_a_draft_with_another_vocabulary(tmp_path: Path) -> None:
    other = tmp_path / "draft"
    shutil.copytree(pair_path("draft"), other)
    table = json.loads((other / "tokenizer.json").read_text())
    vocabulary = table["model"]["vocab"]
    first, second = list(vocabulary)[50:52]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(table))
    target = str(pair_path("target"))
    refused(antiphon("generate", "hi", "--target", target, "--draft", str(other)), "same family")


def test_an_encoder_is_no_causal_model(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["model_type"] = "t5"
    (copy / "config.json").write_text(json.dumps(config))
    refused(antiphon("generate", "hi", "--target", str(copy)), "decoder-only")


def test_a_model_larger_than_the_memory(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config.update(hidden_size=65536, intermediate_size=262144, num_hidden_layers=200, head_dim=128)
    (copy / "config.json").write_text(json.dumps(config))
    refused(antiphon("generate", "hi", "--target", str(copy)), "int8")


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--gamma", "0"], ">= 1"),
        (["--rule", "cactus", "--method", "autoregressive"], "drop it"),
        (["--rule", "cactos"], "choose exact"),
        (["--rule-arg", "delta=1"], "--rule NAME"),
        (["--rule", "cactus", "--rule-arg", "delta=x"], "give a number"),
        (["--veto", "entropy"], "needs target"),
        (["--rule", "cactus", "--chains", "2"], "chains=1"),
        (["--veto-entropy", "2"], "drop it"),
        (["--method", "easd", "--draft", "ngram"], "draft model"),
        (["--method", "easd:top_n=x"], "whole number"),
        (["--gamma", "many"], "'auto'"),
        (["--gamma", "4", "--method", "autoregressive"], "drop it"),
        (["--method", "oracle"], "choose"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--max-tokens", "100000"], "lower max_tokens"),
        (["--top-p", "0"], "top_p"),
        (["--stop", ""], "stop"),
        (["--dtype", "float8"], "choose"),
        (["--target-quant", "int2"], "choose"),
        (["--device", "tpu9"], "cpu"),
        (["--threads", "0"], ">= 1"),
        (["--stream", "--json"], "drop"),
        (["--draft", "ngram", "--chains", "2"], "chains=1"),
    ],
)
def test_bad_flags(flags: list[str], fix: str) -> None:
    refused(antiphon("generate", "What is 2 + 2?", *flags), fix)


def test_a_prompt_longer_than_the_context() -> None:
    refused(antiphon("generate", "seven " * 3000), "shorten it")


def test_a_trace_file_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "none" / "trace.jsonl"
    refused(antiphon("generate", "What is 2 + 2?", "--trace", str(file)), "check the path")


def test_an_empty_prompt() -> None:
    refused(antiphon("generate", stdin="\n"), "standard input")


def test_no_draft_for_speculation() -> None:
    target = str(pair_path("target"))
    refused(
        antiphon("generate", "hi", "--target", target, "--method", "speculative"), "--draft PATH"
    )


def test_an_architecture_that_hides_its_attention_is_refused_by_name(tmp_path: Path) -> None:
    """Guards the probe at load: such a model must not run with wrong attention."""
    from transformers import BloomConfig, BloomForCausalLM

    folder = tmp_path / "bloom"
    tokenizer = AutoTokenizer.from_pretrained(pair_path("target"))
    config = BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_layer=1, n_head=2)
    BloomForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    refused(antiphon("generate", "hi", "--target", str(folder)), "bloom")


def test_a_hub_id_that_cannot_be_reached() -> None:
    refused(antiphon("generate", "hi", "--target", "nobody/nothing"), "hub id")


def test_any_llama_folder_works(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(pair_path("target"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer) + 7,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=128,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    outcome = antiphon("generate", "hi", "--target", str(folder), "--json", "--max-tokens", "5")
    assert outcome.returncode == 0, outcome.stderr
    assert len(json.loads(outcome.stdout)["token_ids"]) <= 5
