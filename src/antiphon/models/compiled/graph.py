"""The tree forward as a pure function: transformers' modeling code with our attention.

Everything a pass needs comes in as plain inputs (`layout.Inputs`, then keys and values of every
layer), so one graph, traced once, serves any tree, any batch and any method.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F

from antiphon.models.compiled.layers import WATCHED, Layer, windows_of
from antiphon.models.hf import cache_argument, head_size, key_heads

NAME = "antiphon_graph"


@dataclass(slots=True)
class Tracing:
    """The cache object that modeling code sees while it is traced, and what attention needs.

    Attributes:
        own: slots of the new tokens, where the graph writes to its cache; else None.
    """

    past: tuple[torch.Tensor, ...]
    slots: torch.Tensor
    source: torch.Tensor
    real: torch.Tensor
    masks: dict[int | None, torch.Tensor]
    new: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    queries: dict[int, torch.Tensor] = field(default_factory=dict)
    layers: dict[int, Layer] = field(default_factory=dict)
    grown: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    sights: dict[int | None, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    is_compileable: bool = False
    fused: bool = False
    single: bool = False
    own: torch.Tensor | None = None

    def sight(self, window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """What `torch.ops.antiphon.sights` says of a window's mask; found once for all layers."""
        if window not in self.sights:
            found = torch.ops.antiphon.sights(self.masks[window], self.slots, self.real)
            self.sights[window] = found
        return self.sights[window]

    def hidden(self, mask: torch.Tensor, groups: int, dtype: torch.dtype) -> torch.Tensor:
        """A mask ``[1, B, G Q, S]`` for all query heads of a key head; made once for all layers."""
        key = (id(mask), groups)
        if key not in self.grown:
            by_head = mask[None, :, None].to(dtype).repeat(1, 1, groups, 1, 1)
            self.grown[key] = by_head.flatten(2, 3)
        return self.grown[key]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.new[layer_idx] = keys[0], values[0]
        return keys, values

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, *_: Any, **__: Any) -> tuple[int, int]:
        return query_length, 0


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    tracing: Tracing | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of the new tokens ``[1, Hq, T, D]`` over cached slots and over each other.

    A graph that writes leaves it to one operation. PyTorch's fused attention needs the keys of both
    joined. Otherwise scores over the two are made apart and joined, which copies less.
    """
    assert tracing is not None
    index: int = module.layer_idx  # type: ignore[assignment]
    tracing.layers[index] = Layer(scaling, sliding_window, softcap)
    tracing.queries[index] = query[0]
    mask = tracing.masks[sliding_window]
    old_keys, old_values = tracing.past[2 * index], tracing.past[2 * index + 1]
    # Sizes of the model are constants of the graph, those of the pass are not.
    H, G, D = len(old_keys), query.shape[1] // len(old_keys), query.shape[3]
    H, G, D = int(H), int(G), int(D)
    B, Q = (1, mask.shape[1]) if tracing.single else (mask.shape[0], mask.shape[1])
    U = mask.shape[2] - Q
    scale = D**-0.5 if scaling is None else scaling
    if tracing.own is not None:
        seen, bounds = tracing.sight(sliding_window)
        given = query, key, value, old_keys, old_values, tracing.own, seen, bounds
        return torch.ops.antiphon.attend(*given, scale, softcap or 0.0), None

    def padded(new: torch.Tensor) -> torch.Tensor:  # [H, T, D] -> [H, B, Q, D]
        if tracing.single:
            return new[:, None]
        return new.index_select(1, tracing.source).reshape(H, B, Q, D)

    def gathered(old: torch.Tensor) -> torch.Tensor:  # [H, N, D] -> [H, B, U, D]
        return old.index_select(1, tracing.slots).reshape(H, B, U, D)

    # Query heads that share a key head become rows of one product: [H, B, G Q, D].
    if tracing.single:
        rows = query.reshape(H, 1, G * Q, D)
    else:
        rows = (
            query[0]
            .reshape(H, G, -1, D)
            .index_select(2, tracing.source)
            .reshape(H, G, B, Q, D)
            .permute(0, 2, 1, 3, 4)
            .reshape(H, B, G * Q, D)
        )
    if tracing.fused and softcap is None:
        keys = torch.cat([gathered(old_keys), padded(key[0])], 2)
        values = torch.cat([gathered(old_values), padded(value[0])], 2)
        hidden = tracing.hidden(mask, G, query.dtype)
        out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=hidden, scale=scale)
    else:
        parts = [rows @ each.transpose(-1, -2) for each in (gathered(old_keys), padded(key[0]))]
        scores = torch.cat(parts, -1) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.reshape(H, B, G, Q, U + Q) + mask[None, :, None].to(scores.dtype)
        weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
        weights = weights.reshape(H, B, G * Q, U + Q)
        out = weights[..., :U] @ gathered(old_values) + weights[..., U:] @ padded(value[0])
    if tracing.single:
        return out.reshape(1, H * G, Q, D).transpose(1, 2), None
    out = (
        out.reshape(H, B, G, Q, D)
        .permute(0, 2, 1, 3, 4)
        .reshape(H * G, B * Q, D)
        .index_select(1, tracing.real)
    )
    return out.permute(1, 0, 2)[None], None


def register() -> None:
    """Make `attention` known to modeling code, which takes seconds to import."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)


class TreeForward(torch.nn.Module):
    """The function that is traced.

    ``(tokens, positions, rows, slots, source, real, masks..., past...)`` to outputs: logits
    ``[R, V]``, hidden states before the head ``[R, W]``, new keys and values ``[2 L, H, T, D]``
    unless it `writes`, and the queries of the last layers ``[WATCHED, Hq, T, D]``.

    Attributes:
        fused: use PyTorch's fused attention, where the model's allows it.
        writes: put the new keys and values in the cache `past` instead of giving them out; `slots`
            then are ``[B S]``, those of the new tokens included, and ``own`` ``[T]``, the new
            tokens' slots, stands in the place of `source`.
        single: for one tree at a time, which needs no padding.
    """

    def __init__(self, module: Any, cache_argument: str, fused: bool, writes: bool) -> None:
        super().__init__()
        self.fused = fused
        self.writes = writes
        self.single = False
        self.module = module
        self.windows: tuple[int | None, ...] = ()
        self.cache_argument = cache_argument
        self.layers: dict[int, Layer] = {}

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tokens, positions, rows, slots, source, real = inputs[:6]
        count = max(len(self.windows), 1)
        masks: dict[int | None, torch.Tensor] = defaultdict(lambda: inputs[6])
        masks |= zip(self.windows, inputs[6 : 6 + count], strict=False)
        past = inputs[6 + count :]
        tracing = Tracing(past, slots, source, real, masks)
        tracing.fused, tracing.single = self.fused, self.single
        tracing.own = source if self.writes else None
        hidden: list[torch.Tensor] = []
        head = self.module.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda _, given: hidden.append(given[0]))
        out = self.module(
            input_ids=tokens,
            position_ids=positions,
            logits_to_keep=rows,
            use_cache=True,
            tracing=tracing,
            **{self.cache_argument: tracing},
        )
        hook.remove()
        self.layers = tracing.layers
        order = sorted(tracing.new)
        queries = torch.stack([tracing.queries[layer] for layer in order[-WATCHED:]])
        if self.writes:
            return out.logits[0], hidden[0][0], queries
        new = torch.stack([each for layer in order for each in tracing.new[layer]])
        return out.logits[0], hidden[0][0], new, queries


@dataclass(frozen=True, slots=True)
class Traceable:
    """A model made ready for tracing: the module to trace and inputs to trace it with.

    Attributes:
        layers: what each layer's attention does, the lowest first.
        key_heads, head_dim: of the cache.
    """

    forward: TreeForward
    example: tuple[torch.Tensor, ...]
    layers: tuple[Layer, ...]
    key_heads: int
    head_dim: int


def traceable(module: Any, fused: bool, writes: bool = False) -> Traceable:
    """Route a module's attention through ours and find out what its layers do.

    Args:
        module: a `PreTrainedModel` in eval mode.
        fused, writes: see `TreeForward`.
    """
    config = module.config.get_text_config()
    register()
    module.set_attn_implementation(NAME)
    heads, size = key_heads(config), head_size(config)
    T, U, N = 3, 7, 16
    with module.device:
        small = small_inputs(torch.ones((1, T), dtype=torch.int64), U, writes)
        mask = torch.zeros(1, T, U + T)
        dtype = module.get_input_embeddings().weight.dtype
        past = [
            torch.zeros(heads, N, size, dtype=dtype) for _ in range(2 * config.num_hidden_layers)
        ]
    forward = TreeForward(module, cache_argument(module), fused, writes)
    with torch.no_grad():
        forward(*small, mask, *past)  # Which windows there are shows when layers ask for them.
    forward.windows = windows_of(forward.layers.values())
    layers = tuple(forward.layers[index] for index in sorted(forward.layers))
    example = (*small, *[mask for _ in forward.windows], *past)
    return Traceable(forward, example, layers, heads, size)


def small_inputs(tokens: torch.Tensor, past: int, writes: bool) -> tuple[torch.Tensor, ...]:
    """What comes before the masks: tokens ``[1, T]`` of one tree that has `past` slots."""
    new = torch.arange(tokens.shape[1])
    own = past + new
    slots, source = (torch.arange(past + len(new)), own) if writes else (torch.arange(past), new)
    return tokens, own[None], new, slots, source, new
