"""Packed linears: close to the plain one, rows independent, clean fallbacks."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from antiphon.errors import UserError
from antiphon.models import kernels
from antiphon.models import linear as packing
from antiphon.models.packed_linear import PackedLinear

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3, "int8": 3e-2, "int4": 1.5e-1}


PLAIN = [f"{name} without fused operations" for name in kernels.FASTER]


def supported(precision: str) -> bool:
    model = nn.Sequential(nn.Linear(64, 32))
    return packing.prepare_linears(model, precision, smallest=0).packed == 1


PRECISIONS = [*filter(supported, kernels.KERNELS), *PLAIN]


def packed(layer: nn.Linear, precision: str) -> nn.Module:
    model = nn.Sequential(layer)
    with pytest.MonkeyPatch.context() as patch:
        if precision in PLAIN:
            patch.setenv("ANTIPHON_FUSED", "0")
        packing.prepare_linears(model, precision.split()[0], smallest=0)
    return model[0]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 32), (96, 48), (33, 17), (512, 80)])
def test_close_to_the_plain_linear(precision: str, bias: bool, inputs: int, outputs: int) -> None:
    """Relative error of the whole output, for any number of rows and odd shapes."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    rows = torch.randn(33, inputs)
    with torch.no_grad():
        expected = layer(rows)
        tested = packed(layer, precision)
        for count in (1, 2, 5, 16, 33):
            actual = tested(rows[:count])
            error = (actual - expected[:count]).norm() / expected[:count].norm()
            assert error < TOLERANCE[precision.split()[0]]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_row_does_not_depend_on_its_neighbours(precision: str) -> None:
    """Guards per-tensor activation scales: an outlier row must not coarsen the others."""
    layer = packed(nn.Linear(256, 64), precision)
    rows = torch.randn(16, 256)
    rows[3] *= 1e4
    with torch.no_grad():
        together = layer(rows)
        for i in range(16):
            alone = layer(rows[i : i + 1])[0]
            if precision.startswith("int") or kernels.is_own(precision):
                assert torch.equal(alone, together[i])
            else:
                torch.testing.assert_close(alone, together[i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, -1)])
@pytest.mark.parametrize("inputs", [256, 255, 1030])
def test_int8_does_not_saturate(signs: tuple[int, int], inputs: int) -> None:
    """Guards vpmaddubsw: two products of extreme values must not be cut off at 16 bits."""
    layer = nn.Linear(inputs, 16, bias=False)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.weight[:, ::2] *= signs[0]
        layer.weight[:, 1::2] *= signs[1]
        # One weight alone in its pair reaches the top of the range beside full pairs.
        layer.weight[8:, 1::4] = 0.0
        rows = torch.cat([torch.ones(1, inputs), -torch.ones(1, inputs), layer.weight[:1].sign()])
        expected = layer(rows)
        actual = packed(layer, "int8")(rows)
    assert (actual - expected).abs().max() < 0.02 * inputs


def test_float_weights_go_as_they_are_packed() -> None:
    """Guards the peak of memory: at each packing, all earlier float weights are gone."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64)) for _ in range(4)))
    weights = [weakref.ref(layer[0].weight) for layer in model]
    alive = []
    kernel = kernels.KERNELS["float16"]
    original = kernel.pack

    def pack(self: PackedLinear, weight: torch.Tensor) -> object:
        alive.append(sum(ref() is not None for ref in weights))
        return original(self, weight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "pack", pack)
        packing.prepare_linears(model, "float16", smallest=0)
    assert alive == [4, 3, 2, 1]


def test_another_device_keeps_the_plain_linear() -> None:
    model = nn.Sequential(nn.Linear(8, 8, device="meta"))
    report = packing.prepare_linears(model, "int8", smallest=0)
    assert report.packed == 0
    assert report.kept == {"0": "packed linears run on the CPU, not meta"}


def test_shapes_with_more_dimensions_and_no_rows() -> None:
    layer = packed(nn.Linear(64, 32), "float32")
    with torch.no_grad():
        assert layer(torch.randn(2, 3, 64)).shape == (2, 3, 32)
        assert layer(torch.randn(1, 0, 64)).shape == (1, 0, 32)


def test_a_missing_kernel_leaves_the_plain_linear(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: object, weight: torch.Tensor) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(kernels.Float16Linear, "pack", refuse)
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8))
    report = packing.prepare_linears(model, "float16", smallest=0)
    assert report.packed == 0
    assert type(model[0]) is nn.Linear
    assert sum("no such instruction" in message for message in caplog.messages) == 1


def test_a_tied_embedding_keeps_its_table() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(64, 64)
            self.head = nn.Linear(64, 64, bias=False)
            self.head.weight = self.embed.weight

    model = Tied()
    table = model.embed.weight.detach().clone()
    packing.prepare_linears(model, "int8", smallest=0)
    assert torch.equal(model.embed.weight, table)
    assert isinstance(model.head, PackedLinear)
    assert packing.weight_bytes(model) == table.numel() * 4 + model.head.packed_bytes
    assert 64 * 64 < model.head.packed_bytes <= 64 * 64 + 8 * 64


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(UserError, match="choose float32"):
        packing.prepare_linears(nn.Linear(2, 2), "int3", smallest=0)


def test_tiny_float_linears_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A oneDNN call costs more than a tiny product: the bundled pair is faster without."""
    monkeypatch.setenv("ANTIPHON_FUSED", "0")
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(1024, 512))
    report = packing.prepare_linears(model, "float32")
    assert (report.packed, report.small, report.kept) == (1, 1, {})


@pytest.mark.parametrize("precision", PRECISIONS[: -len(PLAIN)])
def test_siblings_share_one_product_and_keep_nothing(precision: str) -> None:
    """Guards the fused q, k, v: each gets its own columns, for every new input."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj = nn.Linear(64, 64)
            self.k_proj = nn.Linear(64, 32, bias=False)
            self.v_proj = nn.Linear(64, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1)

    model = Attention()
    inputs = [torch.randn(3, 64), torch.randn(1, 64), torch.randn(3, 64)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        before = packing.weight_bytes(model)
        report = packing.prepare_linears(model, precision, smallest=0)
        assert report.packed == 3
        for x, wanted in zip(inputs, expected, strict=True):
            error = (model(x) - wanted).norm() / wanted.norm()
            assert error < TOLERANCE[precision.split()[0]]
    assert packing.weight_bytes(model) <= before
    shared = model.q_proj._shared
    assert shared._input is None
    assert shared._parts == ()
