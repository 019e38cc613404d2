"""Programs on disk give the very logits of those traced afresh, and need no modeling code."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.test_hf import plain

from antiphon.models import fused, kernels, linear, packed
from antiphon.models.base import Extension
from antiphon.models.compiled import program
from antiphon.models.compiled.program import Program
from antiphon.models.compiled.traced import TracedModel, traced
from antiphon.models.source import Source

pytestmark = pytest.mark.skipif(not fused.ready(), reason="no C++ compiler")
NAMES = ["llama", "gemma2-softcap", "qwen2"]
PRECISIONS = ["float32", "bfloat16", "int8", "int4"]


@pytest.fixture
def told() -> list[str]:
    return []


def prepared(name: str, precision: str) -> Any:
    module = copy.deepcopy(plain(name)).to(linear.activation_dtype(precision))
    linear.prepare_linears(module, precision, smallest=0)
    return module


def found(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    fused.loaded()  # From the usual cache, where it need not be compiled anew.
    compiled = fused.version()
    monkeypatch.setattr(fused, "version", lambda: compiled)
    monkeypatch.setenv("ANTIPHON_CACHE", str(folder / "cache"))
    plain(name).save_pretrained(folder / "model")
    return Source(name, str(folder / "model"), None, plain(name).config, tokenizer=None)


def seen(made: Program, config: Any) -> list[torch.Tensor]:
    """Logits and hidden states of a prompt, and of two branches on it beside another text."""
    model = TracedModel(made, config, "model", 97, "float32")
    trees = [model.new_tree(8), model.new_tree(8)]
    prompt = Extension(model, trees[0], (5, 6, 7, 8), rows=(0, 3), hidden=True)
    (first,) = model.forward([prompt])
    trees[0].commit(first.nodes[-1])
    asks = [
        Extension(
            model, trees[0], (9, 10), parents=(first.nodes[-1],) * 2, rows=(0, 1), hidden=True
        ),
        Extension(model, trees[1], (11, 12, 13), rows=(2,), hidden=True),
    ]
    scores = [first, *model.forward(asks)]
    return [each for score in scores for each in (score.logits, score.hidden)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_what_was_kept_gives_the_same_bits(
    name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    source = found(name, tmp_path, monkeypatch)
    fresh = traced(prepared(name, precision))
    if not program.keep(fresh, source, precision):
        pytest.skip("another library keeps these weights")
    kept = program.recall(source, precision, told.append)
    assert kept is not None
    assert kept.weights
    assert (kept.layers, kept.eos_token_ids) == (fresh.layers, fresh.eos_token_ids)
    for ours, theirs in zip(seen(kept, source.config), seen(fresh, source.config), strict=True):
        assert torch.equal(ours, theirs)
    assert not told


def test_what_cannot_be_read_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    source = found("llama", tmp_path, monkeypatch)
    fresh = traced(prepared("llama", "float32"))
    assert program.recall(source, "float32", told.append) is None
    assert program.keep(fresh, source, "float32")
    weights = program.folder_of(source, "float32") / "weights.pt"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert program.recall(source, "float32", told.append) is None
    assert "made anew" in told[0]
    assert program.keep(fresh, source, "float32")
    assert program.recall(source, "float32", told.append) is not None
    assert not list(weights.parent.parent.glob(".partial*"))


def test_other_weights_precisions_and_operations_have_programs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = found("llama", tmp_path, monkeypatch)
    before = program.folder_of(source, "float32")
    assert before != program.folder_of(source, "int8")
    monkeypatch.setattr(fused, "version", lambda: "of another day")
    other = program.folder_of(source, "float32")
    assert other != before
    next((tmp_path / "model").glob("*.safetensors")).touch()
    assert program.folder_of(source, "float32") != other


def test_large_models_in_float32_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = found("llama", tmp_path, monkeypatch)
    monkeypatch.setattr(packed, "SMALLEST", 0)
    assert not program.keep(traced(prepared("llama", "float32")), source, "float32")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("precision", ["int8", "float16"])
def test_weights_in_another_librarys_form_are_not_kept(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = found("llama", tmp_path, monkeypatch)
    monkeypatch.setitem(kernels.FASTER, "int8", {})
    assert not program.keep(traced(prepared("llama", precision)), source, precision)
    assert not list((tmp_path / "cache").rglob("*.*"))


def test_the_second_start_imports_no_transformers(tmp_path: Path) -> None:
    """What takes seconds at every start otherwise."""
    script = (
        "import sys\n"
        "from antiphon.cli import main\n"
        "sys.argv[1:] = 'generate --dtype float32 --max-tokens 4 Two'.split()\n"
        "try: main()\n"
        "finally: print([n for n in ('transformers', 'huggingface_hub') if n in sys.modules])\n"
    )
    cache = Path(os.environ.get("ANTIPHON_CACHE", Path.home() / ".cache" / "antiphon"))
    (tmp_path / "fused").symlink_to(cache / "fused")
    said = [
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"ANTIPHON_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert said[0][-2:] == ["['transformers',", "'huggingface_hub']"]
    assert said[1][-1] == "[]"
    assert said[0][:-2] == said[1][:-1] != []
