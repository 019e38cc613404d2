"""Trees through transformers' own modeling code = the plain forward, on tiny random models."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import transformers

from antiphon.models.base import Extension
from antiphon.models.hf import HFModel

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GQA = {"num_key_value_heads": 2}
GEMMA = {**GQA, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8}
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", GQA),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", GQA),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**GQA, "head_dim": 16}),
    "mistral-window": ("MistralConfig", "MistralForCausalLM", {**GQA, "sliding_window": 8}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**GQA, "head_dim": 16}),
    "gemma2-softcap": ("Gemma2Config", "Gemma2ForCausalLM", GEMMA),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", GQA),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", GQA),
    "gpt-neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {}),
    "moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", {**GQA, "num_experts": 4}),
}


@functools.cache
def plain(name: str) -> Any:
    config, model, fields = ARCHITECTURES[name]
    torch.manual_seed(3)
    built = getattr(transformers, model)(getattr(transformers, config)(**{**SHAPE, **fields}))
    return built.eval()


def reference(name: str, tokens: list[int]) -> torch.Tensor:
    """Logits ``[T, V]`` of the stock eager forward, without any cache."""
    module = plain(name)
    module.set_attn_implementation("eager")
    with torch.no_grad():
        logits: torch.Tensor = module(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_any_way_of_growing_a_tree_gives_the_plain_forwards_logits(name: str) -> None:
    """Prefill, a branching crown, commit with compaction, a rejected branch, and a batch."""
    tokens = torch.randint(3, 97, (24,)).tolist()
    other = torch.randint(3, 97, (9,)).tolist()
    expected, expected_other = reference(name, tokens), reference(name, other)
    model = HFModel(plain(name), name)
    tree, second = model.new_tree(4), model.new_tree(64)

    first, neighbour = model.forward(
        [
            Extension(model, tree, tuple(tokens[:10]), rows=tuple(range(10))),
            Extension(model, second, tuple(other), rows=tuple(range(9))),
        ]
    )
    close(first.logits, expected[:10])
    close(neighbour.logits, expected_other)
    tree.commit(first.nodes[-1])

    at, new = tree.tip, tree.next_node
    (branches,) = model.forward(
        [
            Extension(
                model,
                tree,
                tokens=(5, tokens[10], 7, tokens[11], tokens[12]),
                parents=(at, at, new, new + 1, new + 3),
                rows=(1, 3, 4),
                hidden=True,
            )
        ]
    )
    close(branches.logits, expected[10:13])
    assert branches.hidden is not None
    assert branches.hidden.shape == (3, SHAPE["hidden_size"])
    tree.commit(branches.nodes[4])
    (rest,) = model.forward([Extension(model, tree, tuple(tokens[13:]), rows=tuple(range(11)))])
    close(rest.logits, expected[13:])
    wrong = torch.tensor([*tokens[:10], 5])
    (again,) = model.forward([Extension(model, model.new_tree(1), tuple(wrong.tolist()))])
    close(again.logits, reference_last(name, wrong.tolist()))


def test_hidden_states_are_what_the_head_reads() -> None:
    model = HFModel(plain("llama"), "llama")
    (scores,) = model.forward([Extension(model, model.new_tree(8), (5, 6, 7), hidden=True)])
    assert scores.hidden is not None
    close(model.module.get_output_embeddings()(scores.hidden), scores.logits)


def test_padded_vocabulary_columns_are_cut_off() -> None:
    """Guards Qwen's padding: an id the tokenizer does not know must have no logit."""
    model = HFModel(plain("qwen2"), "qwen2", vocab_size=90)
    (scores,) = model.forward([Extension(model, model.new_tree(8), (5, 6))])
    assert scores.logits.shape == (1, 90)


def test_storage_grows_and_keeps_what_it_held() -> None:
    tokens = torch.randint(3, 97, (60,)).tolist()
    expected = reference("llama", tokens)
    model = HFModel(plain("llama"), "llama")
    tree = model.new_tree(1)
    for i, token in enumerate(tokens):
        (scores,) = model.forward([Extension(model, tree, (token,))])
        tree.commit(scores.nodes[-1])
        close(scores.logits, expected[i : i + 1])


def reference_last(name: str, tokens: list[int]) -> torch.Tensor:
    expected = reference(name, tokens)[-1:]
    HFModel(plain(name), name)
    return expected


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)
