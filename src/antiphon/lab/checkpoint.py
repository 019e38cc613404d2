"""Training state on disk: safetensors and JSON, replaced atomically, never pickled."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file
from torch import Tensor

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

_NAME = "step-"


def save(
    folder: Path,
    step: int,
    weights: dict[str, Tensor],
    optimiser: dict[str, Tensor],
    state: dict[str, Any],
) -> None:
    """Writes a checkpoint beside the last one, then removes the last one.

    A kill at any moment leaves at least one whole checkpoint: the folder gets its final name only
    once everything is on disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"tmp-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    save_file(
        {k: v.detach().contiguous() for k, v in weights.items()}, temporary / "model.safetensors"
    )
    save_file(
        {k: v.detach().contiguous() for k, v in optimiser.items()},
        temporary / "optimiser.safetensors",
    )
    (temporary / "state.json").write_text(json.dumps(state, indent=1))
    final = folder / f"{_NAME}{step:08d}"
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    for other in folder.glob(f"{_NAME}*"):
        if other != final:
            shutil.rmtree(other, ignore_errors=True)


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint, or None."""
    return max(folder.glob(f"{_NAME}*"), default=None)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Weights, optimiser state and the JSON state of a checkpoint."""
    state = json.loads((path / "state.json").read_text())
    return load_file(path / "model.safetensors"), load_file(path / "optimiser.safetensors"), state


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes bf16 weights, config, generation config and tokenizer, ready for `from_pretrained`."""
    import torch
    from transformers import GenerationConfig, LlamaForCausalLM

    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy = copy.to(torch.bfloat16)
    copy.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    copy.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    # File by file, so a reader of the folder never finds it missing.
    for file in temporary.iterdir():
        file.chmod(0o644)
        file.replace(folder / file.name)
    temporary.rmdir()
