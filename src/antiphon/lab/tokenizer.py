"""The lab's tokenizer: a byte-level BPE that keeps every digit a token of its own.

Operators keep the spaces around them (` + ` is one token), a blank line is one token that no
punctuation is ever fused with, and the chat template ends exactly where a solution starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END, USER, ASSISTANT, PAD = "<|endoftext|>", "<|user|>", "<|assistant|>", "<|pad|>"
VOCABULARY = 896
MAX_LENGTH = 1024

# Alternatives in order of preference: blank line, operator between numbers, digit, `'s`, word,
# punctuation, other white space.
_PIECES = (
    r"\n\n|\n| [-+*/=] (?=\d)|\d|'s(?![\p{L}])| ?[\p{L}\p{M}]+"
    r"| ?[^\s\p{L}\p{M}\d]+?(?= [-+*/=] \d|\d|\s|\p{L}|$)|\s"
)

CHAT_TEMPLATE = (
    "{%- set ns = namespace(system='') -%}"
    "{%- for m in messages -%}"
    "{%- if m['role'] == 'system' -%}{%- set ns.system = m['content'] ~ '\n\n' -%}"
    "{%- elif m['role'] == 'user' -%}"
    "{{- '<|user|>' ~ ns.system ~ m['content'] -}}{%- set ns.system = '' -%}"
    "{%- elif m['role'] == 'assistant' -%}"
    "{{- '<|assistant|>' ~ m['content'] ~ '<|endoftext|>' -}}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """A transformers fast tokenizer trained on the texts.

    Args:
        texts: questions and solutions.
        vocabulary: upper bound on the number of tokens, the 256 bytes and 4 special ones included.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core: Any = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, USER, ASSISTANT, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer saved in a model folder."""
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(
        folder, local_files_only=True
    )
    return tokenizer


def prompt_of(question: str) -> str:
    """What the chat template renders for one question, ready for a solution to follow."""
    return f"{USER}{question}{ASSISTANT}"
