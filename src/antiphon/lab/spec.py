"""The shapes and training plans of the lab's models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.lab.problems import LARGEST

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama's size; `layers` may grow during training (`Plan.grow`)."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How one model is trained.

    Progress runs from 0 to 1 and is the larger share used of the two budgets, so that the learning
    rate always reaches zero whichever budget ends first.
    """

    shape: Shape
    tokens: int
    seconds: float = math.inf
    batch_tokens: int = 2560
    muon_rate: float = 0.02
    adam_rate: float = 4e-3
    warmup: float = 0.02
    decay: float = 0.3
    drills: tuple[float, float] = (0.5, 0.1)
    easy: tuple[float, int] = (0.2, 100)
    grow: tuple[tuple[float, int], ...] = ()
    seed: int = 0

    def rate(self, progress: float) -> float:
        """The learning rate's share of its peak: warm-up, constant, linear decay."""
        rise = (progress + 1e-3) / self.warmup if self.warmup > 0 else 1.0
        fall = (1 - progress) / self.decay if self.decay > 0 else 1.0
        return max(0.0, min(1.0, rise, fall))

    def drill_share(self, progress: float) -> float:
        """Share of drills among the documents: falls linearly from first to last."""
        first, last = self.drills
        return first + (last - first) * progress

    def largest(self, progress: float) -> int:
        """The ceiling of the problems' numbers: lower in the first part of the training."""
        until, ceiling = self.easy
        return ceiling if progress < until else LARGEST

    def layers_at(self, progress: float) -> int:
        """The depth the model should have at this progress."""
        return max([self.shape.layers, *(n for start, n in self.grow if progress >= start)])


DRAFT = Plan(Shape(2, 96, 256, 3, 1), tokens=3_900_000, seed=2)
TARGET = Plan(Shape(4, 128, 384, 4, 2), tokens=200_000_000, seconds=2300, grow=((0.8, 18),), seed=1)
PLANS = {"draft": DRAFT, "target": TARGET}


def config_of(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """The transformers config of a shape."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=-(-len(tokenizer) // 32) * 32,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.02,
    )


def new_model(shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A freshly initialised float32 model; residual outputs start small."""
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(config_of(shape, tokenizer))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.2)
            layer.mlp.down_proj.weight.mul_(0.2)
    return model
