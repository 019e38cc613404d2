"""Any Hugging Face causal language model, driven through its own modeling code.

The model's forward is transformers', untouched; only its cache and its attention are ours
(`attention.py`), so that one pass can extend many trees and score chosen rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from antiphon.models import attention
from antiphon.models.base import Extension, Scores
from antiphon.models.pool import Pools, Storage
from antiphon.models.source import eos_tokens
from antiphon.models.tree import KVTree
from antiphon.models.watch import Segment, Watch


class HFModel:
    """A `LanguageModel` around a transformers causal LM.

    Args:
        module: a `PreTrainedModel` with a language-model head, in eval mode.
        name: what messages call it, usually the path it came from.
        vocab_size: real tokens; by default the width of the embedding table.
        precision: of its linears, for profiles and messages; by default the dtype.

    Raises:
        UserError: from `checks.supported`, for architectures trees cannot drive.
    """

    def __init__(
        self,
        module: Any,
        name: str,
        vocab_size: int | None = None,
        precision: str | None = None,
    ) -> None:
        self.module = module
        self.config: Any = module.config.get_text_config()
        self.name = name
        self.vocab_size = int(vocab_size or self.config.vocab_size)
        self.context_length = int(self.config.max_position_embeddings)
        self.device: torch.device = self.module.device
        self.dtype: torch.dtype = self.module.get_input_embeddings().weight.dtype
        self.precision = precision or str(self.dtype).removeprefix("torch.")
        self._hidden: torch.Tensor | None = None
        self._pools = Pools(self.layers, self.kv_heads, self.head_dim, self.dtype, self.device)
        attention.register()
        self.module.set_attn_implementation(attention.NAME)
        self.module.get_output_embeddings().register_forward_pre_hook(self._remember_hidden)
        self._cache_argument = cache_argument(module)
        self.eos_token_ids = eos_tokens(module)

    def twin(self) -> HFModel:
        return HFModel(self.module, self.name, self.vocab_size, self.precision)

    @property
    def layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def kv_heads(self) -> int:
        return key_heads(self.config)

    @property
    def head_dim(self) -> int:
        return head_size(self.config)

    def new_tree(self, capacity: int) -> KVTree:
        return KVTree(Storage(self._pools, capacity))

    @torch.no_grad()
    def forward(self, asks: Sequence[Extension]) -> list[Scores]:
        segments: list[Segment] = []
        nodes: list[range] = []
        positions: list[int] = []
        rows: list[int] = []
        watches: dict[int, Watch] = {}
        start = 0
        for ask in asks:
            nodes.append(ask.grow())
            count = len(ask.tokens)
            positions += ask.tree.positions(count)
            rows += [start + row for row in ask.wanted]
            segments.append(Segment(ask.tree, start, count))
            if ask.attention is not None:
                first = self.layers - ask.attention.layers
                watches[len(segments) - 1] = Watch(segments[-1], ask.attention, first)
            start += count
        tokens = [token for ask in asks for token in ask.tokens]
        cache = attention.TreeCache(segments, self.device, tuple(watches.values()))
        out = self.module(
            input_ids=torch.tensor([tokens], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            logits_to_keep=torch.tensor(rows, device=self.device),
            use_cache=True,
            tree_cache=cache,
            **{self._cache_argument: cache},
        )
        logits = out.logits[0, :, : self.vocab_size].float()
        hidden, self._hidden = self._hidden, None
        sizes = [len(ask.wanted) for ask in asks]
        return [
            Scores(
                logits=part,
                nodes=new,
                hidden=state[0].clone() if ask.hidden and state is not None else None,
                attention=torch.stack(watches[i].weights) if i in watches else None,
            )
            for i, (ask, new, part, state) in enumerate(
                zip(asks, nodes, logits.split(sizes), _split_hidden(hidden, sizes), strict=True)
            )
        ]

    def _remember_hidden(self, _module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._hidden = inputs[0]


def _split_hidden(hidden: torch.Tensor | None, sizes: list[int]) -> Sequence[torch.Tensor | None]:
    if hidden is None:
        return [None] * len(sizes)
    return list(torch.split(hidden, sizes, dim=1))


def key_heads(config: Any) -> int:
    """Key/value heads of a transformers text configuration."""
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def head_size(config: Any) -> int:
    """Elements of one head's keys."""
    size = getattr(config, "head_dim", None)
    return int(size or config.hidden_size // config.num_attention_heads)


def cache_argument(module: Any) -> str:
    """What the module's forward calls its cache.

    transformers 5.20 renamed the argument; the old name only warns until 5.40.
    """
    names = inspect.signature(type(module).forward).parameters
    return "cache" if "cache" in names else "past_key_values"
