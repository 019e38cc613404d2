"""Laws of detokenization: the pieces are the whole, and no piece is taken back."""

import os.path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from antiphon.detokenizer import Detokenizer, Pieces
from antiphon.errors import UserError

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
CORPUS = [
    "the cat sat on the mat, the hat is that fat cat's",
    "naïve café 你好 世界 👩‍👩‍👧 🇫🇷 e\u0301 don't stop",
] * 4


def byte_level() -> Tokenizer:
    """GPT-2, Llama 3, Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT: a token's space depends on its place, punctuation pulls up to the word before."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    trainer = trainers.WordPieceTrainer(
        vocab_size=150, special_tokens=["<s>", "</s>", "[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def metaspace() -> Tokenizer:
    """T5, XLNet: the first token of a text loses its space."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=["<s>", "</s>", "<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Llama 2, Gemma, Mistral: metaspace pieces, and a token for every byte."""
    pieces = ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "t", "h", "e", "▁the", "▁▁", "é", "世", "a▁b", REPLACEMENT]
    vocab = {piece: token for token, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>"])
    return tokenizer


TOKENIZERS = {build.__name__: build() for build in (byte_level, word_piece, metaspace)}
FALLBACK = byte_fallback()


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True)


def expected(tokenizer: Tokenizer, prompt: list[int], output: list[int]) -> str:
    """Decode of all, less what it shares with the decode of the prompt.

    That is the whole decode of the prompt, unless the prompt ends inside a character.
    """
    full = decode(tokenizer, prompt + output)
    return full[len(os.path.commonprefix([full, decode(tokenizer, prompt)])) :]  # noqa: RUF071


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Real text, mixed with ids at random: special tokens and broken characters too."""
    text = st.text("the cat, 👩‍👧é好\u0301🇫", max_size=6).map(lambda t: tokenizer.encode(t).ids)
    noise = st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=4)
    return st.lists(st.one_of(text, noise), max_size=5).map(lambda runs: sum(runs, []))  # noqa: RUF017


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60)
@given(data=st.data())
def test_pieces_are_the_whole_and_none_is_taken_back(name, data):
    """Guards against lost leading spaces, broken characters and text shown too early."""
    tokenizer = TOKENIZERS[name]
    prompt, output = data.draw(ids_of(tokenizer)), data.draw(ids_of(tokenizer))
    detokenizer = Detokenizer(tokenizer, prompt)
    shown = ""
    for k, token in enumerate(output, 1):
        shown += detokenizer.push(token)
        # All that is certain is shown at once: what an unfinished character leaves open is
        # the replacements at the end, and nothing else.
        certain = expected(tokenizer, prompt, output[:k]).rstrip(REPLACEMENT)
        assert shown.rstrip(REPLACEMENT) == certain
    assert shown + detokenizer.flush() == expected(tokenizer, prompt, output)
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("text", ["👩‍👩‍👧", "é世界", "x👧y"])
def test_half_a_character_is_held_and_replaced_only_by_the_flush(text):
    """Guards against replacement characters in a stream."""
    tokenizer = TOKENIZERS["byte_level"]
    ids = [tokenizer.token_to_id(char) for char in pre_tokens(tokenizer, text)]
    for end in range(len(ids) + 1):
        detokenizer = Detokenizer(tokenizer)
        shown = "".join(detokenizer.push(token) for token in ids[:end])
        assert REPLACEMENT not in shown
        assert text.startswith(shown)
        assert shown + detokenizer.flush() == decode(tokenizer, ids[:end])


def pre_tokens(tokenizer: Tokenizer, text: str) -> str:
    """The byte alphabet's characters for ``text``: one token a byte."""
    return "".join(piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))


def test_what_precedes_an_unfinished_character_in_its_token_is_shown():
    """Guards against holding finished text because its token ends in half a character."""
    half, *rest = pre_tokens(TOKENIZERS["byte_level"], "世")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: token for token, piece in enumerate([*alphabet, "x" + half])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.decoder = decoders.ByteLevel()
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(vocab["x" + half]) == "x"
    assert [detokenizer.push(vocab[byte]) for byte in rest] == ["", "世"]


def test_a_prompt_that_ends_inside_a_character_is_not_repeated():
    """Guards against the prompt's end shown as output (DecodeStream does so)."""
    tokenizer = TOKENIZERS["byte_level"]
    ids = [tokenizer.token_to_id(char) for char in pre_tokens(tokenizer, "abc👧d")]
    detokenizer = Detokenizer(tokenizer, ids[:5])
    assert [detokenizer.push(token) for token in ids[5:]] == ["", "👧", "d"]


@pytest.mark.parametrize("name", ["metaspace", "word_piece"])
def test_leading_space_is_kept_behind_any_number_of_special_tokens(name):
    """Guards the window into the prompt: special tokens show nothing and must not fill it."""
    tokenizer = TOKENIZERS[name]
    word = tokenizer.encode("the").ids
    special = tokenizer.token_to_id("<s>")
    assert Detokenizer(tokenizer, word + [special] * 40).push(word[0]).startswith(" ")
    assert not Detokenizer(tokenizer, [special] * 40).push(word[0]).startswith(" ")


characters = st.text("the é世👧\n", max_size=8).map(
    lambda text: [
        token
        for char in text
        for token in (
            [FALLBACK.token_to_id(char)]
            if FALLBACK.token_to_id(char) is not None
            else [FALLBACK.token_to_id(f"<0x{byte:02X}>") for byte in char.encode()]
        )
    ]
)


@settings(max_examples=50)
@given(prompt=characters, output=characters)
def test_byte_fallback_pieces_are_the_whole(prompt, output):
    """Guards SentencePiece vocabularies: characters in runs of byte tokens."""
    detokenizer = Detokenizer(FALLBACK, prompt)
    shown = "".join(detokenizer.push(token) for token in output)
    assert REPLACEMENT not in shown
    assert shown + detokenizer.flush() == expected(FALLBACK, prompt, output)


def test_byte_fallback_keeps_what_was_shown_when_a_stray_byte_follows():
    """Guards against an error, a repeat or a loss where the decoder spoils a run of bytes."""

    def ids(data: bytes) -> list[int]:
        return [FALLBACK.token_to_id(f"<0x{byte:02X}>") for byte in data]

    detokenizer = Detokenizer(FALLBACK, [FALLBACK.token_to_id("t")])
    output = [*ids("👧".encode()), *ids(b"\xff\xf0"), FALLBACK.token_to_id("h")]
    assert [detokenizer.push(token) for token in output] == [
        *["", "", "", "👧"],
        *["", "", REPLACEMENT * 2 + "h"],
    ]
    assert [detokenizer.push(token) for token in ids("é👧".encode())] == ["", "é", "", "", "", "👧"]
    assert detokenizer.flush() == ""


broken = st.lists(
    st.one_of(
        st.integers(FALLBACK.token_to_id("<0x80>"), FALLBACK.get_vocab_size() - 1),
        st.sampled_from([*range(3), FALLBACK.token_to_id("▁the")]),
    ),
    max_size=12,
)


@settings(max_examples=50)
@given(prompt=broken, output=broken)
def test_byte_fallback_loses_nothing_around_broken_bytes(prompt, output):
    """Guards against an exception, a loss or a repeat where a run of bytes is no text."""
    detokenizer = Detokenizer(FALLBACK, prompt)
    shown = "".join(detokenizer.push(token) for token in output) + detokenizer.flush()
    whole = expected(FALLBACK, prompt, output)
    assert [char for char in shown if char.isascii()] == [char for char in whole if char.isascii()]


def test_transformers_tokenizers_are_accepted_and_slow_ones_refused():
    """Guards the door: a clear error rather than an attribute error in the loop."""
    fast = PreTrainedTokenizerFast(tokenizer_object=TOKENIZERS["byte_level"])
    detokenizer = Detokenizer(fast)
    assert "".join(detokenizer.push(token) for token in fast.encode("the cat")) == "the cat"
    with pytest.raises(UserError, match="a dict cannot decode incrementally: load the fast"):
        Detokenizer({1: "a"})


def test_ids_beyond_the_vocabulary_show_nothing():
    """Guards models whose vocabulary is padded beyond the tokenizer's."""
    assert Detokenizer(TOKENIZERS["byte_level"]).push(100_000) == ""


def test_pieces_map_tokens_to_text():
    """Guards the toy models' detokenizer."""
    detokenizer = Pieces(["a", "", "bc"])
    assert [detokenizer.push(token) for token in (2, 1, 0)] == ["bc", "", "a"]
    assert detokenizer.flush() == ""
