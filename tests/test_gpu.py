"""The laws that a GPU could break: run where there is one, skipped elsewhere."""

from __future__ import annotations

import os
from functools import cache

import pytest
import torch
from tests.bundled import pair as on_the_cpu
from tests.bundled import run

from antiphon.methods import SMC, Autoregressive, Method, Speculative
from antiphon.models.base import Extension
from antiphon.models.pair import LoadOptions, ModelPair, load_pair

pytestmark = pytest.mark.gpu
DEVICE = os.environ.get("ANTIPHON_TEST_DEVICE", "cuda")
ENGINES = ("eager", "graphed")


@cache
def on_the_gpu(engine: str, target: str | None = None) -> ModelPair:
    options = LoadOptions(device=DEVICE, dtype="float32", engine=engine)
    return load_pair(target, target, options=options)


@pytest.mark.parametrize("engine", ENGINES)
def test_logits_are_those_of_the_cpu(engine: str) -> None:
    """A branching tree, then a commit: recorded passes are replayed over another cache."""
    text, crown = tuple(range(5, 25)), (7, 8, 9)
    seen = []
    for found in (on_the_cpu(), on_the_gpu(engine)):
        model = found.target
        tree = model.new_tree(64)
        rows = []
        for _ in range(3):
            (scores,) = model.forward([Extension(model, tree, text)])
            tree.commit(scores.nodes[-1])
            parents = (tree.tip, tree.tip, tree.next_node)
            (branches,) = model.forward([Extension(model, tree, crown, parents, rows=(0, 1, 2))])
            rows.append(branches.logits.cpu())
            tree.commit(branches.nodes[2])
            tree.prune()
        seen.append(torch.cat(rows))
    assert torch.allclose(seen[0], seen[1], atol=2e-2, rtol=1e-3)
    assert torch.equal(seen[0].argmax(-1), seen[1].argmax(-1))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch", [1, 8])
def test_greedy_speculation_is_plain_decoding(engine: str, batch: int) -> None:
    found = on_the_gpu(engine)
    plain = run(Autoregressive(), batch, found)
    for method in (Speculative(gamma=4), Speculative(gamma=3, chains=2)):
        drafted = run(method, batch, found)
        assert [r.token_ids for r in drafted] == [r.token_ids for r in plain]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [Speculative(), SMC(particles=4, gamma=4, control=0.5)])
def test_a_seed_gives_one_text(engine: str, method: Method) -> None:
    found = on_the_gpu(engine)
    first, again = (run(method, 8, found, temperature=0.8) for _ in range(2))
    assert [r.token_ids for r in first] == [r.token_ids for r in again]


@pytest.mark.parametrize("engine", ENGINES)
def test_random_weights_run_at_the_speed_of_their_shape(engine: str) -> None:
    found = on_the_gpu(engine, "random:llama-3.2-1b")
    model = found.target
    tree = model.new_tree(64)
    (scores,) = model.forward([Extension(model, tree, tuple(range(40)), rows=(39,))])
    assert scores.logits.shape == (1, 128256)
    assert torch.isfinite(scores.logits).all()
