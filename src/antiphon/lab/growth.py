"""Deepens a trained model without changing what it computes.

The first part of a training runs shallow, hence cheap; then identity layers (whose two output
projections are zero, so they add nothing to the residual stream) are put between the trained ones
and learn from there.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from antiphon.lab.spec import Shape, new_model

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def positions(old: int, new: int) -> list[int]:
    """Where each of `old` layers goes among `new`, spread evenly, the last one last."""
    return [((i + 1) * new) // old - 1 for i in range(old)]


def renamed(name: str, places: list[int]) -> str:
    """A parameter's name after its layer has moved."""
    return _LAYER.sub(lambda m: f"model.layers.{places[int(m[1])]}.", name)


def grow(
    model: LlamaForCausalLM,
    shape: Shape,
    tokenizer: PreTrainedTokenizerFast,
    layers: int,
    seed: int,
) -> tuple[LlamaForCausalLM, list[int]]:
    """A model of `layers` layers that computes what `model` does, and where the old layers went."""
    old = model.config.num_hidden_layers
    places = positions(old, layers)
    deeper = new_model(replace(shape, layers=layers), tokenizer, seed)
    with torch.no_grad():
        for layer in deeper.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        target = dict(deeper.named_parameters())
        for name, parameter in model.named_parameters():
            target[renamed(name, places)].copy_(parameter)
    return deeper, places
