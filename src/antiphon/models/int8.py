"""8-bit weights: our own kernels, by the CPU's instructions, or FBGEMM's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from antiphon.models import fused
from antiphon.models.packed_linear import TINY, PackedLinear, fbgemm, in_blocks

DEEP = 4
"""Inputs whose products an instruction of VNNI adds up."""
MOST = 2**15 - 1
"""The largest activation in 16 bits."""


class VNNIInt8Linear(PackedLinear):
    """int8 weights, one scale per output; activations int8, one scale per row (`native/int8.cpp`).

    A block of six rows costs little more than one, and reading it from disk is mapping a file.
    """

    kept = True

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        values, scales = _in_bytes(weight)
        offsets = -128 * values.sum(1, dtype=torch.int32)  # Activations are shifted by 128.
        blocks = in_blocks(values, DEEP)
        return (blocks, _padded(offsets), _padded(scales)), blocks.numel() + 8 * len(scales)

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.antiphon.int8(
            rows, *self.packed, self.bias, self.out_features, TINY
        )
        return out


class AVX2Int8Linear(PackedLinear):
    """int8 weights, one scale per output; activations of up to 16 bits, one scale per row.

    AVX2 multiplies 16-bit numbers as fast as 8-bit ones (`native/int8.cpp`). Sums have 32 bits, so
    activations get the most steps with which no output can overflow: from 7,000 on in real models.
    """

    kept = True

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        values, scales = _in_bytes(weight)
        largest = int(values.abs().sum(1, dtype=torch.int64).amax())
        levels = min(MOST, (2**31 - 1) // max(largest, 1))
        blocks = in_blocks(values, 2)
        return (blocks, _padded(scales), levels), blocks.numel() + 4 * len(scales)

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.antiphon.int8_by_16(
            rows, *self.packed, self.bias, self.out_features, TINY
        )
        return out


def _in_bytes(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight ``[out, in]`` in int8, and the scales of its outputs."""
    weight = weight.float()
    scales = (weight.abs().amax(1) / 127).clamp_min(TINY)
    return (weight / scales[:, None]).round().to(torch.int8), scales


def _padded(each: torch.Tensor) -> torch.Tensor:
    """A number for each output of whole blocks."""
    return nn.functional.pad(each, (0, -len(each) % fused.blocks()[0]))


class Int8Linear(PackedLinear):
    """The same through FBGEMM, on any CPU with AVX2.

    FBGEMM's own dynamic linear scales all rows by one number, so a row would depend on its
    neighbours: here each row is divided by its largest magnitude first. Without VNNI the kernel
    adds the products of inputs 2i and 2i + 1 in 16 bits. Activations reach 255, so two weights
    of one sign may add up to 128: the scale of an output is set by its largest such pair, which
    costs less precision than 7-bit weights would, and none that could be measured.
    """

    kept = True

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        weight = weight.float()
        pairs = nn.functional.pad(weight, (0, weight.shape[1] % 2)).unflatten(1, (-1, 2))
        largest = torch.maximum(pairs.clamp_min(0).sum(2), -pairs.clamp_max(0).sum(2)).amax(1)
        # Rounding may add half a step to each of the two: 127 here is 128 in the kernel.
        scales = (largest / 127).clamp_min(TINY)
        zeros = torch.zeros(len(scales), dtype=torch.long)
        with fbgemm():
            quantised = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
            packed = torch.ops.quantized.linear_prepack(quantised, None)
        return packed, weight.numel() + 4 * len(scales)

    def __getstate__(self) -> dict[str, Any]:
        """FBGEMM's own form can be read back by one thread alone, and slowly: plain integers."""
        with fbgemm():
            quantised, _ = torch.ops.quantized.linear_unpack(self.packed)
            plain = quantised.int_repr(), quantised.q_per_channel_scales()
        return self.__dict__ | {"packed": plain}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if _unread is None:
            self.repack()
        else:
            _unread.append(self)

    def repack(self) -> None:
        """Bring what `__getstate__` gave into the kernel's form again."""
        values, scales = self.packed
        zeros = torch.zeros(len(scales), dtype=torch.long)
        with fbgemm():
            quantised = torch._make_per_channel_quantized_tensor(values, scales, zeros, 0)
            self.packed = torch.ops.quantized.linear_prepack(quantised, None)

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        if fused.ready():
            small, peak = torch.ops.antiphon.shrink(rows, TINY)
        else:
            peak = rows.abs().amax(1, keepdim=True).clamp_min_(TINY)
            small = rows / peak
        out: torch.Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            small, 1 / 127, 128, self.packed
        )
        if fused.ready():
            stretched: torch.Tensor = torch.ops.antiphon.stretch(out, peak, self.bias)
            return stretched
        out = out.mul_(peak)
        return out if self.bias is None else out.add_(self.bias)


_unread: list[Int8Linear] | None = None


@contextmanager
def read_together() -> Iterator[None]:
    """Linears unpickled inside are packed when it ends, on as many threads as PyTorch has."""
    global _unread
    waiting: list[Int8Linear] = []
    _unread = waiting
    try:
        yield
    finally:
        _unread = None
    # Packing lets go of Python's lock; the setting of FBGEMM is the process's, so it is made here.
    with fbgemm(), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(Int8Linear.repack, sorted(waiting, key=lambda one: -one.packed_bytes)))
