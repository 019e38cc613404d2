"""What was found out of a folder once is what transformers makes of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoTokenizer

from antiphon.errors import UserError
from antiphon.lab import pair_path
from antiphon.models import known, source
from antiphon.models.hf import head_size, key_heads
from antiphon.profile import fingerprint


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "cache"))
    shutil.copytree(pair_path("draft"), tmp_path / "model")
    return str(tmp_path / "model")


def test_a_model_is_found_the_second_time_as_the_first(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = source.find(folder)
    monkeypatch.setattr(source, "_read", lambda *_: 1 / 0)
    second = source.find(folder)
    theirs, tokenizer = AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for found in (first, second):
        assert fingerprint(found.config) == fingerprint(theirs)
        text = found.config.get_text_config()
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"):
            assert getattr(text, name) == getattr(theirs, name)
        assert key_heads(text) == key_heads(theirs)
        assert head_size(text) == head_size(theirs)
        assert found.parameters() == {
            kind: source.count(theirs)[kind] for kind in ("linear", "other")
        }
        assert found.tokenizer.get_vocab() == tokenizer.get_vocab()
        assert found.tokenizer.chat_template == tokenizer.chat_template
        chat = [{"role": "user", "content": "How many?"}]
        assert found.tokenizer.apply_chat_template(chat) == tokenizer.apply_chat_template(chat)
        assert found.tokenizer.eos_token_id == tokenizer.eos_token_id
    with pytest.raises(AttributeError, match="no such_thing"):
        _ = second.config.such_thing


def test_a_changed_file_is_read_again(folder: str) -> None:
    source.find(folder)
    assert known.recall(folder, None) is not None
    (Path(folder) / "tokenizer_config.json").touch()
    assert known.recall(folder, None) is None


@pytest.mark.parametrize("part", ["tokenizer.pkl", "tokenizer.json"])
def test_what_lacks_a_part_is_found_out_anew(folder: str, tmp_path: Path, part: str) -> None:
    source.find(folder)
    (file,) = (tmp_path / "cache" / "known").glob(f"*.{part}")
    file.unlink()
    assert known.recall(folder, None) is None
    source.find(folder)
    assert known.recall(folder, None) is not None


def test_a_tokenizer_that_cannot_be_read_is_named(folder: str, tmp_path: Path) -> None:
    source.find(folder)
    for file in (tmp_path / "cache" / "known").glob("*.tokenizer.*"):
        file.write_bytes(b"{")
    again = known.recall(folder, None)
    assert again is not None
    with pytest.raises(UserError, match=r"tokenizer\.json: .* delete it"):
        again.tokenizer("a")
    with pytest.raises(UserError, match=r"tokenizer\.pkl: .* delete it"):
        again.tokenizer.decode([1])


def test_what_cannot_be_read_is_found_out_anew(folder: str, tmp_path: Path) -> None:
    source.find(folder)
    files = (tmp_path / "cache" / "known").glob("*.pkl")
    (file,) = (file for file in files if ".tokenizer" not in file.name)
    file.write_bytes(file.read_bytes()[:50])
    assert known.recall(folder, None) is None
    source.find(folder)
    assert known.recall(folder, None) is not None
