"""Models with random weights: the speed of a shape, where its weights are not at hand.

``random:llama-3.1-8b`` has that model's layers and vocabulary, and says nothing that means
anything. What a pass costs does not depend on the weights; what is accepted does, so use it with
``speculative:rule=forced/rate=0.8`` or with methods that accept everything.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from antiphon.errors import UserError

PREFIX = "random:"
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-70b": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    "llama-3.1-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "llama-3.2-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
"""Shapes as their makers published them; ``tiny`` is for trying things out."""
VOCAB = 128256


def config(name: str) -> Any:
    """The configuration of ``random:NAME``; raises UserError for a shape that is not known."""
    shape = SHAPES.get(name.removeprefix(PREFIX))
    if shape is None:
        known = ", ".join(PREFIX + each for each in SHAPES)
        raise UserError(f"{name}: no such shape: choose {known}")
    from transformers import LlamaConfig

    context = {"max_position_embeddings": 131072, "bos_token_id": None, "eos_token_id": None}
    return LlamaConfig(**({"vocab_size": VOCAB} | context | shape))


def tokenizer(size: int) -> Any:
    """A tokenizer of `size` words that are numbers: any text of such words is a prompt."""
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({str(i): i for i in range(size)}, unk_token="0"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="0")


def build(shape: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """The module, with random weights made where they are to be."""
    from transformers import AutoModelForCausalLM

    with device:
        return AutoModelForCausalLM.from_config(shape, dtype=dtype)
