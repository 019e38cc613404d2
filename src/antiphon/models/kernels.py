"""Kernels for CPU linears: weights packed once for the kernel that reads them fastest.

A decoding pass is bound by reading the weights, so it pays to store them in the kernel's own
layout, and in few bytes. What was measured, and which precision to choose on which CPU, is in
docs/cpu.md.

Every packed linear keeps its rows independent: what a row gives does not depend on the other
rows of the batch, since a token's logits must not change with the length of the block or the
requests beside it. int8 and int4 are independent bit for bit; the float kernels choose an order
of summation by the number of rows, which moves the last bits.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import nn

from antiphon.models import fused

logger = logging.getLogger(__name__)

_ROWS_HINT = 16
_INT4_GROUP = 32
_TINY = 1e-12


def _as(dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """`x.to(dtype)`, of which a traced graph keeps nothing where there is nothing to do."""
    return x if x.dtype == dtype else x.to(dtype)


class PackedLinear(nn.Module):
    """A linear whose weight is in a kernel's private layout; inference only.

    Input is ``[..., in_features]`` in any float dtype, output ``[..., out_features]`` in the
    same. The packed weight is neither a parameter nor a buffer: `.to()` and `state_dict()` do
    not see it, `weight_bytes` does.

    Attributes:
        compute_dtype: what the kernel takes and gives.
        smallest: weights with fewer elements are faster as plain linears.
        packed_bytes: what the weight takes, scales included, bias excluded.
    """

    compute_dtype: ClassVar[torch.dtype] = torch.float32
    smallest: ClassVar[int] = 0

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias: torch.Tensor | None = None
        if linear.bias is not None:
            self.bias = linear.bias.detach().to(self.compute_dtype, copy=True)
        self.packed, self.packed_bytes = self.pack(linear.weight.detach())

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        """The kernel's form of a weight ``[out, in]``, and the bytes it takes."""
        raise NotImplementedError

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """``[R, in]`` to ``[R, out]`` in `compute_dtype`, bias included."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = _as(self.compute_dtype, x.reshape(-1, self.in_features))
        if rows.shape[0] == 0:
            return x.new_empty((*x.shape[:-1], self.out_features))
        return _as(x.dtype, self.multiply(rows)).view(*x.shape[:-1], self.out_features)


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
        return nn.functional.linear(_as(self.dtype, rows), self.packed, self.bias)


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


class Float16Linear(PackedLinear):
    """float16 weights, float32 activations and sums, through FBGEMM; any AVX2 CPU."""

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        with _fbgemm():
            packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), None)
        return packed, weight.numel() * 2

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self.packed)
        return out if self.bias is None else out.add_(self.bias)


class Int8Linear(PackedLinear):
    """int8 weights, one scale per output; activations int8, one scale per row.

    FBGEMM's own dynamic linear scales all rows by one number, so a row would depend on its
    neighbours: here each row is divided by its largest magnitude first. Without VNNI the kernel
    adds the products of inputs 2i and 2i + 1 in 16 bits. Activations reach 255, so two weights
    of one sign may add up to 128: the scale of an output is set by its largest such pair, which
    costs less precision than 7-bit weights would, and none that could be measured.
    """

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        weight = weight.float()
        pairs = nn.functional.pad(weight, (0, weight.shape[1] % 2)).unflatten(1, (-1, 2))
        largest = torch.maximum(pairs.clamp_min(0).sum(2), -pairs.clamp_max(0).sum(2)).amax(1)
        # Rounding may add half a step to each of the two: 127 here is 128 in the kernel.
        scales = (largest / 127).clamp_min(_TINY)
        zeros = torch.zeros(len(scales), dtype=torch.long)
        with _fbgemm():
            quantised = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
            packed = torch.ops.quantized.linear_prepack(quantised, None)
        return packed, weight.numel() + 4 * len(scales)

    def __getstate__(self) -> dict[str, Any]:
        """FBGEMM's own form can be read back by one thread alone, and slowly: plain integers."""
        with _fbgemm():
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
        with _fbgemm():
            quantised = torch._make_per_channel_quantized_tensor(values, scales, zeros, 0)
            self.packed = torch.ops.quantized.linear_prepack(quantised, None)

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        if fused.ready():
            small, peak = torch.ops.antiphon.shrink(rows, _TINY)
        else:
            peak = rows.abs().amax(1, keepdim=True).clamp_min_(_TINY)
            small = rows / peak
        out: torch.Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            small, 1 / 127, 128, self.packed
        )
        if fused.ready():
            stretched: torch.Tensor = torch.ops.antiphon.stretch(out, peak, self.bias)
            return stretched
        out = out.mul_(peak)
        return out if self.bias is None else out.add_(self.bias)


class Int4Linear(PackedLinear):
    """int4 weights in groups of 32 along the input, bfloat16 activations."""

    compute_dtype = torch.bfloat16

    def pack(self, weight: torch.Tensor) -> tuple[Any, int]:
        out, size = weight.shape
        if size % _INT4_GROUP or out % 16:
            raise ValueError(f"int4 needs inputs in 32s and outputs in 16s, not {size} to {out}")
        groups = weight.float().view(out, size // _INT4_GROUP, _INT4_GROUP)
        low, high = groups.amin(-1), groups.amax(-1)
        scales = ((high - low) / 15).clamp_min(_TINY)
        codes = ((groups - low[..., None]) / scales[..., None]).round().clamp(0, 15)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            codes.to(torch.int32).view(out, size), 1
        )
        # The kernel computes (code - 8) * scale + zero.
        table = torch.stack([scales, low + 8 * scales], -1).transpose(0, 1).contiguous()
        return (packed, table.bfloat16()), weight.numel() // 2 + 4 * scales.numel()

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        weight, table = self.packed
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows.contiguous(), weight, _INT4_GROUP, table
        )
        return out if self.bias is None else out.add_(self.bias)


KERNELS: dict[str, type[PackedLinear]] = {
    "float32": Float32Linear,
    "bfloat16": BFloat16Linear,
    "float16": Float16Linear,
    "int8": Int8Linear,
    "int4": Int4Linear,
}
"""Precision name -> packed linear."""


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
    with _fbgemm(), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(Int8Linear.repack, sorted(waiting, key=lambda one: -one.packed_bytes)))


@contextmanager
def _fbgemm() -> Iterator[None]:
    """Pack for FBGEMM whatever engine the process has chosen."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with warnings.catch_warnings():
            # Quantised tensors are to leave PyTorch; FBGEMM's prepack still takes nothing else.
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        torch.backends.quantized.engine = before
