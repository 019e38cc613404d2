"""Prepares a loaded model's linears for decoding on the CPU: packs them, siblings in one."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from antiphon.models import fused
from antiphon.models.kernels import PlainLinear, kernel
from antiphon.models.packed_linear import PackedLinear

logger = logging.getLogger(__name__)

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Linears that modeling code applies to one and the same tensor, one after the other."""


class Shared:
    """One packed linear in place of several siblings: one call reads all their weights."""

    def __init__(self, packed: PackedLinear, sizes: list[int]) -> None:
        self.packed = packed
        self.sizes = sizes
        self._input: torch.Tensor | None = None
        self._parts: tuple[torch.Tensor, ...] = ()
        self._left = 0

    def part(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """Sibling `index` of `x`; computed when the first sibling asks."""
        if x is not self._input:
            self._input, self._parts = x, self.packed(x).split(self.sizes, dim=-1)
            self._left = len(self.sizes)
        out = self._parts[index]
        self._left -= 1
        if not self._left:
            self._input, self._parts = None, ()
        return out


class Sibling(nn.Module):
    """A linear whose product comes from the one its siblings share.

    The first sibling owns the packed weight, so that `modules()` finds it once.
    """

    def __init__(self, shared: Shared, index: int) -> None:
        super().__init__()
        self.index = index
        self._shared = shared
        if index == 0:
            self.packed = shared.packed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._shared.part(x, self.index)


def _groups(parent: nn.Module) -> list[tuple[str, ...]]:
    """The names of the plain linears right below `parent`, siblings together."""
    plain = [name for name, child in parent._modules.items() if type(child) is nn.Linear]
    groups = [names for names in SIBLINGS if set(names) <= set(plain)]
    joined = {name for names in groups for name in names}
    return [*groups, *((name,) for name in plain if name not in joined)]


def _pack(packing: type[PackedLinear], linears: list[Any]) -> list[nn.Module]:
    """Packed stand-ins for `linears`; raises what the packing raises."""
    device = linears[0].weight.device
    if device.type != "cpu":
        raise ValueError(f"packed linears run on the CPU, not {device}")
    whole = linears[0] if len(linears) == 1 else _joined(linears)
    packed = packing(whole)
    packed(torch.zeros(1, packed.in_features, dtype=packing.compute_dtype))
    if len(linears) == 1:
        return [packed]
    shared = Shared(packed, [linear.out_features for linear in linears])
    return [Sibling(shared, index) for index in range(len(linears))]


def _replace(parent: nn.Module, names: tuple[str, ...], fresh: list[nn.Module]) -> None:
    for child, module in zip(names, fresh, strict=True):
        setattr(parent, child, module)


def _joined(linears: list[nn.Linear]) -> nn.Linear:
    """One linear that stacks the outputs of several."""
    biases: list[torch.Tensor | None] = [linear.bias for linear in linears]
    biased = any(bias is not None for bias in biases)
    outputs = sum(linear.out_features for linear in linears)
    whole = nn.Linear(linears[0].in_features, outputs, bias=biased, device="meta")
    whole.weight = nn.Parameter(torch.cat([linear.weight.detach() for linear in linears]))
    if biased:
        parts = [
            torch.zeros(linear.out_features) if bias is None else bias.detach()
            for linear, bias in zip(linears, biases, strict=True)
        ]
        whole.bias = nn.Parameter(torch.cat(parts))
    return whole


@dataclass(slots=True)
class Report:
    """What `prepare_linears` did: linears packed, too small, and refused, with the reasons."""

    packed: int = 0
    small: int = 0
    kept: dict[str, str] = field(default_factory=dict)


def prepare_linears(module: nn.Module, precision: str, smallest: int | None = None) -> Report:
    """Replace every `nn.Linear` of `module` by a packed one, one after the other.

    The float weights go as they are packed, so the peak is one weight above the larger of the
    two forms. An embedding that shares the head's weight keeps its table. Where a kernel is
    missing or refuses a shape the plain linear stays, and the reason is logged once.

    Args:
        module: a loaded model on the CPU.
        precision: a key of `KERNELS`.
        smallest: weights with fewer elements stay plain; None: the kernel's own bound.

    Raises:
        UserError: for another precision.
    """
    packing = kernel(precision)
    least = packing.smallest if smallest is None else smallest
    report = Report()
    # Parents alone are held, and each child only while it is packed: a list of all modules
    # would keep every float weight alive until the last is packed.
    parents = [(name, m) for name, m in module.named_modules() if not isinstance(m, nn.Linear)]
    for name, parent in parents:
        for names in _groups(parent):
            linears = [parent._modules[child] for child in names]
            if sum(linear.weight.numel() for linear in linears) < least:
                report.small += len(names)
                if len(names) > 1:
                    _replace(parent, names, _pack(PlainLinear, linears))
                continue
            try:
                fresh = _pack(packing, linears)
            except (RuntimeError, ValueError, NotImplementedError, AttributeError) as error:
                reason = str(error).splitlines()[0]
                report.kept |= {f"{name}.{child}".lstrip("."): reason for child in names}
                continue
            _replace(parent, names, fresh)
            report.packed += len(names)
            del linears
    if report.kept:
        reason = next(iter(report.kept.values()))
        logger.warning("%d linears stay plain at %s: %s", len(report.kept), precision, reason)
    return report


def default_precision() -> str:
    """bfloat16 on CPUs that have its instructions or a kernel of ours for it, else float32."""
    fast = torch.ops.mkldnn._is_mkldnn_bf16_supported() or fused.has("bf16_widened")
    return "bfloat16" if fast else "float32"


def activation_dtype(precision: str) -> torch.dtype:
    """The dtype the rest of the model should run in.

    bfloat16 only where the linears are: the operations around them are seldom faster in it.
    """
    compute = kernel(precision).compute_dtype
    return compute if precision == "bfloat16" else torch.float32


def weight_bytes(module: nn.Module) -> int:
    """Bytes of parameters (each once) and of packed weights."""
    parameters = {id(p): p.numel() * p.element_size() for p in module.parameters()}
    packed = sum(m.packed_bytes for m in module.modules() if isinstance(m, PackedLinear))
    return sum(parameters.values()) + packed
