"""The bundled tokenizer: lossless, digits alone, and a template that ends where solutions start."""

from __future__ import annotations

import pytest

from antiphon.lab import pair_path
from antiphon.lab.problems import problem
from antiphon.lab.tokenizer import (
    END,
    VOCABULARY,
    load_tokenizer,
    prompt_of,
    train_tokenizer,
)

TEXTS = [
    problem("test", 0).question,
    problem("test", 1).solution,
    "héllo 🎉👩‍👩‍👧 x=3+4\n\n\n 12-5 'tis Tom's  two  spaces\t$5, 3*4 ",
    "price: $1,234.50 (ok) 7 - 3 = 4...\n\nA - B -- 3 - x",
    "日本語 и русский ١٢٣",
    "",
]


@pytest.fixture(scope="module", params=["target", "draft"])
def tokenizer(request):
    return load_tokenizer(pair_path(request.param))


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_are_single_tokens(tokenizer) -> None:
    for token in tokenizer.convert_ids_to_tokens(tokenizer("120 + 7 = 127, $45.")["input_ids"]):
        assert token.isdigit() is (len(token) == 1 and token in "0123456789")
    digits = [t for t in tokenizer.get_vocab() if any(c in "0123456789" for c in t)]
    assert sorted(digits) == list("0123456789")


def test_a_step_break_is_one_token_of_its_own(tokenizer) -> None:
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("It is 3.\n\nThen 4.")["input_ids"])
    assert tokens[tokens.index("ĊĊ") - 1] == "."
    assert not [t for t in tokenizer.get_vocab() if "Ċ" in t and set(t) != {"Ċ"}]


def test_steps_tokenise_alone_as_they_do_together(tokenizer) -> None:
    drawn = problem("test", 3)
    whole = tokenizer(prompt_of(drawn.question) + drawn.solution + END)["input_ids"]
    parts = tokenizer(prompt_of(drawn.question))["input_ids"]
    for i, step in enumerate(drawn.steps):
        ending = "\n\n" if i + 1 < len(drawn.steps) else END
        parts = parts + tokenizer(step + ending)["input_ids"]
    assert parts == whole


def test_chat_template_ends_where_the_solution_starts(tokenizer) -> None:
    chat = [{"role": "user", "content": "What?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert tokenizer.decode(ids) == prompt_of("What?")
    full = [*chat, {"role": "assistant", "content": "4."}, {"role": "user", "content": "Sure?"}]
    text = tokenizer.apply_chat_template(full, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>What?<|assistant|>4.<|endoftext|><|user|>Sure?<|assistant|>"
    system = [{"role": "system", "content": "Be brief."}, *chat]
    text = tokenizer.apply_chat_template(system, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>Be brief.\n\nWhat?<|assistant|>"


def test_special_tokens(tokenizer) -> None:
    assert len(tokenizer) <= VOCABULARY
    for token in (END, "<|user|>", "<|assistant|>", "<|pad|>"):
        assert len(tokenizer(token)["input_ids"]) == 1
    assert tokenizer.eos_token == END
    assert tokenizer.pad_token == "<|pad|>"


def test_the_pair_shares_one_tokenizer() -> None:
    a, b = (pair_path(w) / "tokenizer.json" for w in ("target", "draft"))
    assert a.read_bytes() == b.read_bytes()


def test_training_is_deterministic() -> None:
    texts = [problem("train", i).question for i in range(50)]
    one, two = (train_tokenizer(texts, 300) for _ in range(2))
    assert one.get_vocab() == two.get_vocab()
