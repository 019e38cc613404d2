"""Linears for CPU decoding: weights packed once for the kernel that reads them fastest.

A decoding pass is bound by reading the weights, so it pays to store them in the kernel's own
layout, and in few bytes. `prepare_linears` replaces every `nn.Linear` of a loaded model. What
was measured, and which precision to choose on which CPU, is in docs/cpu.md.

Every packed linear keeps its rows independent: what a row gives does not depend on the other
rows of the batch. The decoders rely on it, since a token's logits must not change with the
length of the block or the requests beside it. int8 is bit for bit independent (its sums are
integers), and int4 too (one row at a time in the kernel); the float kernels choose an order of
summation by the number of rows, which moves the last bits.
"""

from __future__ import annotations

import logging
from typing import ClassVar

import torch
from torch import nn

logger = logging.getLogger(__name__)

# Rows the oneDNN layout is tuned for: a verification pass. One row costs the same in it.
_ROWS_HINT = 16
_INT4_GROUP = 32


class PackedLinear(nn.Module):
    """A linear whose weight is in a kernel's private layout; inference only.

    Input is ``[..., in_features]`` in any float dtype, output ``[..., out_features]`` in the
    same. The packed weight is neither a parameter nor a buffer: `.to()` and `state_dict()` do
    not see it, `weight_bytes` does.

    Attributes:
        packed_bytes: what the weight takes, scales included, bias excluded.
    """

    compute_dtype: ClassVar[torch.dtype] = torch.float32
    packed_bytes: int

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias: torch.Tensor | None = None
        if linear.bias is not None:
            self.bias = linear.bias.detach().to(self.compute_dtype, copy=True)

    @classmethod
    def refusal(cls, linear: nn.Linear) -> str | None:
        """Why the kernel cannot take this one linear; None: it can."""
        return None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        if rows.shape[0] == 0:
            return x.new_empty((*x.shape[:-1], self.out_features))
        if rows.dtype != self.compute_dtype:
            return self._rows(rows.to(self.compute_dtype)).to(x.dtype).view(*x.shape[:-1], -1)
        return self._rows(rows).view(*x.shape[:-1], self.out_features)

    def _rows(self, rows: torch.Tensor) -> torch.Tensor:
        """``[T, in_features] -> [T, out_features]``, both in `compute_dtype`, T > 0."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"
