"""The policy: features of a mismatch to the chance that the draft's token should stand."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn

from antiphon.arbiter.features import NAMES, features
from antiphon.errors import UserError
from antiphon.perceptron import Perceptron
from antiphon.rules.evidence import Evidence

START = -2.5
"""The output bias to begin with: a chance of 0.08, near always-target."""


class Policy(Perceptron, PyTorchModelHubMixin):
    """`features` ``[K, F]`` to the log-odds ``[K]`` of keeping the draft's token.

    Saved and loaded as safetensors with a ``config.json`` (`save_pretrained`,
    `from_pretrained`), the fingerprint of its pair within.

    Args:
        pair: fingerprint of the pair it was trained for.
        width: hidden units; 0: none.
        states: width of the target's hidden states that it looks at; 0: scalars alone.
    """

    def __init__(self, pair: str = "", width: int = 64, states: int = 0) -> None:
        super().__init__(len(NAMES) + 2 * states, width)
        self.pair, self.states = pair, states
        nn.init.zeros_(self.outer.weight)
        nn.init.constant_(self.outer.bias, START)

    def look(self, evidence: Evidence) -> torch.Tensor:
        """The features ``[K, F]`` of a block that this policy judges by."""
        return features(evidence, self.states > 0)

    def standardise(self, found: torch.Tensor) -> None:
        """Take mean and spread from features ``[N, F]`` of the training data."""
        self.mean.copy_(found.mean(0))
        self.scale.copy_(found.std(0).clamp_min(1e-3))


def load(path: Path, pair: str | None) -> Policy:
    """A saved policy, for the pair of this fingerprint (None: not known, not checked).

    Raises UserError for a folder that holds none, or another pair's.
    """
    try:
        json.loads((path / "config.json").read_text(encoding="utf-8"))
        with redirect_stdout(io.StringIO()):  # It prints, and our output is for machines, too.
            policy: Policy = Policy.from_pretrained(str(path)).eval()
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise UserError(
            f"{path}: holds no arbiter ({type(error).__name__}): "
            "make one with antiphon train-arbiter"
        ) from None
    if pair is not None and policy.pair != pair:
        raise UserError(
            f"{path}: is the arbiter of another pair: train one for this pair "
            "with antiphon train-arbiter"
        )
    return policy
