"""Which engines can race, where their environments are, and what their workers are to load."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.bench.peers.dense import dense_folder
from antiphon.bench.peers.process import Encode, Process
from antiphon.cache import cache_home
from antiphon.errors import UserError
from antiphon.models import source

WORKERS = Path(__file__).parent / "workers"
WEIGHTS = {"int8": "int8", "int4": "int4", "bfloat16": "bf16", "float32": "fp32"}
"""Precision -> what OpenVINO's exporter calls it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to run one engine.

    Attributes:
        engine: as `scripts/peers.sh` knows it.
        script: its worker.
        drafts: whether it speculates with the draft model.
        batches: whether it answers many prompts at once.
        reads_gguf: whether it reads the .gguf file, and not a dense folder.
    """

    engine: str
    script: str
    drafts: bool = False
    batches: bool = False
    reads_gguf: bool = False


KINDS: Mapping[str, Kind] = {
    "openvino": Kind("openvino", "openvino_genai_worker.py", batches=True),
    "openvino-speculative": Kind("openvino", "openvino_genai_worker.py", drafts=True, batches=True),
    "vllm": Kind("vllm", "vllm_worker.py", batches=True),
    "vllm-draft": Kind("vllm", "vllm_worker.py", drafts=True, batches=True),
    "llama-cpp": Kind("llama-cpp", "llama_cpp_worker.py", reads_gguf=True),
}


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """How peers are to run.

    Attributes:
        dtype: of transformers' and vLLM's weights.
        weights: of OpenVINO's.
        gamma: draft tokens per round.
        threads: CPU threads.
        batch: requests at once, for those that take many.
        seed: for temperatures above 0.
    """

    dtype: str = "bfloat16"
    weights: str = "int8"
    gamma: int = 4
    threads: int = 1
    batch: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise UserError(f"--peer-weights is {self.weights!r}: choose {', '.join(WEIGHTS)}")


def check(name: str, target: str) -> None:
    """Raise UserError, with the fix, for one of `KINDS` that cannot be started here."""
    kind = KINDS[name]
    python = interpreter(kind.engine)
    if not python.is_file():
        raise UserError(f"{name}: there is no Python at {python}: {how(kind.engine)}")
    if kind.reads_gguf and not target.endswith(".gguf"):
        raise UserError(f"{name} reads .gguf files alone: give one, or leave it out")


def start(
    name: str,
    target: str,
    draft: str | None,
    options: PeerOptions,
    encode: Encode,
    eos: Sequence[int],
    say: Callable[[str], None] = lambda _: None,
) -> Process:
    """Start one of `KINDS`; its weights are brought into its form first, where they have to be.

    Raises UserError, with the fix, for an engine that is not there or does not start.
    """
    kind = KINDS[name]
    check(name, target)
    wishes = {
        "gamma": options.gamma,
        "threads": options.threads,
        "batch": options.batch,
        "dtype": options.dtype,
        "weights": WEIGHTS[options.weights],
        "seed": options.seed,
    }
    for role, model in (("target", target), ("draft", draft if kind.drafts else None)):
        wishes |= _model(role, model, kind, options.weights, say)
    say(f"starting {name}")
    return Process(
        name,
        interpreter(kind.engine),
        WORKERS / kind.script,
        wishes,
        how(kind.engine),
        encode,
        eos,
        batch=options.batch if kind.batches else 1,
    )


def interpreter(engine: str) -> Path:
    """The Python of an engine's environment, by its variable or at its place in the cache."""
    named = os.environ.get(_variable(engine))
    return Path(named).expanduser() if named else cache_home() / "peers" / engine / "bin" / "python"


def how(engine: str) -> str:
    """How to get an engine's environment."""
    return (
        f"make its environment with scripts/peers.sh {engine}, "
        f"or name its Python in {_variable(engine)}"
    )


def _variable(engine: str) -> str:
    return f"ANTIPHON_PEER_{engine.upper().replace('-', '_')}"


def _model(
    role: str,
    model: str | None,
    kind: Kind,
    weights: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """A worker's wishes for one model."""
    if model is None:
        return {role: None}
    if kind.reads_gguf:
        return {role: str(Path(model).expanduser().resolve())}
    folder = dense_folder(model, say)
    exported = cache_home() / "exported" / f"{source.find(str(folder)).mark()}-{weights}"
    return {role: str(folder), f"{role}_export": str(exported)}
