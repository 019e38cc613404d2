"""A draft with a short head: it proposes some tokens alone, and changes no text."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from tests.bundled import pair, run

from antiphon.cli.options import parse_vocab
from antiphon.drawing import draw_rows
from antiphon.errors import UserError
from antiphon.methods import Autoregressive, Speculative
from antiphon.models.base import Extension
from antiphon.models.pair import LoadOptions, ModelPair, load_pair
from antiphon.models.short_head import ShortHead, ranked

KEPT = 300


def short(engine: str) -> ModelPair:
    return load_pair(options=LoadOptions(dtype="float32", engine=engine, draft_vocab=KEPT))


def test_a_short_head_gives_the_kept_logits_and_no_others() -> None:
    head = torch.nn.Linear(4, 9)
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    logits = ShortHead(head, [7, 0, 2])(x)
    assert torch.allclose(logits[..., [0, 2, 7]], head(x)[..., [0, 2, 7]])
    assert (logits[..., [1, 3, 4, 5, 6, 8]] == -math.inf).all()


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_the_draft_proposes_kept_and_special_tokens_alone(engine: str) -> None:
    found = short(engine)
    assert found.draft is not None
    tree = found.draft.new_tree(4)
    (scores,) = found.draft.forward(
        [Extension(found.draft, tree, (5, 6), parents=(-1, 0), rows=(0, 1))]
    )
    finite = torch.isfinite(scores.logits)
    kept = {*range(KEPT), *found.tokenizer.get_added_vocab().values()}
    proposed = set(finite[0].nonzero()[:, 0].tolist())
    # A few of the next ids fill the head up to a number that 16 divides.
    assert proposed >= kept
    assert len(proposed) % 16 == 0
    assert proposed - kept == set(range(KEPT, KEPT + len(proposed - kept)))
    whole = pair().draft
    assert whole is not None
    (full,) = whole.forward(
        [Extension(whole, whole.new_tree(4), (5, 6), parents=(-1, 0), rows=(0, 1))]
    )
    assert torch.allclose(scores.logits[finite], full.logits[finite], atol=1e-4)
    assert set(draw_rows(scores.logits.softmax(-1), [0.5, 0.999])) <= proposed


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_greedy_texts_are_the_targets_all_the_same(engine: str) -> None:
    found = short(engine)
    plain = run(Autoregressive(), models=found)
    drafted = run(Speculative(gamma=4), models=found)
    assert [r.token_ids for r in drafted] == [r.token_ids for r in plain]
    assert any("draft" in r.provenance for r in drafted)
    # Something the short head cannot say was said.
    assert any(token >= KEPT + 16 for r in plain for token in r.token_ids)


def test_tokens_are_ranked_by_their_counts(tmp_path: Path) -> None:
    tokenizer = pair().tokenizer
    plain = tmp_path / "text.txt"
    plain.write_text("one two two\ntwo", encoding="utf-8")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"a": ["one two two"], "b": {"c": "two"}, "d": 2}\n', encoding="utf-8")
    found = ranked(tokenizer, rows)
    ids = Counter(tokenizer("one two two").input_ids + tokenizer("two").input_ids)
    assert sorted(found) == sorted(ids)
    assert [ids[token] for token in found] == sorted(ids.values(), reverse=True)
    assert set(found) <= set(ranked(tokenizer, plain))  # Which has line breaks, too.
    torn = tmp_path / "torn.jsonl"
    torn.write_text('{"a": ', encoding="utf-8")
    for path in (torn, tmp_path / "none.txt"):
        with pytest.raises(UserError, match=r"cannot be read as text.*N:FILE"):
            ranked(tokenizer, path)


def test_the_most_frequent_tokens_of_a_text_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("Anna has 12 apples. Anna has 7.", encoding="utf-8")
    options = LoadOptions(dtype="float32", draft_vocab=4, draft_vocab_text=path)
    found = load_pair(options=options)
    assert found.draft is not None
    assert "(frequent 4 tokens)" in found.draft.name
    tree = found.draft.new_tree(4)
    (scores,) = found.draft.forward([Extension(found.draft, tree, (5,), rows=(0,))])
    proposed = set(torch.isfinite(scores.logits[0]).nonzero()[:, 0].tolist())
    assert proposed >= set(ranked(found.tokenizer, path)[:4])
    assert len(proposed) < 64


def test_what_cannot_be_shortened_is_refused() -> None:
    with pytest.raises(UserError, match="--draft-vocab is 0: give 1 to"):
        load_pair(options=LoadOptions(draft_vocab=0))
    with pytest.raises(UserError, match="give both"):
        LoadOptions(draft_vocab_text=Path("text"))
    with pytest.raises(UserError, match="give a number of tokens, or N:FILE"):
        parse_vocab("many")
    with pytest.raises(UserError, match="give --draft PATH"):
        load_pair(draft="self", options=LoadOptions(draft_vocab=10))
