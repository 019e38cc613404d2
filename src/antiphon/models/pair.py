"""ModelPair: a target and its draft, checked against each other before they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from antiphon.cache import remembered
from antiphon.errors import UserError
from antiphon.models import fused, linear, packed, source
from antiphon.models.base import Extension, LoadedModel
from antiphon.models.budget import budget
from antiphon.models.compiled import program
from antiphon.models.compiled.graphed import GraphedModel
from antiphon.models.compiled.traced import NotTraceableError, TracedModel, traced
from antiphon.models.hf import HFModel
from antiphon.models.short_head import ranked
from antiphon.models.source import Source
from antiphon.models.tokenizer import KeptTokenizer
from antiphon.profile import Profile, fingerprint
from antiphon.profile import load as load_profile

SELF = "self"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ENGINES = ("auto", "eager", "traced", "openvino", "graphed")
QUANTS = ("none", *packed.QUANTISED)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a pair.

    Attributes:
        device: "cpu", "cuda", "cuda:1", "mps", or "auto": a GPU where there is one.
        dtype: "float32", "bfloat16", "float16", or "auto": bfloat16 on a GPU and on CPUs where
            that is fast (`linear.default_precision`), float32 elsewhere.
        draft_vocab: the draft proposes this many tokens alone, see `models.short_head`; None: all.
        draft_vocab_text: a file whose tokens are counted to choose them; None: the lowest ids.
        target_quant, draft_quant: "none", or weights in "int8" or "int4" (CPU).
        slots: tokens of cache to count in the memory budget.
        engine: "eager" (transformers' modules as they are), "traced" (a TorchScript graph of
            them, CPU), "openvino" (CPU, extra `cpu`), "graphed" (CUDA graphs), or "auto": traced
            on a CPU where it can be.
    """

    device: str = "auto"
    dtype: str = "auto"
    target_quant: str = "none"
    draft_quant: str = "none"
    slots: int = 2048
    engine: str = "auto"
    draft_vocab: int | None = None
    draft_vocab_text: Path | None = None

    def __post_init__(self) -> None:
        if self.draft_vocab_text is not None and self.draft_vocab is None:
            raise UserError("draft_vocab_text chooses tokens, draft_vocab says how many: give both")
        if self.dtype not in (*DTYPES, "auto"):
            raise UserError(f"dtype is {self.dtype!r}: choose auto, {', '.join(DTYPES)}")
        for field in ("target_quant", "draft_quant"):
            if getattr(self, field) not in QUANTS:
                flag = field.replace("_", "-")
                raise UserError(f"--{flag} is {getattr(self, field)!r}: choose {', '.join(QUANTS)}")
        quantised = {self.target_quant, self.draft_quant} != {"none"}
        if self.torch_device.type != "cpu" and quantised:
            raise UserError("int8 and int4 weights run on the CPU only: use --device cpu")
        if self.engine not in ENGINES:
            raise UserError(f"--engine is {self.engine!r}: choose {', '.join(ENGINES)}")
        if self.engine in ("traced", "openvino") and self.torch_device.type != "cpu":
            raise UserError(f"--engine {self.engine} runs on the CPU only: use --device cpu")

        if self.engine == "graphed" and self.torch_device.type != "cuda":
            raise UserError("--engine graphed records CUDA graphs: use --device cuda, or another")

    @property
    def torch_device(self) -> torch.device:
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(name)
        except RuntimeError:
            raise UserError(f"device is {name!r}: use cpu, cuda or cuda:N") from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"device is {name!r}, but no GPU is visible: use --device cpu")
        return device

    def precision(self, quant: str) -> str:
        """The precision name of a model's linears."""
        if quant != "none":
            return quant
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if self.torch_device.type != "cpu" else linear.default_precision()


@dataclass(frozen=True, slots=True)
class ModelPair:
    """A loaded target with its draft (None: it has none) and the tokenizer they share.

    Attributes:
        description: names, precisions and device, for people.
        fingerprint: of both configurations, see `profile.fingerprint`.
        profile: the pair's thresholds, if there are any.
    """

    target: LoadedModel
    draft: LoadedModel | None
    tokenizer: Any
    eos_token_ids: frozenset[int]
    description: str
    fingerprint: str
    profile: Profile | None = None


def load_pair(
    target: str | None = None,
    draft: str | None = None,
    options: LoadOptions | None = None,
    say: Callable[[str], None] = lambda _: None,
    profile: Path | None = None,
) -> ModelPair:
    """Check, budget and load a pair.

    Args:
        target: folder, ``.gguf`` file or hub id; None: the bundled lab pair.
        draft: the same, or "self" (the target drafts for itself); None: no draft, or the
            bundled one with the bundled target.
        options: device and precisions.
        say: receives the memory budget, before anything is loaded.
        profile: the pair's profile; None: the bundled one with the bundled pair, else none.

    Raises:
        UserError: for a model that cannot be found, read or driven, a draft with another
            vocabulary, the profile of another pair, or a pair that does not fit the memory.
    """
    options = options or LoadOptions()
    if target is None:
        from antiphon.lab import pair_path, profile_path

        target = str(pair_path("target"))
        if draft is None:
            draft = str(pair_path("draft"))
            profile = profile or profile_path()
    found = source.find(target)
    found_draft = None
    if draft not in (None, SELF):
        found_draft = source.find(str(draft))
        text = options.draft_vocab_text
        ranking = _ranking(found_draft, text) if text else ()
        found_draft = replace(found_draft, head=options.draft_vocab, ranking=ranking)
    elif options.draft_vocab is not None:
        raise UserError("--draft-vocab shortens a draft model's head: give --draft PATH")
    if found_draft is not None:
        compare(found, found_draft)
        if found.tokenizer.chat_template != found_draft.tokenizer.chat_template:
            say("note: the draft has another chat template; the target's is used for both")
    configs = [found.config, (found_draft or found).config] if draft else [found.config]
    mark = fingerprint(*configs)
    known = load_profile(profile, mark) if profile is not None else None
    real_tokens = len(found.tokenizer)

    if options.torch_device.type == "cpu":
        fused.announce(say)
    precisions = [options.precision(quant) for quant in (options.target_quant, options.draft_quant)]
    budget([found, found_draft], precisions, options.slots, options.torch_device, say)
    big = load_model(found, options.precision(options.target_quant), options, real_tokens, say)
    small: LoadedModel | None = None
    if draft == SELF:
        # The same weights under another name: the engine tells models apart by identity.
        small = big.twin()
    elif found_draft is not None:
        precision = options.precision(options.draft_quant)
        small = load_model(found_draft, precision, options, real_tokens, say)
    own = [] if found.tokenizer.eos_token_id is None else [int(found.tokenizer.eos_token_id)]
    return ModelPair(
        target=big,
        draft=small,
        tokenizer=found.tokenizer,
        eos_token_ids=frozenset({*big.eos_token_ids, *own}),
        description=_describe(big, small, options),
        fingerprint=mark,
        profile=known,
    )


def load_model(
    found: Source,
    precision: str,
    options: LoadOptions,
    real_tokens: int,
    say: Callable[[str], None] = lambda _: None,
) -> LoadedModel:
    """Load one model for its engine, and try one pass over a small tree."""
    try:
        model = _loaded(found, precision, options, real_tokens, say)
        tree = model.new_tree(4)
        model.forward([Extension(model, tree, (0, 1, 2), parents=(-1, -1, 0), rows=(0, 1, 2))])
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{found.name}: the architecture {found.config.model_type!r} cannot be driven over "
            f"trees ({type(error).__name__}): use a Llama-, Qwen-, Gemma- or Mistral-like model"
        ) from error
    return model


def _loaded(
    found: Source,
    precision: str,
    options: LoadOptions,
    real_tokens: int,
    say: Callable[[str], None],
) -> LoadedModel:
    if options.engine == "openvino":
        from antiphon.models.compiled import openvino

        return openvino.load(found, precision, real_tokens, say)
    if options.torch_device.type != "cpu":
        module = source.load(found, DTYPES[precision], options.torch_device)
        if options.engine == "graphed":
            return GraphedModel(module, found.title, real_tokens, precision)
        return HFModel(module, found.title, real_tokens, precision)
    ready = None if options.engine == "eager" else program.recall(found, precision, say)
    if ready is None:
        module = packed.prepared(found, precision, say)
        if options.engine != "eager":
            try:
                ready = traced(module)
            except NotTraceableError as error:
                if options.engine == "traced":
                    raise UserError(f"{found.name}: {error}: use --engine eager") from error
        if ready is None or not program.keep(ready, found, precision, say):
            packed.keep(module, found, precision, say)
    if ready is None:
        return HFModel(module, found.title, real_tokens, precision)
    return TracedModel(ready, found.config, found.title, real_tokens, precision)


def _ranking(found: Source, text: Path) -> tuple[int, ...]:
    """See `short_head.ranked`; the same text is counted once."""
    if not text.is_file():
        return ranked(found.tokenizer, text)  # Says what is wrong with it.
    seen = text.stat()
    name = found.mark(text.resolve(), seen.st_size, seen.st_mtime_ns)
    return tuple(remembered("ranked", name, lambda: ranked(found.tokenizer, text)))


def compare(target: Source, draft: Source) -> None:
    """Raise UserError unless both models read and write the same tokens.

    Real tokens are compared, not embedding widths: Qwen pads its tables differently.
    """
    if not _same_vocabulary(target.tokenizer, draft.tokenizer):
        ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
        differing = sum(1 for token, index in ours.items() if theirs.get(token) != index)
        differing = max(differing, abs(len(ours) - len(theirs)))
        raise UserError(
            f"{draft.name}: its vocabulary differs from {target.name}'s in {differing} of "
            f"{len(ours)} tokens: use a draft of the same family, or --draft ngram"
        )
    for name in ("eos_token_id", "bos_token_id"):
        mine, other = getattr(target.tokenizer, name), getattr(draft.tokenizer, name)
        if mine != other:
            raise UserError(
                f"{draft.name}: its {name} is {other}, {target.name}'s is {mine}: "
                "use a draft of the same family"
            )


def _same_vocabulary(ours: Any, theirs: Any) -> bool:
    if (
        isinstance(ours, KeptTokenizer)
        and isinstance(theirs, KeptTokenizer)
        and ours.facts.digest == theirs.facts.digest
    ):
        return True  # Not even read: a large vocabulary takes half a second.
    return bool(ours.get_vocab() == theirs.get_vocab())


def _describe(target: LoadedModel, draft: LoadedModel | None, options: LoadOptions) -> str:
    parts = [f"{target.name} ({options.precision(options.target_quant)})"]
    if draft is not None:
        parts.append(f"{draft.name} ({options.precision(options.draft_quant)})")
    engine = f", {options.engine}" if options.engine not in ("auto", "traced") else ""
    return " + ".join(parts) + f" on {options.torch_device}{engine}"
