"""Fused operations: what the separate ones give, and the same bits whatever stands beside a row."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.test_hf import plain

from antiphon.models import fused, kernels, linear
from antiphon.models.base import Extension, Scores
from antiphon.models.compiled.traced import TracedModel, traced

needs = pytest.mark.skipif(not fused.ready(), reason="no C++ compiler")
DTYPES = [torch.float32, torch.bfloat16]
EXACT = ["int8", "int4", *(name for name in ("float32", "bfloat16") if kernels.is_own(name))]
EXAMPLES = settings(deadline=None, max_examples=40)


def test_where_a_compiler_is_found_operations_are_fused() -> None:
    assert fused.ready() == any(map(shutil.which, fused.compilers()))


@needs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama", "gemma2-softcap", "qwen3"])
def test_norms_and_rotations_give_what_modeling_code_gives(name: str, dtype: torch.dtype) -> None:
    module = copy.deepcopy(plain(name)).to(dtype)
    module.set_attn_implementation("eager")  # Other tests have set their own.
    tokens = torch.randint(3, 97, (1, 11))
    with torch.no_grad():
        expected = module(tokens).logits
        with fused.fused(module):
            swapped = [child for child in module.modules() if "forward" in vars(child)]
            found = module(tokens).logits
        after = module(tokens).logits
    norms = [child for child in module.modules() if type(child).__name__.endswith("RMSNorm")]
    assert len(swapped) == len(norms) > 0
    assert torch.equal(after, expected)
    apart = (found - expected).abs().max() / expected.abs().max()
    assert apart < (1e-5 if dtype == torch.float32 else 2e-2)


@needs
def test_a_norm_that_is_another_function_stays() -> None:
    class OddRMSNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))
            self.eps = 1e-6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x / x.abs().mean(-1, keepdim=True)

    assert fused.norm(OddRMSNorm()) is None


@needs
@EXAMPLES
@given(st.integers(1, 40), st.integers(1, 70), st.booleans(), st.integers(0, 99))
def test_shrunk_rows_are_stretched_back(rows: int, width: int, biased: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator) * 100
    bias = torch.randn(width, generator=generator) if biased else None
    small, peaks = torch.ops.antiphon.shrink(x, 1e-12)
    assert torch.equal(peaks, x.abs().amax(1, keepdim=True))
    assert torch.equal(small, x / peaks)
    back = torch.ops.antiphon.stretch(small.clone(), peaks, bias)
    torch.testing.assert_close(back, x if bias is None else x + bias, rtol=1e-5, atol=1e-4)


def looked(q: Any, k: Any, v: Any, seen: list[list[int]], scale: float, cap: float) -> Any:
    """Attention spelled out, ``[1, T, Hq, D]``: q ``[1, Hq, T, D]``, k and v ``[H, N, D]``."""
    groups = q.shape[1] // len(k)
    out = torch.zeros(1, q.shape[2], q.shape[1], q.shape[3], dtype=torch.float64)
    for t, slots in enumerate(seen):
        for head in range(q.shape[1]):
            keys, values = (each[head // groups, slots].double() for each in (k, v))
            scores = keys @ q[0, head, t].double() * scale
            if cap:
                scores = torch.tanh(scores / cap) * cap
            out[0, t, head] = scores.softmax(0) @ values
    return out


@needs
@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(
    heads=st.sampled_from([(1, 1), (4, 2), (12, 2), (7, 1), (10, 2)]),
    size=st.sampled_from([8, 16, 24, 64, 128, 136]),
    tokens=st.integers(1, 6),
    past=st.integers(0, 70),
    cap=st.sampled_from([0.0, 5.0]),
    seed=st.integers(0, 99),
)
def test_attention_over_slots(
    dtype: torch.dtype,
    heads: tuple[int, int],
    size: int,
    tokens: int,
    past: int,
    cap: float,
    seed: int,
) -> None:
    """Any slots in any order; queries and values in the strides that modeling code gives them."""
    generator = torch.Generator().manual_seed(seed)
    query_heads, H = heads
    N = past + tokens + 5

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    q = random(1, tokens, query_heads, size).transpose(1, 2)
    new_k, new_v = (random(1, tokens, H, size).transpose(1, 2) for _ in range(2))
    k, v = random(H, N, size), random(H, N, size)
    slots = torch.randperm(N, generator=generator)[: past + tokens]
    own = slots[past:]
    mask = torch.zeros(1, tokens, past + tokens)
    mask[0, :, past:] = torch.where(torch.eye(tokens).bool(), 0.0, -1e9)
    if past:
        mask[0, :, :past] = torch.where(
            torch.rand(tokens, past, generator=generator) < 0.5, 0, -1e9
        )
    sights = torch.ops.antiphon.sights(mask, slots, torch.arange(tokens))
    found = torch.ops.antiphon.attend(q, new_k, new_v, k, v, own, *sights, 0.3, cap)
    assert torch.equal(k[:, own], new_k[0])
    assert torch.equal(v[:, own], new_v[0])
    seen = [slots[row >= 0].tolist() for row in mask[0]]
    expected = looked(q, k, v, seen, 0.3, cap)
    tolerance = 2e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@needs
@EXAMPLES
@given(st.integers(1, 7), st.integers(0, 60), st.integers(0, 99))
def test_a_token_gets_the_same_bits_alone_and_in_a_block(count: int, past: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    H, D, N = 2, 24, past + count
    q, new_k, new_v = (torch.randn(1, h, count, D, generator=generator) for h in (6, H, H))
    k, v = (torch.randn(H, N, D, generator=generator) for _ in range(2))
    slots = torch.arange(N)
    mask = torch.full((1, count, N), -1e9).triu(past + 1)
    together = torch.ops.antiphon.attend(
        *(q, new_k, new_v, k.clone(), v.clone(), slots[past:]),
        *(*torch.ops.antiphon.sights(mask, slots, torch.arange(count)), 0.2, 0.0),
    )
    for t in range(count):
        see = torch.ops.antiphon.sights(
            torch.zeros(1, 1, past + t + 1), slots[: past + t + 1], torch.arange(1)
        )
        one = (each[:, :, t : t + 1] for each in (q, new_k, new_v))
        alone = torch.ops.antiphon.attend(*one, k, v, slots[past + t : past + t + 1], *see, 0.2, 0)
        assert torch.equal(alone[0, 0], together[0, t])


@needs
@pytest.mark.parametrize("precision", EXACT)
def test_packed_models_give_the_same_bits_alone_in_blocks_and_in_batches(precision: str) -> None:
    """So greedy speculative decoding over them writes what plain decoding writes, to the token."""
    module = copy.deepcopy(plain("llama"))
    module.to(linear.activation_dtype(precision))
    linear.prepare_linears(module, precision, smallest=0)
    model = TracedModel(traced(module), module.config, "llama", 97, precision)
    texts = [torch.randint(3, 97, (size,)).tolist() for size in (40, 23, 31)]
    # Of most of a long prompt no row is scored.
    unscored = model.forward([Extension(model, model.new_tree(8), (5, 6, 7), rows=())])
    assert unscored[0].logits.shape == (0, 97)

    def seen(scores: Scores) -> torch.Tensor:
        assert scores.hidden is not None
        # PyTorch's int4 kernel takes no 97 outputs: the head is plain then, and not exact.
        exact = precision != "int4" or fused.has("int4")
        return scores.logits if exact else scores.hidden

    def alone(text: list[int]) -> torch.Tensor:
        tree, rows = model.new_tree(8), []
        for token in text:
            (scores,) = model.forward([Extension(model, tree, (token,), hidden=True)])
            tree.commit(scores.nodes[-1])
            rows.append(seen(scores))
        return torch.cat(rows)

    expected = [alone(text) for text in texts]
    trees = [model.new_tree(8) for _ in texts]
    for size in (3, 5, 1, 12):
        asks = [
            Extension(
                *(model, tree, tuple(text[tree.slots : tree.slots + size])),
                rows=tuple(range(size)),
                hidden=True,
            )
            for tree, text in zip(trees, texts, strict=True)
        ]
        start = trees[0].slots
        found = model.forward(asks)
        for tree, scores, rows in zip(trees, found, expected, strict=True):
            tree.commit(scores.nodes[-1])
            assert torch.equal(seen(scores), rows[start : start + size])


def test_without_a_compiler_models_run_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path))
    monkeypatch.setattr(fused, "compilers", lambda: ["no-such-compiler"])
    assert not fused.loaded.__wrapped__()
    monkeypatch.setattr(fused, "compilers", lambda: ["false"])
    assert not fused.loaded.__wrapped__()
    assert "not fused" in caplog.text
    assert not list(tmp_path.rglob("*.so"))
    # It failed once: the next start does not wait for it again.
    monkeypatch.setattr(fused, "compile_", lambda *_: 1 / 0)
    assert not fused.loaded.__wrapped__()
    (failed,) = tmp_path.rglob("*.failed")
    assert str(failed) in caplog.text
    monkeypatch.setenv("ANTIPHON_FUSED", "0")
    assert not fused.ready()
    with fused.fused(plain("llama")) as nothing:
        assert nothing is None
        assert not any("forward" in vars(child) for child in plain("llama").modules())


@needs
def test_a_library_that_cannot_be_read_is_compiled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path))
    made = []

    def compile_again(command: list[str], file: Path) -> None:
        made.append(command)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("no library either")

    monkeypatch.setattr(fused, "compile_", compile_again)
    assert not fused.loaded.__wrapped__()
    assert len(made) == 1
