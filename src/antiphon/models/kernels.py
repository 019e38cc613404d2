"""Kernels for CPU linears: weights packed once for the kernel that reads them fastest.

A decoding pass is bound by reading the weights, so it pays to store them in the kernel's own
layout, and in few bytes. What was measured, and which precision to choose on which CPU, is in
docs/cpu.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from antiphon.errors import UserError
from antiphon.models import fused
from antiphon.models.int4 import BlockInt4Linear, Int4Linear
from antiphon.models.int8 import AVX2Int8Linear, Int8Linear, VNNIInt8Linear
from antiphon.models.packed_linear import PackedLinear, cast, fbgemm, in_blocks

_ROWS_HINT = 16


class PlainLinear(PackedLinear):
    """The weight as it is: for siblings that are too small for a kernel, but faster in one."""

    def __init__(self, linear: nn.Linear) -> None:
        self.dtype = linear.weight.dtype
        super().__init__(linear)
        if linear.bias is not None:
            self.bias = linear.bias.detach()

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        return weight, weight.numel() * weight.element_size()

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(cast(self.dtype, rows), self.packed, self.bias)


class Float32Linear(PackedLinear):
    """float32 through oneDNN, whose layout stays fast beyond one row."""

    # A call takes about 40 microseconds before it computes: tiny weights are faster plain.
    smallest = 2**18

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        weight = weight.to(self.compute_dtype).contiguous()
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
        if fused.ready():
            packed = torch.classes.antiphon.Weight(packed)
        return packed, weight.numel() * self.compute_dtype.itemsize

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor
        if isinstance(self.packed, torch.ScriptObject):
            out = torch.ops.antiphon.onednn(rows, self.packed, self.bias)
        else:
            out = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return out


class BFloat16Linear(Float32Linear):
    """bfloat16 through oneDNN; needs a CPU with bfloat16 (or AVX-512) instructions."""

    compute_dtype = torch.bfloat16


class BlockFloat32Linear(PackedLinear):
    """float32 through our own kernel (`native/floats.cpp`): rows are independent bit for bit."""

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        blocks = in_blocks(weight.to(self.compute_dtype), 4 // self.compute_dtype.itemsize)
        return blocks, blocks.numel() * self.compute_dtype.itemsize

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.antiphon.f32(rows, self.packed, self.bias, self.out_features)
        return out


class BlockBFloat16Linear(BlockFloat32Linear):
    """The same in bfloat16, added up in float32."""

    compute_dtype = torch.bfloat16
    kept = True

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        if weight.shape[1] % 2:
            raise ValueError(f"bfloat16 needs an even number of inputs, not {weight.shape[1]}")
        return super().pack(weight)

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.antiphon.bf16(rows, self.packed, self.bias, self.out_features)
        return out


class WidenedBFloat16Linear(BlockFloat32Linear):
    """bfloat16 for CPUs without its instructions: widened to float32 as it is loaded."""

    compute_dtype = torch.bfloat16
    kept = True

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        _, lanes = fused.blocks()
        blocks = in_blocks(weight.to(self.compute_dtype), 1)
        # [N / wide, K, vectors / 2, 2, lanes, 1]: two vectors of outputs share 32-bit lanes.
        pairs = blocks.unflatten(2, (-1, 2, lanes)).transpose(3, 4).contiguous()
        return pairs, pairs.numel() * self.compute_dtype.itemsize

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.antiphon.bf16_widened(
            rows, self.packed, self.bias, self.out_features
        )
        return out


class Float16Linear(PackedLinear):
    """float16 weights, float32 activations and sums, through FBGEMM; any AVX2 CPU."""

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        with fbgemm():
            packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), None)
        return packed, weight.numel() * 2

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self.packed)
        return out if self.bias is None else out.add_(self.bias)


KERNELS: dict[str, type[PackedLinear]] = {
    "float32": Float32Linear,
    "bfloat16": BFloat16Linear,
    "float16": Float16Linear,
    "int8": Int8Linear,
    "int4": Int4Linear,
}
"""Precision name -> packed linear."""


FASTER: dict[str, dict[str, type[PackedLinear]]] = {
    "float32": {"f32": BlockFloat32Linear},
    "bfloat16": {"bf16": BlockBFloat16Linear, "bf16_widened": WidenedBFloat16Linear},
    "int8": {"int8": VNNIInt8Linear, "int8_by_16": AVX2Int8Linear},
    "int4": {"int4": BlockInt4Linear},
}
"""What takes their place where `models.fused` has an operation, by its name."""


def kernel(precision: str) -> type[PackedLinear]:
    """The packed linear of a key of `KERNELS` that is the fastest on this CPU.

    Raises:
        UserError: for another precision.
    """
    if precision not in KERNELS:
        raise UserError(f"precision is {precision!r}: choose {', '.join(KERNELS)}")
    faster = FASTER.get(precision, {})
    return next((faster[name] for name in faster if fused.has(name)), KERNELS[precision])


def is_own(precision: str) -> bool:
    """Whether our own kernel is that one: then its rows are independent bit for bit."""
    return any(map(fused.has, FASTER.get(precision, {})))
