"""The flags that commands share, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from antiphon.errors import UserError
from antiphon.methods import METHODS, Method, spec
from antiphon.models.pair import LoadOptions, ModelPair, load_pair
from antiphon.params import SamplingParams

_MODELS, _METHOD, _TEXT = "Models", "Method", "Sampling"

Target = Annotated[
    str | None,
    typer.Option(
        help="Folder, .gguf file or hub id. Default: the bundled pair.", rich_help_panel=_MODELS
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        help="The same, or 'self' (the target drafts for itself), or 'ngram' (prompt lookup).",
        rich_help_panel=_MODELS,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.", rich_help_panel=_MODELS)]
Dtype = Annotated[
    str, typer.Option(help="auto, float32, bfloat16, float16.", rich_help_panel=_MODELS)
]
TargetQuant = Annotated[
    str, typer.Option(help="Target weights: none, int8, int4 (CPU).", rich_help_panel=_MODELS)
]
Engine = Annotated[
    str,
    typer.Option(
        help="auto, eager, traced (CPU), openvino (CPU, extra 'cpu'), graphed (CUDA).",
        rich_help_panel=_MODELS,
    ),
]
DraftQuant = Annotated[
    str, typer.Option(help="Draft weights: none, int8, int4 (CPU).", rich_help_panel=_MODELS)
]
DraftVocab = Annotated[
    str | None,
    typer.Option(
        "--draft-vocab",
        help="N or N:FILE. Let the draft propose N tokens alone, those of the lowest ids or the "
        "most frequent ones in a text or JSONL; faster, and as exact.",
        rich_help_panel=_MODELS,
    ),
]
Profile = Annotated[
    Path | None,
    typer.Option(
        help="The pair's thresholds, from antiphon calibrate. The bundled pair has its own.",
        rich_help_panel=_MODELS,
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="CPU threads. Default: PyTorch's.", rich_help_panel=_MODELS)
]
MethodName = Annotated[
    str | None,
    typer.Option(
        "--method",
        help=f"{', '.join(METHODS)}; NAME:field=value,... sets any field. "
        "Default: speculative where there is a draft.",
        rich_help_panel=_METHOD,
    ),
]
Gamma = Annotated[
    str | None,
    typer.Option(help="Draft tokens per round, or 'auto'. Default: 4.", rich_help_panel=_METHOD),
]
Chains = Annotated[
    int | None,
    typer.Option(help="Draft chains per round (multi-draft). Default: 1.", rich_help_panel=_METHOD),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        help="Stop drafting below this top probability. Default: 0.", rich_help_panel=_METHOD
    ),
]
Rule = Annotated[
    str | None,
    typer.Option(help="Base rule; antiphon methods lists them.", rich_help_panel=_METHOD),
]
RuleArg = Annotated[
    list[str] | None,
    typer.Option(help="argument=value of the rule; may be repeated.", rich_help_panel=_METHOD),
]
Rescue = Annotated[
    str | None,
    typer.Option(help="NAME/argument=value: keeps refused tokens.", rich_help_panel=_METHOD),
]
Veto = Annotated[
    str | None,
    typer.Option(help="NAME/argument=value: refuses accepted tokens.", rich_help_panel=_METHOD),
]
VetoEntropy = Annotated[
    float | None,
    typer.Option(help="For easd: bound of both entropies, nats.", rich_help_panel=_METHOD),
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=_TEXT)]
TopK = Annotated[int, typer.Option(help="0: off.", rich_help_panel=_TEXT)]
TopP = Annotated[float, typer.Option(help="1: off.", rich_help_panel=_TEXT)]
MinP = Annotated[float, typer.Option(help="0: off.", rich_help_panel=_TEXT)]
RepetitionPenalty = Annotated[float, typer.Option(help="1: off.", rich_help_panel=_TEXT)]
PresencePenalty = Annotated[float, typer.Option(help="0: off.", rich_help_panel=_TEXT)]
FrequencyPenalty = Annotated[float, typer.Option(help="0: off.", rich_help_panel=_TEXT)]
MaxTokens = Annotated[int, typer.Option(help="Longest output.", rich_help_panel=_TEXT)]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="Text that ends the output; may be repeated.", rich_help_panel=_TEXT),
]
Seed = Annotated[int | None, typer.Option(help="Random seed.", rich_help_panel=_TEXT)]
Chat = Annotated[bool, typer.Option(help="Use the chat template.", rich_help_panel=_TEXT)]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Write on past the end token.", rich_help_panel=_TEXT)
]


def knobs(
    gamma: str | None = None,
    chains: int | None = None,
    confidence: float | None = None,
    rule: str | None = None,
    rule_arg: list[str] | None = None,
    rescue: str | None = None,
    veto: str | None = None,
    veto_entropy: float | None = None,
) -> dict[str, str]:
    """The flags that were given, as text forms of a method's fields."""
    if rule_arg and rule is None:
        raise UserError("--rule-arg needs --rule NAME: name the rule")
    if gamma is not None:
        parse_gamma(gamma)
    given = {
        "gamma": gamma,
        "chains": chains,
        "confidence": confidence,
        "rule": None if rule is None else "/".join([rule, *(rule_arg or [])]),
        "rescue": rescue,
        "veto": veto,
        "veto_entropy": veto_entropy,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def build_method(
    text: str | None, draft: str | None, has_draft: bool, given: Mapping[str, str]
) -> Method:
    """The method that --method and the flags of its fields describe.

    Raises UserError for an unknown method, and for a flag that the method would ignore.
    """
    if text is None:
        text = "speculative" if has_draft or draft == "ngram" else "autoregressive"
    method = spec.parse(text)
    for name in given:
        if not hasattr(method, name):
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} does nothing for --method {text}: drop it")
    if draft == "ngram" and text != "autoregressive":
        if not hasattr(method, "drafter"):
            raise UserError(f"--method {text} needs a draft model: give --draft PATH")
        given = {**given, "drafter": "ngram"}
    return spec.with_fields(method, given)


def parse_gamma(text: str) -> int | Literal["auto"]:
    """Read a block length: a whole number or "auto"; the method judges its size."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise UserError(f"--gamma is {text!r}: give a whole number >= 1, or 'auto'") from None


def parse_vocab(text: str | None) -> tuple[int | None, Path | None]:
    """``N`` or ``N:FILE`` of --draft-vocab; the pair judges the number."""
    if text is None:
        return None, None
    number, _, path = text.partition(":")
    try:
        return int(number), Path(path).expanduser() if path else None
    except ValueError:
        raise UserError(f"--draft-vocab is {text!r}: give a number of tokens, or N:FILE") from None


def load(
    target: str | None,
    draft: str | None,
    device: str = "auto",
    dtype: str = "auto",
    target_quant: str = "none",
    draft_quant: str = "none",
    threads: int | None = None,
    profile: Path | None = None,
    engine: str = "auto",
    head: str | None = None,
    quiet: bool = False,
) -> ModelPair:
    """Load the pair the flags describe; the memory budget goes to standard error."""
    import torch

    if threads is not None:
        if threads < 1:
            raise UserError(f"--threads is {threads}: give a whole number >= 1")
        torch.set_num_threads(threads)
    tokens, text = parse_vocab(head)
    options = LoadOptions(
        device,
        dtype,
        target_quant,
        draft_quant,
        engine=engine,
        draft_vocab=tokens,
        draft_vocab_text=text,
    )
    model_draft = None if draft == "ngram" else draft
    if target is None and draft == "ngram":
        from antiphon.lab import pair_path

        target = str(pair_path("target"))
    bundled = target is None

    def say(line: str) -> None:
        # The bundled pair always fits: its budget would only be noise.
        if not bundled and not quiet:
            typer.echo(line, err=True)

    return load_pair(target, model_draft, options, say, profile)


def sampling(**fields: object) -> SamplingParams:
    """Sampling parameters from flags; None means the default."""
    given = {name: value for name, value in fields.items() if value is not None}
    return SamplingParams(**given)  # type: ignore[arg-type]
