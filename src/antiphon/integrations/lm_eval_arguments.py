"""What lm_eval's users write, as our objects: model arguments, and generation arguments.

Nothing is ignored in silence: what is unknown, or would have no effect, is refused by its name.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import Any

import torch

from antiphon.errors import UserError
from antiphon.lab import pair_path
from antiphon.methods import METHODS, Method, spec
from antiphon.models.pair import SELF
from antiphon.params import SamplingParams

# A child of lm_eval's own logger, so that its levels and its format hold for these lines too.
logger = logging.getLogger("lm_eval.antiphon")

BATCH = 16
"""Requests in flight where neither `batch` nor lm_eval's `batch_size` says a number."""
MAX_GEN_TOKS = 256
"""The longest output where a task does not say; lm_eval's own models have the same."""
TARGET_ALONE = ("autoregressive", "majority")
"""Methods that ask no draft."""

_MODEL_ARGUMENTS = (
    "target draft method dtype target_quant draft_quant device threads profile batch".split()
)
# What lm_eval's command passes where its flag was not given.
_FLAG_DEFAULTS = {"batch_size": 1, "device": "cuda:0"}
# lm_eval takes each of these for the first one.
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_AS_THEY_ARE = (
    "top_k top_p min_p repetition_penalty presence_penalty frequency_penalty logit_bias "
    "stop_token_ids ignore_eos seed".split()
)


def with_flags(arguments: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Model arguments, completed by lm_eval's flags; None as a flag's value: not given.

    Raises UserError where a flag was given and contradicts an argument.
    """
    merged = dict(arguments)
    for name, value in flags.items():
        if value is None:
            continue
        default = value == _FLAG_DEFAULTS.get(name)
        if name == "device" and default and not torch.cuda.is_available():
            continue  # Not a wish, and lm_eval's own models take the CPU then too.
        if merged.setdefault(name, value) != value and not default:
            raise UserError(
                f"{name} is {merged[name]!r} and --{name} is {value!r}: give one of them"
            )
    return merged


def method_and_models(
    target: object, draft: object, name: str | None, draft_quant: str, fields: Mapping[str, object]
) -> tuple[Method, str | None, str | None]:
    """The configured method, and the target and the draft to load for it, as `load_pair` says.

    Args:
        target, draft: as the user gave them; no target: the bundled pair.
        name: of the method; None: speculative where there is a draft.
        draft_quant: "none" is the default, which may always stand.
        fields: the fields of the method's configuration; None as a value: not given.

    Raises:
        UserError: for what is unknown, contradicts itself or would have no effect.
    """
    target, draft = path("target", target), path("draft", draft)
    given = {key: value for key, value in fields.items() if value is not None}
    if draft == "ngram" and given.setdefault("drafter", "ngram") != "ngram":
        raise UserError(f"draft is 'ngram' and drafter is {given['drafter']!r}: drop one of them")
    ngram = given.get("drafter") == "ngram"
    draft = None if draft == "ngram" else draft
    if name is None:
        name = "speculative" if ngram or draft or target is None else "autoregressive"
    if name in METHODS:
        known = [field.name for field in dataclasses.fields(METHODS[name])]
        unknown = next((key for key in given if key not in known), None)
        if unknown:
            raise UserError(
                f"the model argument {unknown!r} is not known with method={name}: drop it, "
                f"or choose among {', '.join([*_MODEL_ARGUMENTS, *known])}"
            )
    method = spec.build(name, {key: str(value) for key, value in given.items()})
    drafts = name not in TARGET_ALONE and not ngram
    idle = "draft" if draft else "draft_quant" if draft_quant != "none" else None
    if idle and not drafts:
        raise UserError(f"{idle} does nothing for {spec.describe(method)}: drop it")
    if draft == SELF and draft_quant != "none":
        raise UserError("draft_quant does nothing for draft=self: use target_quant")
    if drafts and draft is None and target is not None:
        raise UserError(f"method={name} needs a draft: give draft=PATH or draft=self")
    if target is None and not drafts:  # Without a path, the bundled draft would be loaded too.
        target = str(pair_path("target"))
    return method, target, draft


def in_flight(batch: object, batch_size: object) -> int:
    """Requests in flight: `batch`, or lm_eval's `batch_size`, which is 1 where nobody set it.

    Raises UserError for a number that is none, and where both are set and differ.
    """
    automatic = batch_size is None or str(batch_size).split(":")[0] == "auto"
    if isinstance(batch_size, str) and batch_size.isdigit():
        batch_size = int(batch_size)
    size = BATCH if automatic else count("batch_size", batch_size)
    if batch is None:
        return size
    if not automatic and size not in (1, batch):
        raise UserError(f"batch is {batch!r} and --batch_size is {size}: give one of them")
    return count("batch", batch)


def path(name: str, value: object) -> str | None:
    """The text of a path or hub id; raises UserError for anything else."""
    if value is None or isinstance(value, str | os.PathLike):
        return None if value is None else str(os.fspath(value))
    raise UserError(f"{name} is {value!r}: give the text of a path")


def count(name: str, value: object) -> int:
    """A whole number of at least 1; raises UserError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{name} is {value!r}: give a whole number >= 1")
    return value


def sampling_params(
    arguments: Mapping[str, Any], added: Mapping[str, int] | None = None
) -> SamplingParams:
    """Sampling parameters from generation arguments.

    Args:
        arguments: a task's ``generation_kwargs``, with --gen_kwargs merged in; None as a value:
            not given.
        added: tokens beside the ordinary vocabulary, such as ``<|im_end|>``, and their ids. A
            text does not show them, so as stop strings they stop by their id.

    Raises:
        UserError: for an argument that is unknown, out of range or contradicts another.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    until = given.pop("until", ())
    if isinstance(until, list | tuple):
        until = tuple(stop for stop in until if stop != "")  # "" stops nothing in lm_eval either.
    lengths = {name: given.pop(name) for name in _LENGTHS if name in given}
    if len(set(lengths.values())) > 1:
        raise UserError(f"generation arguments differ: {lengths}: give max_gen_toks alone")
    temperature = _temperature(given.pop("temperature", 0.0), given.pop("do_sample", None))
    for name in ("num_beams", "num_return_sequences"):
        if given.pop(name, 1) != 1:
            raise UserError(f"{name} is {arguments[name]!r}: antiphon has only 1")
    unknown = next((name for name in given if name not in _AS_THEY_ARE), None)
    if unknown:
        raise UserError(
            f"the generation argument {unknown!r} is not known: drop it, or choose among until, "
            f"do_sample, temperature, max_gen_toks, {', '.join(_AS_THEY_ARE)}"
        )
    try:
        params = SamplingParams(
            temperature=temperature,
            max_tokens=count(*next(iter(lengths.items()), ("max_gen_toks", MAX_GEN_TOKS))),
            stop=until,
            **given,
        )
    except UserError as error:
        raise UserError(f"generation arguments: {error}") from error
    hidden = [added[stop] for stop in params.stop if added and stop in added]
    return dataclasses.replace(params, stop_token_ids=(*params.stop_token_ids, *hidden))


def _temperature(temperature: Any, do_sample: object) -> Any:
    """What lm_eval's own models make of the two: `do_sample` False is greedy."""
    if do_sample not in (None, True, False):
        raise UserError(f"do_sample is {do_sample!r}: use True or False")
    if do_sample and not temperature:
        raise UserError("do_sample is True, but temperature is 0: set temperature above 0")
    if do_sample is False and temperature:
        logger.warning("do_sample is False: greedy, temperature %s does not count", temperature)
        return 0.0
    return temperature
