"""lm-evaluation-harness: antiphon as its model ``antiphon``; docs/lm-eval.md says what is honoured.

Versions of lm_eval that read the entry points ``lm_eval.models`` find the class by themselves.
For the others this file is a command that registers it first, then runs lm_eval's own::

    python -m antiphon.integrations.lm_eval --model antiphon --model_args gamma=4 --tasks gsm8k
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from antiphon.api import make_engine, needs_costs
from antiphon.errors import UserError
from antiphon.integrations.likelihood import Likelihood, Tokens, likelihoods
from antiphon.integrations.lm_eval_arguments import (
    count,
    in_flight,
    logger,
    method_and_models,
    path,
    sampling_params,
    with_flags,
)
from antiphon.integrations.lm_eval_texts import Texts
from antiphon.methods import spec
from antiphon.models.pair import LoadOptions, load_pair
from antiphon.params import SamplingParams

try:
    # lm_eval lists its own models only while its registry is empty: so they go first.
    import lm_eval.models  # noqa: F401
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import (
        get_rolling_token_windows,
        make_disjoint_window,
        simple_parse_args_string,
    )
    from tqdm import tqdm
except ModuleNotFoundError as error:
    missing = str(error.name).partition(".")[0]
    raise UserError(f"{missing} is missing: pip install 'antiphon[lm-eval]'") from error


class AntiphonLM(Texts, TemplateLM):  # type: ignore[misc]
    """A pair of models and a method, as a model of lm_eval.

    Texts come from the engine; likelihoods are the target's alone, since a method's own
    distribution has none in general.

    Args:
        target, draft: folder, ``.gguf`` file or hub id; the draft also "self" or "ngram".
            Without a target: the bundled pair.
        method: a name in `METHODS`; None: speculative where there is a draft.
        dtype, target_quant, draft_quant, device: as in `LoadOptions`.
        threads: CPU threads; None: PyTorch's own number.
        profile: file with the pair's thresholds; None: as in `load_pair`.
        batch: requests in flight at once; None: lm_eval's `batch_size`, or 16.
        batch_size: what lm_eval passes: a number, or "auto" for 16.
        fields: the fields of the method's configuration.

    Raises:
        UserError: before any model is loaded, for an argument that is unknown, out of range
            or without effect; while loading, as `load_pair` does.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | None = None,
        draft: str | os.PathLike[str] | None = None,
        method: str | None = None,
        dtype: str = "auto",
        target_quant: str = "none",
        draft_quant: str = "none",
        device: str | None = None,
        threads: int | None = None,
        profile: str | os.PathLike[str] | None = None,
        batch: int | None = None,
        batch_size: int | str | None = None,
        **fields: object,
    ) -> None:
        super().__init__()
        self.method, big, small = method_and_models(target, draft, method, draft_quant, fields)
        self.batch = in_flight(batch, batch_size)
        thresholds = path("profile", profile)
        options = LoadOptions(device or "auto", dtype, target_quant, draft_quant)
        if threads is not None:
            torch.set_num_threads(count("threads", threads))
        self.pair = load_pair(
            *(big, small, options, logger.info), Path(thresholds) if thresholds else None
        )
        self.tokenizer = self.pair.tokenizer
        self._device = self.pair.target.device
        self._template = None

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> AntiphonLM:
        """From lm_eval's --model_args, and from what it passes beside them, such as --device."""
        return cls(**with_flags(arg_dict, additional_config or {}))

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> AntiphonLM:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def get_model_info(self) -> dict[str, str]:
        """What lm_eval writes beside its results: the models and the method."""
        return {"models": self.pair.description, "method": spec.describe(self.method)}

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template in use; a name chooses among the tokenizer's, where it has several."""
        template: str | None = super().chat_template(chat_template)
        self._template = template if isinstance(chat_template, str) else None
        return template

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """One text per request, cut before its stop string; order and meaning are lm_eval's.

        Raises UserError, before any text is written, for generation arguments that are unknown
        or out of range; RuntimeError if the method itself failed.
        """
        wishes: dict[tuple[Tokens, SamplingParams], list[int]] = {}
        for index, wish in enumerate(self._wishes(requests)):
            wishes.setdefault(wish, []).append(index)
        engine = make_engine(self.pair, self.batch, needs_costs(self.method))
        places: dict[str, list[int]] = {}
        longest_first = sorted(wishes.items(), key=lambda item: -len(item[0][0]))
        for (prompt, params), indices in longest_first:
            # Repeats of one request are samples of it; greedy ones cannot differ.
            groups = [indices] if params.greedy else [[index] for index in indices]
            params = dataclasses.replace(params, n=len(groups), seed=_seed(params))
            places |= zip(engine.submit(prompt, params, self.method), groups, strict=True)
        texts = [""] * len(requests)
        tokens = drafted = 0
        began = time.perf_counter()
        with tqdm(total=len(requests), disable=disable_tqdm, desc="antiphon: generate") as bar:
            while engine.busy:
                for result in filter(None, (delta.result for delta in engine.step())):
                    if result.error:
                        raise RuntimeError(result.error)
                    tokens += len(result.token_ids)
                    drafted += result.provenance.count("draft")
                    for index in places[result.request]:
                        texts[index] = result.text
                        self.cache_hook.add_partial(
                            "generate_until", requests[index].args, result.text
                        )
                        bar.update()
        seconds = time.perf_counter() - began
        logger.info(
            "%s: %d tokens in %.1f s, %.1f a second; %d of them are the draft's",
            *(spec.describe(self.method), tokens, seconds, tokens / max(seconds, 1e-9), drafted),
        )
        return texts

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-probability of whole texts under the target, in nats; long ones in windows."""
        windows, owners = [], []
        for owner, request in enumerate(requests):
            for window in get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.pair.target.context_length,
                context_len=1,
            ):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(owner)
        totals = [0.0] * len(requests)
        scored = self._loglikelihood_tokens(windows, disable_tqdm)
        for owner, (logprob, _) in zip(owners, scored, strict=True):
            totals[owner] += logprob
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: object,
    ) -> list[Likelihood]:
        """Score tokenised pairs; a context too long for the target loses its beginning."""
        longest = self.pair.target.context_length
        pairs: list[tuple[Tokens, Tokens]] = []
        cut = 0
        for texts, context, continuation in requests:
            if not 0 < len(continuation) <= longest:
                raise UserError(
                    f"a continuation has {len(continuation)} tokens ({texts!r:.80}): "
                    f"the target can judge 1 to {longest}"
                )
            kept = context[-(longest + 1 - len(continuation)) :]
            cut += len(kept) < len(context)
            pairs.append((tuple(kept), tuple(continuation)))
        if cut:
            logger.warning(
                "%d of %d texts exceed the target's context of %d tokens: cut on the left",
                *(cut, len(pairs), longest),
            )
        answers: list[Likelihood] = [(0.0, False)] * len(pairs)
        with tqdm(total=len(pairs), disable=disable_tqdm, desc="antiphon: loglikelihood") as bar:
            for index, answer in likelihoods(self.pair.target, pairs, self.batch):
                answers[index] = answer
                if (texts := requests[index][0]) is not None:
                    self.cache_hook.add_partial("loglikelihood", texts, answer)
                bar.update()
        return answers

    def _wishes(self, requests: Sequence[Any]) -> list[tuple[Tokens, SamplingParams]]:
        """Prompt ids and parameters of each request; long prompts lose their beginning."""
        models = [model for model in (self.pair.target, self.pair.draft) if model is not None]
        context = min(model.context_length for model in models)
        added = self.tokenizer.get_added_vocab()
        known: dict[str, SamplingParams] = {}
        wishes, cut = [], 0
        for request in requests:
            text, arguments = request.args
            key = repr(arguments)
            if key not in known:  # A task's requests share theirs: read, and warned of, once.
                known[key] = sampling_params(arguments, added)
            room = context - known[key].max_tokens
            if room < 1:
                raise UserError(
                    f"max_gen_toks is {known[key].max_tokens}, but the models' context is "
                    f"{context}, prompt included: lower it"
                )
            ids = self.tok_encode(text) or [self.prefix_token_id]
            cut += len(ids) > room
            wishes.append((tuple(ids[-room:]), known[key]))
        if cut:
            logger.warning(
                "%d of %d prompts and their max_gen_toks exceed the context of %d tokens: "
                "these prompts are cut on the left",
                *(cut, len(wishes), context),
            )
        return wishes


def _seed(params: SamplingParams) -> int | None:
    """The seed asked for; else one from the generator that lm_eval's --seed governs."""
    if params.seed is not None or params.greedy:
        return params.seed
    return int(torch.randint(2**62, ()))


def main() -> None:
    """Run lm_eval's own command; a user's mistake is one line and exit status 2."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    # As a command this file has another name, and another class, than the one others import.
    from antiphon.integrations import lm_eval as importable

    importable.main()
else:
    register_model("antiphon")(AntiphonLM)
