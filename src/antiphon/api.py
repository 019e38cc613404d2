"""The library's front door: load a pair, generate, stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from antiphon.costs import PairCosts, PassCosts, machine, measured
from antiphon.detokenizer import Detokenizer
from antiphon.engine import Engine, Vocabulary
from antiphon.errors import UserError
from antiphon.methods import Autoregressive, Method, Models
from antiphon.models.base import LoadedModel
from antiphon.models.pair import ModelPair
from antiphon.params import SamplingParams
from antiphon.result import Delta, Result
from antiphon.trace import TraceWriter


def generate(
    pair: ModelPair,
    prompt: str,
    method: Method | None = None,
    params: SamplingParams | None = None,
    chat: bool = True,
) -> Result:
    """Answer one prompt.

    Args:
        pair: from `load_pair`.
        prompt: the text; with `chat` it becomes the user's turn of the chat template.
        method: a method's configuration; None: `Autoregressive()`.
        params: sampling parameters; None: greedy, 256 tokens.
        chat: render the tokenizer's chat template, where it has one.

    Raises:
        UserError: before any work, for what cannot be served.
        RuntimeError: if the method itself failed.
    """
    params = params or SamplingParams()
    if params.n != 1:
        raise UserError("generate returns one sample: use generate_many for n > 1")
    ((result,),) = generate_many(pair, [prompt], method, params, chat, batch=1)
    return result


def generate_many(
    pair: ModelPair,
    prompts: Sequence[str],
    method: Method | None = None,
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    chat: bool = True,
    batch: int = 16,
) -> list[list[Result]]:
    """Answer many prompts, `batch` at a time; per prompt its ``n`` samples.

    Raises as `generate` does. Results do not depend on `batch`.
    """
    wishes = params or SamplingParams()
    each = [wishes] * len(prompts) if isinstance(wishes, SamplingParams) else list(wishes)
    method = method or Autoregressive()
    engine = make_engine(pair, batch=batch, costs=needs_costs(method))
    results = engine.generate([encode(pair, prompt, chat) for prompt in prompts], each, method)
    failed = next((r.error for group in results for r in group if r.error), None)
    if failed:
        raise RuntimeError(failed)
    return results


def stream(
    pair: ModelPair,
    prompt: str,
    method: Method | None = None,
    params: SamplingParams | None = None,
    chat: bool = True,
) -> Iterator[Delta]:
    """Deltas of one prompt's samples as they come; the last one of each holds its result."""
    method = method or Autoregressive()
    engine = make_engine(pair, costs=needs_costs(method))
    return engine.stream(encode(pair, prompt, chat), params or SamplingParams(), method)


def make_engine(
    pair: ModelPair, batch: int = 16, costs: bool = False, trace: TraceWriter | None = None
) -> Engine:
    """An engine over a loaded pair.

    Args:
        batch: requests in flight at once.
        costs: measure both models' pass costs (once per machine), for methods that need them.
        trace: where finished requests write their rounds.
    """
    measured_costs = pair_costs(pair) if costs else None
    vocabulary = Vocabulary(
        detokenizer=lambda prompt: Detokenizer(pair.tokenizer, prompt),
        eos_token_ids=pair.eos_token_ids,
    )
    models = Models(
        pair.target,
        pair.draft,
        measured_costs,
        pair.profile,
        pair.fingerprint,
        encode=lambda text: tuple(pair.tokenizer.encode(text, add_special_tokens=False)),
    )
    return Engine(models, vocabulary, batch, trace)


def needs_costs(method: Method) -> bool:
    """Whether a method chooses its sizes by measured pass costs."""
    return "auto" in (getattr(method, "gamma", None), getattr(method, "particles", None))


def pair_costs(
    pair: ModelPair, fresh: bool = False, say: Callable[[str], None] = lambda _: None
) -> PairCosts:
    """Both models' pass costs: from the pair's profile, this machine's store, or measured now.

    A profile's costs count on the machine they were taken on alone.
    """
    profile = pair.profile
    if not fresh and profile is not None and profile.machine == machine_and_precision(pair):
        return PairCosts(
            PassCosts({int(r): s for r, s in profile.target_seconds.items()}),
            PassCosts({int(r): s for r, s in profile.draft_seconds.items()})
            if pair.draft is not None
            else None,
        )

    def costs_key(model: LoadedModel) -> str:
        shape = (model.layers, model.config.hidden_size, model.vocab_size)
        return f"{type(model).__name__} {model.precision} {model.device} {shape}"

    draft = pair.draft
    return PairCosts(
        target=measured(pair.target, costs_key(pair.target), fresh, say),
        draft=measured(draft, costs_key(draft), fresh, say) if draft is not None else None,
    )


def machine_and_precision(pair: ModelPair) -> str:
    """Where and how a pair runs: pass costs are comparable where this is the same."""
    return f"{pair.description}; {machine()}"


def encode(pair: ModelPair, prompt: str, chat: bool = True) -> tuple[int, ...]:
    """Token ids of a prompt, through the chat template if there is one and `chat` is set."""
    tokenizer = pair.tokenizer
    if chat and getattr(tokenizer, "chat_template", None):
        return encode_messages(pair, [{"role": "user", "content": prompt}])
    return tuple(tokenizer(prompt).input_ids)


def encode_messages(pair: ModelPair, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
    """Token ids of a conversation, ending where the assistant's answer begins."""
    if not getattr(pair.tokenizer, "chat_template", None):
        raise UserError(f"{pair.target.name} has no chat template: use --no-chat")
    text = pair.tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=True
    )
    return tuple(pair.tokenizer(text, add_special_tokens=False).input_ids)
