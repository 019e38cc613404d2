"""4-bit weights in groups of 32 inputs: our own kernel with VNNI or AVX2, else PyTorch's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from antiphon.models import fused
from antiphon.models.int8 import DEEP
from antiphon.models.packed_linear import TINY, PackedLinear

GROUP = 32


class BlockInt4Linear(PackedLinear):
    """int4 weights in groups of 32 inputs; activations int8, a scale per row (`native/int4.cpp`).

    Rows of prompts cost no more than in int8, and a block of three no more than one.
    """

    kept = True

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        codes, scales, lows = _grouped(weight)
        wide, _ = fused.blocks()
        extra = -codes.shape[0] % wide
        codes = nn.functional.pad(codes.to(torch.uint8), (0, 0, 0, extra))
        # [N / wide, wide, K / 8, 2, 4]: two steps of four inputs share bytes.
        steps = codes.unflatten(1, (-1, 2, DEEP)).unflatten(0, (-1, wide)).permute(0, 2, 3, 1, 4)
        both = (steps[:, :, 0] | steps[:, :, 1] << 4).contiguous()
        tables = [
            nn.functional.pad(each.bfloat16(), (0, 0, 0, extra))
            .unflatten(0, (-1, wide))
            .transpose(1, 2)
            .contiguous()
            for each in (scales, lows)
        ]
        return (both, *tables), both.numel() + 4 * tables[0].numel()

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.antiphon.int4(
            rows, *self.packed, self.bias, self.out_features, TINY
        )
        return out


class Int4Linear(PackedLinear):
    """int4 weights in groups of 32 along the input, bfloat16 activations."""

    compute_dtype = torch.bfloat16
    kept = True

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        if len(weight) % 16:
            raise ValueError(f"int4 needs outputs in 16s, not {len(weight)}")
        codes, scales, low = _grouped(weight)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), 1)
        # The kernel computes (code - 8) * scale + zero.
        table = torch.stack([scales, low + 8 * scales], -1).transpose(0, 1).contiguous()
        return (packed, table.bfloat16()), weight.numel() // 2 + 4 * scales.numel()

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        weight, table = self.packed
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows.contiguous(), weight, GROUP, table
        )
        return out if self.bias is None else out.add_(self.bias)


def _grouped(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes ``[out, in]`` from 0 to 15, scales and lows ``[out, in / 32]``: low + code * scale."""
    if weight.shape[1] % GROUP:
        raise ValueError(f"int4 needs inputs in {GROUP}s, not {weight.shape[1]}")
    groups = weight.float().unflatten(1, (-1, GROUP))
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low) / 15).clamp_min(TINY)
    codes = ((groups - low[..., None]) / scales[..., None]).round().clamp(0, 15)
    return codes.flatten(1), scales, low
