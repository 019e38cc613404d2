"""Muon for the matrices, AdamW for the rest, in float32 and with a state that saves flat.

torch's own Muon orthogonalises in bfloat16, which a CPU without bfloat16 units emulates slowly;
here matrices of one shape are stacked and orthogonalised together in float32.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly, by a quintic Newton-Schulz iteration.

    Args:
        matrices: `[n, rows, columns]`.
        steps: iterations.
    """
    a, b, c = _NEWTON_SCHULZ
    x: Tensor = matrices
    flip = x.shape[1] > x.shape[2]
    if flip:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + torch.baddbmm(gram, gram, gram, beta=b, alpha=c) @ x
    return x.transpose(1, 2) if flip else x


class MuonAdam:
    """Two optimisers over the named parameters of a model, keyed by name.

    Keys by name let a grown model keep the momentum of the layers it already had.
    """

    def __init__(
        self, model: nn.Module, *, muon_rate: float = 0.02, adam_rate: float = 4e-3
    ) -> None:
        self.muon_rate, self.adam_rate = muon_rate, adam_rate
        self.state: dict[str, Tensor] = {}
        self.adam_steps = 0
        self.attach(model)

    def attach(self, model: nn.Module) -> None:
        """Takes over the parameters of `model`; state of names it knows is kept."""
        self._shapes: dict[tuple[int, ...], list[tuple[str, nn.Parameter]]] = defaultdict(list)
        self._rest: list[tuple[str, nn.Parameter]] = []
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed" not in name and "lm_head" not in name:
                self._shapes[tuple(parameter.shape)].append((name, parameter))
                self.state.setdefault(f"momentum.{name}", torch.zeros_like(parameter))
            else:
                self._rest.append((name, parameter))
                for moment in ("mean", "square"):
                    self.state.setdefault(f"{moment}.{name}", torch.zeros_like(parameter))

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One update with both learning rates multiplied by `scale`; clears the gradients."""
        for shape, group in self._shapes.items():
            updates = []
            for name, parameter in group:
                if parameter.grad is None:
                    raise RuntimeError(f"{name} has no gradient")
                momentum = self.state[f"momentum.{name}"].lerp_(parameter.grad, 0.05)
                updates.append(parameter.grad.lerp(momentum, 0.95))
                parameter.grad = None
            rate = scale * self.muon_rate * max(1.0, shape[0] / shape[1]) ** 0.5
            for (_, parameter), update in zip(
                group, orthogonalise(torch.stack(updates)), strict=True
            ):
                parameter.add_(update, alpha=-rate)
        self._adam(scale * self.adam_rate)

    def _adam(self, rate: float, slow: float = 0.95, fast: float = 0.9) -> None:
        self.adam_steps += 1
        bias1, bias2 = 1 - fast**self.adam_steps, 1 - slow**self.adam_steps
        for name, parameter in self._rest:
            if parameter.grad is None:
                raise RuntimeError(f"{name} has no gradient")
            mean = self.state[f"mean.{name}"].lerp_(parameter.grad, 1 - fast)
            square = self.state[f"square.{name}"].lerp_(parameter.grad.square(), 1 - slow)
            parameter.addcdiv_(mean, (square / bias2).sqrt().add_(1e-8), value=-rate / bias1)
            parameter.grad = None
