"""The trainer: deterministic, exact after a kill, and the shipped weights load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from antiphon.errors import UserError
from antiphon.lab import checkpoint, pair_path
from antiphon.lab.evaluate import grade, solve
from antiphon.lab.growth import grow, positions
from antiphon.lab.muon import MuonAdam, orthogonalise
from antiphon.lab.problems import problem
from antiphon.lab.recipe import Pace, pair_tokenizer, train, train_one
from antiphon.lab.spec import DRAFT, TARGET, Plan, Shape, new_model
from antiphon.lab.stream import chunk_batches
from antiphon.lab.tokenizer import load_tokenizer

TINY = Plan(Shape(1, 32, 64, 2, 1), tokens=2000, batch_tokens=600, grow=((0.5, 2),), seed=3)
QUIET = Pace(check=1e9)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A folder that already has the bundled tokenizer, to save training one."""
    folder = tmp_path_factory.mktemp("lab")
    load_tokenizer(pair_path("target")).save_pretrained(folder / "tokenizer")
    return folder


def weights(model) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_killed_and_resumed_equals_unbroken(work: Path) -> None:
    whole = weights(train_one(work, "whole", TINY, pace=QUIET))
    for steps in (1, 1, 1):
        train_one(work, "cut", TINY, pace=QUIET, stop_after=steps)
    resumed = weights(train_one(work, "cut", TINY, pace=QUIET))
    assert same(whole, resumed)
    assert next(iter(whole.values())).dtype == torch.float32
    again = weights(train_one(work, "whole", TINY, resume=False, pace=QUIET))
    assert same(whole, again)


def test_training_learns(work: Path) -> None:
    plan = replace(TINY, tokens=12_000, grow=())
    trained = train_one(work, "learn", plan, pace=QUIET, export_to=work / "out")
    tokenizer = load_tokenizer(work / "out")
    batch = chunk_batches(tokenizer, 9, 0, 0.0, 200, 2000)[0]

    def loss(model) -> float:
        logits = model(batch.ids).logits[:, :-1][batch.trained[:, :-1]]
        gold = batch.ids[:, 1:][batch.trained[:, :-1]]
        return float(torch.nn.functional.cross_entropy(logits, gold))

    with torch.no_grad():
        assert loss(trained) < loss(new_model(plan.shape, tokenizer, 3)) - 1


def test_a_torn_checkpoint_is_never_taken(tmp_path: Path) -> None:
    tensor = {"w": torch.arange(3.0)}
    checkpoint.save(tmp_path, 1, tensor, tensor, {"step": 1})
    (tmp_path / "tmp-1").mkdir()
    (tmp_path / "tmp-1" / "model.safetensors").write_bytes(b"half")
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert checkpoint.load(found)[2] == {"step": 1}
    checkpoint.save(tmp_path, 2, tensor, tensor, {"step": 2})
    assert [p.name for p in tmp_path.glob("step-*")] == ["step-00000002"]


def test_growth_changes_nothing_it_computes(work: Path) -> None:
    tokenizer = load_tokenizer(work / "tokenizer")
    shape = Shape(2, 32, 64, 2, 1)
    small = new_model(shape, tokenizer, 0).eval()
    deep, places = grow(small, shape, tokenizer, 5, 0)
    assert places == positions(2, 5) == [1, 4]
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.allclose(small(ids).logits, deep.eval()(ids).logits, atol=1e-5)


def test_batches_train_solutions_only(work: Path) -> None:
    tokenizer = load_tokenizer(work / "tokenizer")
    batches = chunk_batches(tokenizer, 0, 0, 0.3, 200, 1000)
    again = chunk_batches(tokenizer, 0, 0, 0.3, 200, 1000)
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(batches, again, strict=True))
    for batch in batches:
        assert batch.tokens <= 1000
        row, marks = batch.ids[0], batch.trained[0]
        first = int(marks.nonzero()[0])
        last = int(marks.nonzero()[-1])
        assert tokenizer.decode(row[first]) == "<|assistant|>"
        assert tokenizer.decode(row[last + 1]) == "<|endoftext|>"
        assert bool(marks[first : last + 1].all())


def test_schedule_always_anneals() -> None:
    for plan in (DRAFT, TARGET):
        assert plan.rate(0.0) > 0
        assert plan.rate(0.5) == 1.0
        assert plan.rate(1.0) == 0.0
        assert plan.layers_at(1.0) >= plan.layers_at(0.0)
        assert plan.largest(0.0) <= plan.largest(1.0)


def test_orthogonalise_flattens_singular_values() -> None:
    torch.manual_seed(0)
    for shape in ((2, 16, 16), (2, 8, 24), (2, 24, 8)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert float(values.min()) > 0.3
        assert float(values.max()) < 1.4


def test_optimiser_descends() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    x = torch.randn(64, 8)
    y = x[:, :1] * x[:, 1:2]
    optimiser = MuonAdam(model)
    losses = []
    for _ in range(60):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimiser.step(1.0)
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_unknown_model_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="choose draft"):
        train(tmp_path, "teacher")
    with pytest.raises(UserError, match="choose target"):
        pair_path("teacher")


def test_tokenizer_is_kept(work: Path) -> None:
    assert pair_tokenizer(work / "tokenizer").get_vocab() == (
        load_tokenizer(pair_path("draft")).get_vocab()
    )


def test_the_bundled_draft_solves_problems() -> None:
    from transformers import LlamaForCausalLM

    folder = pair_path("draft")
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    gold = [problem("test", i) for i in range(32)]
    texts = solve(model, load_tokenizer(folder), [p.question for p in gold])
    score = grade(gold, texts)
    assert 0.15 < score.accuracy < 0.95
    assert score.interval[0] < score.accuracy < score.interval[1]


def test_the_bundle_is_small_and_never_pickled() -> None:
    files = [p for p in pair_path("target").parent.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 24_000_000
    assert {p.suffix for p in files} <= {".json", ".safetensors", ".jinja"}
