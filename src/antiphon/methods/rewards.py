"""Process rewards of reasoning steps: a value head on the target, or a reward model of its own."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch

from antiphon.errors import UserError
from antiphon.lab import is_bundled, pair_path
from antiphon.lab.value_head import ValueHead
from antiphon.models.base import LanguageModel


class Reward(Protocol):
    """How likely it is that a solution is right so far.

    Attributes:
        hidden: the width of the target's hidden state that it looks at; 0: it reads the text.
    """

    hidden: int

    def __call__(self, tokens: tuple[int, ...], state: torch.Tensor | None) -> float:
        """From 0 to 1.

        Args:
            tokens: prompt and solution, up to the end of a step.
            state: the target's last hidden state ``[W]`` there.
        """
        ...


class HeadReward:
    """A value head on the target's last hidden state, as the bundled pair has one."""

    def __init__(self, head: ValueHead) -> None:
        self.head, self.hidden = head, head.hidden

    @torch.no_grad()
    def __call__(self, tokens: tuple[int, ...], state: torch.Tensor | None) -> float:
        assert state is not None
        return float(self.head(state.float()).sigmoid())


class ModelReward:
    """A Hugging Face sequence classifier with one label, over the same vocabulary.

    It reads the whole text anew at every step: simple, and slow on long ones.
    """

    hidden = 0

    def __init__(self, module: Any) -> None:
        self.module = module.eval()
        # It finds the last token by padding, which a single text has none of.
        self.module.config.pad_token_id = None

    @torch.no_grad()
    def __call__(self, tokens: tuple[int, ...], state: torch.Tensor | None) -> float:
        return float(self.module(torch.tensor([tokens])).logits[0, 0].float().sigmoid())


@lru_cache(maxsize=4)
def _loaded(path: str) -> Reward:
    # Half a second that no other method should wait for.
    from transformers import AutoModelForSequenceClassification

    folder = Path(path).expanduser()
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if config.get("kind") == "value_head":
            return HeadReward(ValueHead.load(folder))
        module = AutoModelForSequenceClassification.from_pretrained(folder)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(
            f"{path}: holds no reward model ({type(error).__name__}): give the folder of a "
            "sequence classifier or of a value head"
        ) from error
    if module.config.num_labels != 1:
        raise UserError(f"{path}: has {module.config.num_labels} labels: a reward model has one")
    return ModelReward(module)


def load(path: str, target: LanguageModel, pair: str | None) -> Reward:
    """The reward model of a folder; "": the bundled pair's own.

    Args:
        pair: the fingerprint of the pair that is in use.

    Raises:
        UserError: where there is none, or it does not fit the target.
    """
    if not path:
        if not is_bundled(pair):
            raise UserError(
                "rsd needs a reward model: make one with antiphon train-reward, and give --method "
                "rsd:reward=FOLDER (the bundled pair alone has its own)"
            )
        path = str(pair_path("value_head"))
    reward = _loaded(path)
    width = getattr(getattr(target, "config", None), "hidden_size", None)
    if reward.hidden and width is not None and reward.hidden != width:
        raise UserError(
            f"{path}: is a value head of another model ({reward.hidden} wide, the target has "
            f"{width}): give the target's own"
        )
    return reward
