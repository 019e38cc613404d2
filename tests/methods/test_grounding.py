"""Grounding without N x N products = the eager rollout, on tiny Llama and Qwen2 models."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.methods.grounding import Grounding
from antiphon.models.base import Capture, Extension
from antiphon.models.hf import HFModel

SHAPE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    # Peaked attention: a threshold then cuts something and leaves something.
    "initializer_range": 0.4,
}


@cache
def models(name: str) -> tuple[Any, HFModel]:
    torch.manual_seed(3)
    config, build = (getattr(transformers, name + part) for part in ("Config", "ForCausalLM"))
    module, eager = build(config(**SHAPE)).eval(), build(config(**SHAPE)).eval()
    eager.load_state_dict(module.state_dict())
    eager.set_attn_implementation("eager")
    return eager, HFModel(module, name)


def rollout(
    name: str, tokens: list[int], split: int, capture: Capture, residual: float
) -> torch.Tensor:
    """G of the tokens from `split` on, by full matrices."""
    eager, _ = models(name)
    with torch.no_grad():
        out = eager(torch.tensor([tokens]), output_attentions=True)
    product = torch.eye(len(tokens))
    for heads in out.attentions[-capture.layers :]:
        weights = heads[0].float()
        weights = torch.where(weights < capture.threshold, 0.0, weights)
        if capture.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        mixed = (1 - residual) * weights.mean(0) + residual * torch.eye(len(tokens))
        product = mixed @ product
    return product[split:, :split].sum(-1)


@settings(max_examples=15)
@given(
    name=st.sampled_from(["Llama", "Qwen2"]),
    prompt=st.integers(1, 20),
    steps=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    capture=st.builds(
        Capture,
        layers=st.integers(1, 4),
        threshold=st.sampled_from([0.0, 0.01, 0.1]),
        renormalise=st.booleans(),
    ),
    residual=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 1000),
)
def test_step_by_step_is_the_rollout_of_the_whole_text(
    name: str, prompt: int, steps: list[int], capture: Capture, residual: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 50, (prompt + sum(steps),), generator=generator).tolist()
    _, model = models(name)
    tree = model.new_tree(len(tokens))
    grounding = Grounding(capture.layers, residual)
    place = 0
    for count in [prompt, *steps]:
        text = tuple(tokens[place : place + count])
        (scores,) = model.forward([Extension(model, tree, text, attention=capture)])
        tree.commit(scores.nodes[-1])
        assert scores.attention is not None
        if place:
            found = grounding.score(scores.attention)
            wanted = rollout(name, tokens[: place + count], place, capture, residual)
            assert torch.allclose(found, wanted, atol=1e-5)
            assert found.min() >= 0
            assert found.max() <= 1 + 1e-6
        grounding.absorb(scores.attention)
        place += count


def test_a_capture_changes_no_logit_and_sums_to_one() -> None:
    _, model = models("Qwen2")
    plain, watched = (
        model.forward([Extension(model, model.new_tree(8), (1, 2, 3, 4), attention=capture)])[0]
        for capture in (None, Capture(layers=2))
    )
    assert torch.equal(plain.logits, watched.logits)
    assert plain.attention is None
    assert watched.attention is not None
    assert watched.attention.shape == (2, 4, 4)
    assert torch.allclose(watched.attention.sum(-1), torch.ones(2, 4), atol=1e-5)


def test_each_tree_of_a_batch_is_watched_by_itself() -> None:
    _, model = models("Llama")
    texts = [(1, 2, 3), (4, 5), (6, 7, 8, 9)]
    asks = [Extension(model, model.new_tree(8), text, attention=Capture(1)) for text in texts]
    together = model.forward(asks)
    for text, scores in zip(texts, together, strict=True):
        ask = Extension(model, model.new_tree(8), text, attention=Capture(1))
        (alone,) = model.forward([ask])
        assert scores.attention is not None
        assert alone.attention is not None
        assert torch.allclose(scores.attention, alone.attention, atol=1e-6)


def test_weights_over_another_text_are_refused() -> None:
    grounding = Grounding(1)
    grounding.absorb(torch.ones(1, 2, 2))
    with pytest.raises(ValueError, match="I has 2"):
        grounding.score(torch.ones(1, 1, 5))
