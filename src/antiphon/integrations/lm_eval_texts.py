"""Texts and conversations as token ids, in the way lm_eval's own models read them."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError

from antiphon.errors import UserError
from antiphon.models.pair import ModelPair


class Texts:
    """What lm_eval asks of a model's tokenizer.

    Attributes:
        pair: the models; they share the tokenizer.
        tokenizer: the transformers tokenizer.
    """

    pair: ModelPair
    tokenizer: Any
    _template: str | None  # The chat template that was chosen by name; None: the default one.

    @property
    def eot_token_id(self) -> int:
        own = self.tokenizer.eos_token_id
        if own is None and not self.pair.eos_token_ids:
            raise UserError(f"{self.pair.target.name} has no end token: add one to its tokenizer")
        return min(self.pair.eos_token_ids) if own is None else int(own)

    @property
    def prefix_token_id(self) -> int:
        """What an empty context is read as: BOS, or EOS where there is no BOS."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: object
    ) -> list[int]:
        """Token ids; by default as the tokenizer does it, but never a BOS before a BOS."""
        bos = self.tokenizer.bos_token
        if add_special_tokens is None:
            add_special_tokens = not (bos and string.startswith(bos))
        ids: list[int] = self.tokenizer(string, add_special_tokens=add_special_tokens).input_ids
        return ids

    @property
    def tokenizer_name(self) -> str:
        """Part of the names of lm_eval's cached requests."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation; without `add_generation_prompt` its last turn stays open.

        Raises UserError where there is no template, or where it refuses the conversation.
        """
        if not self.tokenizer.chat_template:
            raise UserError(
                f"{self.pair.target.name} has no chat template: drop --apply_chat_template"
            )
        try:
            text: str = self.tokenizer.apply_chat_template(
                chat_history,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        except TemplateError as error:
            raise UserError(
                f"the chat template refuses this conversation ({error}): "
                "drop --system_instruction, or --fewshot_as_multiturn"
            ) from error
        return text
