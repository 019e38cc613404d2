"""Weights as peers read them: a Hugging Face folder, in bfloat16 where one has to be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import GenerationConfig

from antiphon.cache import cache_home, whole_folder
from antiphon.models import source
from antiphon.models.source import Source


def dense_folder(name: str, say: Callable[[str], None] = lambda _: None) -> Path:
    """A folder with this model's plain weights: its own, or a copy that is written once.

    Raises UserError for a model that cannot be found or read.
    """
    found = source.find(name)
    plain = getattr(found.config, "quantization_config", None) is None
    if plain and found.gguf_file is None and Path(found.location).is_dir():
        return Path(found.location).resolve()
    folder = cache_home() / "dense" / found.mark()
    if not (folder / "config.json").is_file():
        say(f"writing a bfloat16 copy of {name} to {folder}, once")
        _write(found, folder)
    return folder


def _write(found: Source, folder: Path) -> None:
    module = source.load(found, torch.bfloat16, torch.device("cpu"))
    # What a GGUF file was packed as, and how its authors sample, are nothing to a peer; settings
    # that contradict one another would even refuse to be saved.
    if hasattr(module.config, "quantization_config"):
        del module.config.quantization_config
    own = module.generation_config
    module.generation_config = GenerationConfig(
        bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
    )
    with whole_folder(folder) as partial:
        module.save_pretrained(partial)
        found.tokenizer.save_pretrained(partial)
