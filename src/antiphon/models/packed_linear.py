"""What every packed linear is: a weight in some kernel's layout, and rows that stay independent.

A row's result does not depend on the other rows of the batch, since a token's logits must not
change with the length of the block or the requests beside it. int8, int4 and our own float kernels
are independent bit for bit; the others choose an order of summation by the number of rows, which
moves the last bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import nn

from antiphon.models import fused

TINY = 1e-12


def cast(dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
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
        kept: its packed form can be stored, and is worth it (`models.packed`).
        packed_bytes: what the weight takes, scales included, bias excluded.
    """

    compute_dtype: ClassVar[torch.dtype] = torch.float32
    smallest: ClassVar[int] = 0
    kept: ClassVar[bool] = False

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
        rows = cast(self.compute_dtype, x.reshape(-1, self.in_features))
        if rows.shape[0] == 0:
            return x.new_empty((*x.shape[:-1], self.out_features))
        return cast(x.dtype, self.multiply(rows)).view(*x.shape[:-1], self.out_features)


def in_blocks(weight: torch.Tensor, deep: int) -> torch.Tensor:
    """``[out, in]`` to ``[out / wide, in / deep, wide, deep]``, zeros where there is no more of it.

    wide: the outputs that our own kernels want together (`fused.blocks`).
    """
    wide, _ = fused.blocks()
    outputs, inputs = weight.shape
    padded = nn.functional.pad(weight, (0, -inputs % deep, 0, -outputs % wide))
    blocks: torch.Tensor = padded.unflatten(0, (-1, wide)).unflatten(2, (-1, deep))
    return blocks.transpose(1, 2).contiguous()


@contextmanager
def fbgemm() -> Iterator[None]:
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
