"""A graph, traced or compiled = transformers' plain forward, in float32, on tiny random models."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models.test_hf import close, plain, reference

from antiphon.errors import UserError
from antiphon.lab import pair_path
from antiphon.models import kernels, linear
from antiphon.models.base import Capture, Extension
from antiphon.models.compiled import layout, store
from antiphon.models.compiled.graphed import SLOTS, GraphedModel, padded
from antiphon.models.compiled.model import GraphModel
from antiphon.models.compiled.openvino import load
from antiphon.models.compiled.slots import SlotPool, SlotStorage
from antiphon.models.compiled.traced import NotTraceableError, TracedModel, traced
from antiphon.models.hf import HFModel
from antiphon.models.pair import LoadOptions, load_pair
from antiphon.models.source import Source
from antiphon.models.tree import ROOT, KVTree

FEWER = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30
)
ENGINES = ("traced", "unfused", "openvino", "graphed")
ARCHITECTURES = ("llama", "qwen3", "mistral-window", "gemma2-softcap", "gemma3", "gpt-neox")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module", autouse=True)
def own_store(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTIPHON_CACHE", str(folder / "cache"))
        yield


def saved(name: str, folder: Path) -> Source:
    path = folder / name
    if not path.exists():
        plain(name).save_pretrained(path)
    return Source(name, str(path), None, plain(name).config, tokenizer=None)


def graph_model(module: Any, name: str, vocab: int, precision: str) -> TracedModel:
    return TracedModel(traced(module), module.config, name, vocab, precision)


def made(engine: str, name: str, folder: Path, precision: str = "float32") -> GraphModel:
    if engine == "traced":
        return graph_model(plain(name), name, 97, precision)
    if engine == "unfused":  # As where there is no C++ compiler.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ANTIPHON_FUSED", "0")
            return graph_model(plain(name), name, 97, precision)
    if engine == "graphed":  # Padded as on a GPU, run without recording.
        return GraphedModel(copy.deepcopy(plain(name)), name, 97, precision)
    return load(saved(name, folder), precision, 97)


@pytest.fixture(scope="module", params=ENGINES)
def llama(request: pytest.FixtureRequest, folder: Path) -> GraphModel:
    return made(request.param, "llama", folder)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_any_way_of_growing_a_tree_gives_the_plain_forwards_logits(
    name: str, engine: str, folder: Path
) -> None:
    """Prefill in a batch, a branching crown, commit with a rejected branch, a fresh tree."""
    tokens = torch.randint(3, 97, (24,)).tolist()
    other = torch.randint(3, 97, (9,)).tolist()
    expected, expected_other = reference(name, tokens), reference(name, other)
    model = made(engine, name, folder)
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
    assert branches.hidden.shape == (3, 64)
    tree.commit(branches.nodes[4])
    (rest,) = model.forward([Extension(model, tree, tuple(tokens[13:]), rows=tuple(range(11)))])
    close(rest.logits, expected[13:])


def test_a_long_prompt_is_read_in_chunks(
    llama: GraphModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = torch.randint(3, 97, (60,)).tolist()
    monkeypatch.setattr(layout, "CHUNK", 17)
    rows = (3, 16, 17, 40, 59)
    (scores,) = llama.forward(
        [Extension(llama, llama.new_tree(8), tuple(tokens), rows=rows, attention=Capture(2))]
    )
    close(scores.logits, reference("llama", tokens)[list(rows)])
    assert scores.attention is not None
    assert scores.attention.shape == (2, 60, 60)
    close(scores.attention.sum(-1), torch.ones(2, 60))


@settings(FEWER)
@given(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 20)), min_size=1, max_size=6))
def test_padded_passes_have_few_shapes_and_the_same_content(shapes: list[tuple[int, int]]) -> None:
    pool = SlotPool(1, 1, 2)
    pieces = []
    for read, new in shapes:
        tree = KVTree(SlotStorage(pool, 8))
        tree.grow(tree.chain(ROOT, read), range(read))
        ask = Extension(None, tree, tuple(range(new)))  # type: ignore[arg-type]
        ask.grow()
        pieces.append(layout.Piece(ask, 0, 0, new))
    plain_inputs = layout.lay(pieces, (None,))
    wide = padded(plain_inputs)
    (B, Q, S), (b, q, s) = plain_inputs.masks[0].shape, wide.masks[0].shape
    sizes = (b, q, s - q, wide.tokens.shape[1], len(wide.rows))
    assert all(size & (size - 1) == 0 for size in sizes)
    assert (wide.source.reshape(b, q)[:B, :Q] == plain_inputs.source.reshape(B, Q)).all()
    # Every real token is found at the place that holds it, and sees what it saw.
    T = plain_inputs.tokens.shape[1]
    assert (wide.source[wide.real[:T]] == np.arange(T)).all()
    U, u = S - Q, s - q
    for old, new_mask in zip(plain_inputs.masks, wide.masks, strict=True):
        assert (new_mask[:B, :Q, :U] == old[..., :U]).all()
        assert (new_mask[:B, :Q, u : u + Q] == old[..., U:]).all()
        assert (new_mask == layout.HIDDEN).sum() == new_mask.size - (old == 0).sum()


@settings(FEWER)
@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 20)), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_a_ragged_batch_of_any_shape_scores_each_tree_as_alone(
    llama: GraphModel, shapes: list[tuple[int, int]], random: Any
) -> None:
    asks, alone = [], []
    for i, (read, new) in enumerate(shapes):
        text = tuple((7 * i + 3 * j) % 90 for j in range(read + new))
        for into in (asks, alone):
            tree = llama.new_tree(10)
            (scores,) = llama.forward([Extension(llama, tree, text[:read])])
            tree.commit(scores.nodes[-1])
            into.append(Extension(llama, tree, text[read:], rows=tuple(range(new))))
    order = list(range(len(asks)))
    random.shuffle(order)
    for i, scores in zip(order, llama.forward([asks[i] for i in order]), strict=True):
        (single,) = llama.forward([alone[i]])
        close(scores.logits, single.logits)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["llama", "gemma2-softcap"])
@pytest.mark.parametrize("capture", [Capture(2), Capture(3, threshold=0.05, renormalise=True)])
def test_attention_weights_are_those_of_the_eager_engine(
    name: str, engine: str, capture: Capture, folder: Path
) -> None:
    tokens = tuple(torch.randint(3, 97, (14,)).tolist())
    seen = []
    for model in (made(engine, name, folder), HFModel(plain(name), name)):
        tree = model.new_tree(8)
        (scores,) = model.forward([Extension(model, tree, tokens)])
        tree.commit(scores.nodes[-1])
        parents = (tree.tip, tree.tip, tree.next_node + 1)
        (scores,) = model.forward(
            [Extension(model, tree, (5, 6, 7), parents, rows=(2,), attention=capture)]
        )
        assert scores.attention is not None
        seen.append(scores.attention)
    close(seen[0], seen[1])


def test_more_layers_of_attention_than_the_graph_shows_are_refused(llama: GraphModel) -> None:
    ask = Extension(llama, llama.new_tree(8), (5, 6), attention=Capture(layers=99))
    with pytest.raises(ValueError, match="--engine eager"):
        llama.forward([ask])


def test_a_twin_shares_weights_and_nothing_else(llama: GraphModel) -> None:
    twin = llama.twin()
    ours = llama.forward([Extension(llama, tree := llama.new_tree(4), (5, 6, 7))])[0]
    kept = ours.logits.clone()
    other = twin.forward([Extension(twin, twin.new_tree(4), (9, 8))])[0]
    assert not torch.equal(other.logits, kept)
    assert torch.equal(ours.logits, kept)
    assert tree.slots == 3
    assert twin.slots.in_use < llama.slots.in_use + 1000
    assert twin.slots is not llama.slots


@pytest.mark.parametrize("engine", ENGINES)
def test_trees_that_end_give_their_slots_back(engine: str, folder: Path) -> None:
    model = made(engine, "llama", folder)
    trees = [model.new_tree(100) for _ in range(9)]
    assert model.slots.in_use == 900
    del trees[3:]
    gc.collect()
    assert model.slots.in_use == 300
    trees.clear()
    gc.collect()
    assert model.slots.in_use == 0
    # Recorded graphs know where the cache lies, so theirs stays.
    assert model.slots.buffer.shape[2] == (SLOTS if engine == "graphed" else 0)
    (scores,) = model.forward([Extension(model, model.new_tree(4), (5, 6, 7))])
    close(scores.logits, reference("llama", [5, 6, 7])[-1:])


def test_int8_stays_close_and_another_precision_is_another_conversion(folder: Path) -> None:
    found = saved("llama", folder)
    keys = {store.key(found, precision) for precision in store.PRECISIONS}
    assert len(keys) == len(store.PRECISIONS)
    model = made("openvino", "llama", folder, "int8")
    tokens = torch.randint(3, 97, (20,)).tolist()
    (scores,) = model.forward([Extension(model, model.new_tree(4), tuple(tokens))])
    expected = reference("llama", tokens)[-1:]
    divergence = torch.nn.functional.kl_div(
        scores.logits.log_softmax(-1), expected.log_softmax(-1), log_target=True, reduction="sum"
    )
    assert divergence < 1e-3


def test_a_changed_file_is_converted_again(folder: Path) -> None:
    found = saved("qwen3", folder)
    before = store.key(found, "int8")
    (weights,) = Path(found.location).glob("*.safetensors")
    weights.touch()
    assert store.key(found, "int8") != before


def test_a_failed_conversion_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_CACHE", str(folder / "other"))
    monkeypatch.setattr(store, "asdict", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.stored(saved("llama", folder), "float32")
    assert not list((folder / "other" / "openvino").iterdir())


def test_a_model_whose_way_depends_on_values_is_not_traced() -> None:
    with pytest.raises(NotTraceableError):
        traced(plain("moe"))


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_packed_linears_are_traced_too(precision: str) -> None:
    """A graph over packed weights gives what the eager engine gives over the same ones."""
    path = str(pair_path("draft"))
    kinds = {
        engine: load_pair(
            path,
            options=LoadOptions(
                engine=engine,
                dtype="bfloat16" if precision == "bfloat16" else "float32",
                target_quant=precision if precision == "int8" else "none",
            ),
        ).target
        for engine in ("traced", "eager")
    }
    assert type(kinds["traced"]) is not type(kinds["eager"])
    tokens = tuple(range(20, 45))
    found = [
        model.forward([Extension(model, model.new_tree(4), tokens, rows=tuple(range(25)))])[0]
        for model in kinds.values()
    ]
    apart = (found[0].logits - found[1].logits).abs().max()
    assert apart < (0.5 if precision == "bfloat16" else 1e-2)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_packed_kernels_are_traced(precision: str) -> None:
    module = copy.deepcopy(plain("llama"))
    module.to(linear.activation_dtype(precision))
    report = linear.prepare_linears(module, precision, smallest=0)
    assert report.packed
    tokens = tuple(torch.randint(3, 97, (9,)).tolist())
    found = []
    for kind in (graph_model, HFModel):
        model = kind(module, "llama", 97, precision)
        ask = Extension(model, model.new_tree(4), tokens, rows=tuple(range(9)))
        twice = [model.forward([ask])[0].logits, None]
        pair = prompts_of(model, [tokens, tokens[::-1]])
        twice[1] = model.forward(pair)[0].logits
        found.append(torch.cat([twice[0], twice[1]]))
    tolerance = {"int8": 2e-2}.get(precision, 2e-3)
    assert (found[0] - found[1]).abs().max() < tolerance


def test_what_cannot_be_traced_runs_eagerly_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OneDNN's float32 weights cannot by themselves be part of a graph."""
    monkeypatch.setenv("ANTIPHON_FUSED", "0")
    monkeypatch.setattr(kernels.Float32Linear, "smallest", 0)
    path = str(pair_path("draft"))
    options = LoadOptions(dtype="float32")
    assert isinstance(load_pair(path, options=options).target, HFModel)
    with pytest.raises(UserError, match="--engine eager"):
        load_pair(path, options=LoadOptions(dtype="float32", engine="traced"))


def test_an_unknown_precision_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="choose float32, bfloat16, int8, int4"):
        store.stored(saved("llama", folder), "float16")


def prompts_of(model: Any, texts: list[tuple[int, ...]]) -> list[Extension]:
    return [Extension(model, model.new_tree(8), text) for text in texts]


def counted(model: GraphModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens go through the graph, pass by pass."""
    seen: list[int] = []
    run = model.run

    def watched(inputs: layout.Inputs) -> tuple[torch.Tensor, ...]:
        seen.append(inputs.tokens.size)
        return run(inputs)

    monkeypatch.setattr(model, "run", watched)
    return seen


def test_a_beginning_that_live_texts_share_is_read_once(
    llama: GraphModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one batch and across batches; scores are those of a text alone."""
    seen = counted(llama, monkeypatch)
    shots = tuple(torch.randint(3, 97, (40,)).tolist())
    texts = [shots + (60 + n,) * n for n in (3, 25, 4, 9)]
    asks = prompts_of(llama, texts[:3])
    first = llama.forward(asks)
    assert seen == [43, 25, 4]  # The second waits for the first: most of it is the same.
    for ask, scores in zip(asks, first, strict=True):
        ask.tree.commit(scores.nodes[-1])
    (late,) = llama.forward(prompts_of(llama, texts[3:]))
    assert seen[3:] == [9]
    for text, scores in zip(texts, [*first, late], strict=True):
        close(scores.logits, reference("llama", list(text))[-1:])


def test_prompts_are_read_together_up_to_a_chunk(
    llama: GraphModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = counted(llama, monkeypatch)
    monkeypatch.setattr(layout, "CHUNK", 64)
    texts = [tuple(torch.randint(3, 97, (n,)).tolist()) for n in (20, 30, 25, 70, 5)]
    for text, scores in zip(texts, llama.forward(prompts_of(llama, texts)), strict=True):
        close(scores.logits, reference("llama", list(text))[-1:])
    assert seen == [50, 64, 6, 25, 5]


@settings(FEWER)
@given(data=st.data())
def test_texts_that_share_slots_never_disturb_each_other(
    llama: GraphModel, data: st.DataObject
) -> None:
    """One of them drops what it read, drafts and rejects, or ends: the others score on."""
    shared = tuple(data.draw(st.lists(st.integers(3, 96), min_size=20, max_size=40)))
    texts: list[list[int]] = []
    trees: list[KVTree] = []
    for _ in range(data.draw(st.integers(2, 4))):
        own = data.draw(st.lists(st.integers(3, 96), min_size=1, max_size=20))
        text = [*shared, *own]
        # Some read a few drafts after the prompt in the same pass, and refuse them.
        drafts = data.draw(st.lists(st.integers(3, 96), max_size=4))
        tree = llama.new_tree(8)
        rows = tuple(range(len(text) - 1, len(text) + len(drafts)))
        (scores,) = llama.forward([Extension(llama, tree, (*text, *drafts), rows=rows)])
        if data.draw(st.booleans()):
            tree.prune()  # Nothing of it stands; the next pass reads the text anew.
            (scores,) = llama.forward([Extension(llama, tree, tuple(text))])
            tree.commit(scores.nodes[-1])
        else:
            tree.commit(scores.nodes[len(text) - 1])
            tree.prune()
        texts.append(text)
        trees.append(tree)
    if data.draw(st.booleans()):
        del trees[0], texts[0], tree, scores
        gc.collect()
    asks = [Extension(llama, tree, (7, 8)) for tree in trees]
    for text, scores in zip(texts, llama.forward(asks), strict=True):
        close(scores.logits, reference("llama", [*text, 7, 8])[-1:])


def test_a_scored_beginning_is_read_by_the_text_itself(
    llama: GraphModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tuple(torch.randint(3, 97, (40,)).tolist())
    keep = prompts_of(llama, [text])
    (scores,) = llama.forward(keep)
    keep[0].tree.commit(scores.nodes[-1])
    seen = counted(llama, monkeypatch)
    ask = Extension(llama, llama.new_tree(8), text, rows=tuple(range(30, 40)))
    (scores,) = llama.forward([ask])
    assert seen == [10]
    close(scores.logits, reference("llama", list(text))[30:])
    watched = Extension(llama, llama.new_tree(8), text, attention=Capture(2))
    (scores,) = llama.forward([watched])
    assert seen[1:] == [40]
    assert scores.attention is not None
    assert scores.attention.shape == (2, 40, 40)


@given(st.data())
def test_slots_follow_any_commit_and_prune(data: st.DataObject) -> None:
    """A surviving node's number never changes: nothing is moved, only the order is."""
    pool = SlotPool(1, 1, 2)
    tree = KVTree(SlotStorage(pool, 1))
    home: dict[int, int] = {}
    trunk: list[int] = []
    for _ in range(data.draw(st.integers(1, 8))):
        kind = data.draw(st.sampled_from(["grow", "commit", "prune"]))
        crown = list(tree.crown)
        storage = tree.storage
        assert isinstance(storage, SlotStorage)
        if kind == "grow" or not crown:
            count = data.draw(st.integers(1, 4))
            parents = [
                data.draw(
                    st.sampled_from([*crown, tree.tip, *range(tree.next_node, tree.next_node + i)])
                )
                for i in range(count)
            ]
            nodes = tree.grow(parents, [1] * count)
            new = storage.numbers[tree.slots - count : tree.slots].tolist()
            home |= dict(zip(nodes, new, strict=True))
        elif kind == "commit":
            node = data.draw(st.sampled_from(crown))
            above = _path(tree, node)
            tree.commit(node)
            trunk += [home[each] for each in above]
        else:
            tree.prune(data.draw(st.lists(st.sampled_from(crown), max_size=3)))
        used = storage.numbers[: tree.slots].tolist()
        assert used == [*trunk, *(home[node] for node in tree.crown)]
        assert len(np.unique(storage.numbers)) == len(storage.numbers)


def _path(tree: KVTree, node: int) -> list[int]:
    """Crown nodes from the trunk to `node`."""
    parents = dict(zip(tree.crown, tree._parents, strict=True))
    found = [node]
    while parents[found[0]] != tree.tip:
        found.insert(0, parents[found[0]])
    assert tree.tip == ROOT or tree.length
    return found
