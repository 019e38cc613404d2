"""The flags that commands share, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from antiphon.errors import UserError
from antiphon.methods import METHODS, Autoregressive, Method, Speculative
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
DraftQuant = Annotated[
    str, typer.Option(help="Draft weights: none, int8, int4 (CPU).", rich_help_panel=_MODELS)
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
        help=f"{', '.join(METHODS)}. Default: speculative where there is a draft.",
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


def build_method(
    name: str | None,
    draft: str | None,
    has_draft: bool,
    gamma: str | None = None,
    chains: int | None = None,
    confidence: float | None = None,
) -> Method:
    """The method the flags describe.

    Raises UserError for an unknown method, and for a flag that the method would ignore.
    """
    drafting = {"--gamma": gamma, "--chains": chains, "--confidence": confidence}
    if name is None:
        name = "speculative" if has_draft or draft == "ngram" else "autoregressive"
    if name not in METHODS:
        raise UserError(f"--method is {name!r}: choose {', '.join(METHODS)}")
    if name == "autoregressive":
        ignored = next((flag for flag, value in drafting.items() if value is not None), None)
        if ignored:
            raise UserError(f"{ignored} does nothing for --method autoregressive: drop it")
        return Autoregressive()
    return Speculative(
        gamma=4 if gamma is None else parse_gamma(gamma),
        drafter="ngram" if draft == "ngram" else "model",
        chains=1 if chains is None else chains,
        confidence=0.0 if confidence is None else confidence,
    )


def parse_gamma(text: str) -> int | Literal["auto"]:
    """Read a block length: a whole number or "auto"; the method judges its size."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise UserError(f"--gamma is {text!r}: give a whole number >= 1, or 'auto'") from None


def load(
    target: str | None,
    draft: str | None,
    device: str = "auto",
    dtype: str = "auto",
    target_quant: str = "none",
    draft_quant: str = "none",
    threads: int | None = None,
    profile: Path | None = None,
    quiet: bool = False,
) -> ModelPair:
    """Load the pair the flags describe; the memory budget goes to standard error."""
    import torch

    if threads is not None:
        if threads < 1:
            raise UserError(f"--threads is {threads}: give a whole number >= 1")
        torch.set_num_threads(threads)
    options = LoadOptions(device, dtype, target_quant, draft_quant)
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
