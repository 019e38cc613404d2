"""What stands for a transformers tokenizer reads and writes as that one does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.test_detokenizer import byte_level, metaspace, word_piece
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from antiphon.lab import pair_path
from antiphon.models import shapes
from antiphon.models.tokenizer import KeptTokenizer, kept, learn, unbounded


def lab() -> Any:
    return AutoTokenizer.from_pretrained(pair_path("target"))


def words() -> Any:
    return shapes.tokenizer(50)


def wrapped(make: Callable[[], Any]) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=make(),
        eos_token="</s>",
        bos_token="<s>",
        additional_special_tokens=["<a>"],
    )


TOKENIZERS: dict[str, Any] = {
    "lab": lab(),
    "words": words(),
    **{make.__name__: wrapped(make) for make in (byte_level, word_piece, metaspace)},
}
TEMPLATES = {
    "plain": "{% for m in messages %}<|{{ m['role'] }}|>{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "special": "{{ bos_token }}{% for m in messages %}\n  {{- m.content }}{{ eos_token }}"
    "{% if loop.first %}{% continue %}{% endif %}{% break %}{% endfor %}",
    "absent": "{{ pad_token }}{{ tools }}{{ documents }}{{ such }}{% if tools %}no{% endif %}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "named": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{{ ns.n }}{{ m.content }}{% endfor %}",
    "dict": "{{ dict(a=messages[0].content) | tojson }}",
    "tracked": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% endfor %}",
    "lab": str(lab().chat_template),
    "year": "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}"
    "{{ messages[-1].content }}",
}
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": " How many?\n"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<b>&'\"</b>"}],
    [
        {"role": "user", "content": "é 日本"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Why?"},
    ],
    [{"role": "user", "content": [{"type": "text", "text": "parts"}]}],
    [{"role": "user", "content": "x", "name": "somebody"}],
]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(max_size=40) | st.sampled_from(["<s>", " a</s>b ", "12 + 3 =", "Ünïcode\n\n"]))
def test_texts_are_read_as_transformers_reads_them(name: str, text: str) -> None:
    theirs, ours = TOKENIZERS[name], NEVER_LOADED[name]
    assert dict(ours(text)) == {
        name: theirs(text)[name] for name in ("input_ids", "attention_mask")
    }
    for special in (False, True):
        ids = theirs(text, add_special_tokens=special).input_ids
        assert ours(text, add_special_tokens=special).input_ids == ids
        assert ours.encode(text, add_special_tokens=special) == ids


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_is_not_known_is_asked(name: str) -> None:
    theirs, ours = TOKENIZERS[name], unread(TOKENIZERS[name])
    ids = ours("ab ab").input_ids
    assert ours.decode(ids) == theirs.decode(ids)
    assert ours(["a b", "a"]).input_ids == theirs(["a b", "a"]).input_ids
    assert ours("a b", "a").input_ids == theirs("a b", "a").input_ids
    assert ours("ab", return_offsets_mapping=True) == theirs("ab", return_offsets_mapping=True)
    assert ours("ab ab").input_ids == ids


def test_what_is_set_is_the_tokenizers_own() -> None:
    theirs, ours = wrapped(byte_level), unread(wrapped(byte_level))
    for tokenizer in (theirs, ours):
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.chat_template = "{{ messages[0].content }}{{ eos_token }}"
        tokenizer.add_tokens(["<new>"])
    assert (
        ours(["a", "a b"], padding=True).input_ids == theirs(["a", "a b"], padding=True).input_ids
    )
    assert rendered(ours, CHATS[0]) == rendered(theirs, CHATS[0])
    assert ours("a<new>").input_ids == theirs("a<new>").input_ids
    assert len(ours) == len(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    assert ours.facts == learn(theirs)


def unread(theirs: Any) -> KeptTokenizer:
    """Knows the facts alone, as after a start."""
    backend = unbounded(Tokenizer.from_str(theirs.backend_tokenizer.to_str()))
    return KeptTokenizer(learn(theirs), lambda: backend, lambda: copy.deepcopy(theirs))


def never_loaded(theirs: Any) -> KeptTokenizer:
    """Has nobody to ask."""
    return KeptTokenizer(learn(theirs), unread(theirs)._backend, lambda: 1 / 0)


NEVER_LOADED = {name: never_loaded(theirs) for name, theirs in TOKENIZERS.items()}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_facts_are_the_tokenizers(name: str) -> None:
    theirs, ours = TOKENIZERS[name], unread(TOKENIZERS[name])
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    assert len(ours) == len(theirs)
    for attribute in (
        "eos_token_id",
        "bos_token_id",
        "all_special_ids",
        "chat_template",
        "eos_token",
        "pad_token",
        "model_max_length",
        "name_or_path",
    ):
        assert getattr(ours, attribute) == getattr(theirs, attribute)
    with pytest.raises(AttributeError, match="such_a_thing"):
        _ = ours.such_a_thing
    assert copy.copy(ours).encode("a") == theirs.encode("a")


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS, ids=str)
def test_chats_are_rendered_as_transformers_renders_them(
    template: str, chat: list[dict[str, Any]]
) -> None:
    theirs = wrapped(byte_level)
    theirs.chat_template = TEMPLATES[template]
    ours = unread(theirs)
    expected = rendered(theirs, chat)
    assert rendered(ours, chat) == expected
    assert ours.apply_chat_template(chat, tokenize=False) == theirs.apply_chat_template(
        chat, tokenize=False
    )


def rendered(tokenizer: Any, chat: list[dict[str, Any]]) -> str:
    text: str = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return text


@pytest.mark.parametrize("template", ["plain", "special", "absent", "json", "named", "year", "lab"])
def test_common_templates_need_no_transformers(template: str) -> None:
    theirs = wrapped(byte_level)
    theirs.chat_template = TEMPLATES[template]
    alone = never_loaded(theirs)
    for chat in CHATS[:3]:
        assert rendered(alone, chat) == rendered(theirs, chat)


def test_a_template_that_refuses_says_what_transformers_says() -> None:
    theirs = wrapped(byte_level)
    theirs.chat_template = "{{ raise_exception('the roles must take turns') }}"
    with pytest.raises(Exception, match="take turns") as expected:
        rendered(theirs, CHATS[0])
    with pytest.raises(type(expected.value), match="take turns"):
        rendered(unread(theirs), CHATS[0])


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[-1].__subclasses__() | length }}",
        "{% set ns = namespace(__class__=1) %}{{ ns.__class__ }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}{{ ns._x }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_reaches_nothing_but_its_messages(template: str) -> None:
    theirs = wrapped(byte_level)
    theirs.chat_template = template
    with pytest.raises(Exception, match=r"unsafe|underscore"):
        rendered(unread(theirs), CHATS[0])


def test_a_tokenizer_with_ways_of_its_own_is_asked_itself() -> None:
    class Shouting(PreTrainedTokenizerFast):
        def _encode_plus(self, text: Any, *others: Any, **options: Any) -> Any:
            return super()._encode_plus(text.upper(), *others, **options)

    backend = TOKENIZERS["byte_level"].backend_tokenizer
    theirs = Shouting(tokenizer_object=backend)
    assert theirs("abc").input_ids != TOKENIZERS["byte_level"]("abc").input_ids
    assert kept(theirs)("abc").input_ids == unread(theirs)("abc").input_ids
    assert unread(theirs)("abc").input_ids == theirs("abc").input_ids
    split = PreTrainedTokenizerFast(tokenizer_object=backend, split_special_tokens=True)
    assert unread(split)("a</s>").input_ids == split("a</s>").input_ids


def test_texts_are_read_whole() -> None:
    theirs = wrapped(byte_level)
    theirs.backend_tokenizer.enable_truncation(2)
    theirs.backend_tokenizer.enable_padding(length=8)
    ours = unread(theirs)
    assert len(ours("abcdef").input_ids) > 2
    assert ours("abcdef").input_ids == theirs("abcdef").input_ids
