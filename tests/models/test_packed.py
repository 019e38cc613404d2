"""Packed models on disk give the very logits of those packed afresh."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.models.test_hf import plain

from antiphon.models import linear, packed
from antiphon.models.base import Extension
from antiphon.models.hf import HFModel
from antiphon.models.source import Source


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packed, "SMALLEST", 0)
    plain("qwen2").save_pretrained(tmp_path / "model")
    return Source("model", str(tmp_path / "model"), None, plain("qwen2").config, tokenizer=None)


def logits(module: object) -> torch.Tensor:
    model = HFModel(module, "model")
    (scores,) = model.forward([Extension(model, model.new_tree(8), (5, 6, 7), rows=(0, 1, 2))])
    return scores.logits


@pytest.mark.parametrize("precision", ["int8"])
def test_the_second_load_reads_what_the_first_packed(
    precision: str, found: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = packed.prepared(found, precision)
    packed.keep(module, found, precision)
    first = logits(module)
    monkeypatch.setattr(linear, "prepare_linears", lambda *_: 1 / 0)
    second = packed.prepared(found, precision)
    assert torch.equal(logits(second), first)
    assert second.generation_config.eos_token_id == plain("qwen2").generation_config.eos_token_id


def test_a_file_that_cannot_be_read_is_made_anew(found: Source) -> None:
    module = packed.prepared(found, "int8")
    packed.keep(module, found, "int8")
    first = logits(module)
    file = packed.stored(found, "int8")
    file.write_bytes(file.read_bytes()[:100])
    told: list[str] = []
    assert torch.equal(logits(packed.prepared(found, "int8", told.append)), first)
    assert "made anew" in told[0]
    packed.keep(module, found, "int8")
    assert torch.equal(logits(packed.prepared(found, "int8")), first)
    assert not list(file.parent.glob("*.partial"))


def test_changed_weights_and_other_precisions_have_files_of_their_own(found: Source) -> None:
    before = packed.stored(found, "int8")
    assert before != packed.stored(found, "int4")
    next(Path(found.location).glob("*.safetensors")).touch()
    assert before != packed.stored(found, "int8")


def test_a_name_for_the_same_folder_is_not_another_model(found: Source, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(found.location)
    other = Source("link", str(link), None, found.config, tokenizer=None)
    assert packed.stored(found, "int8") == packed.stored(other, "int8")


def test_small_models_and_float_precisions_are_not_kept(
    found: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed.keep(packed.prepared(found, "float32"), found, "float32")
    monkeypatch.setattr(packed, "SMALLEST", 10**9)
    packed.keep(packed.prepared(found, "int8"), found, "int8")
    assert not (Path(found.location).parent / "cache").exists()
