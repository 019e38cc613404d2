"""Worker: vLLM in this process, plain or with a draft model; a lap's prompts go in at once."""

from __future__ import annotations

import itertools
import json
import os
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from peer_protocol import Answer, Message, answered, serve

LONGEST = 4096


def set_up(wishes: Message) -> tuple[Message, Answer]:
    """Set the environment, which is read at the import, then load."""
    cores = sorted(os.sched_getaffinity(0))[: wishes["threads"]]
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(wishes["threads"]),
        # Threads that are not bound wait for one another spinning, and stall on a shared machine.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    import vllm
    from vllm.sampling_params import RequestOutputKind

    speculation: dict[str, Any] = {}
    if wishes["draft"]:
        speculation["speculative_config"] = {
            "method": "draft_model",
            "model": wishes["draft"],
            "num_speculative_tokens": wishes["gamma"],
        }
    folders = [folder for folder in (wishes["target"], wishes["draft"]) if folder]
    engine = vllm.LLM(
        wishes["target"],
        dtype=wishes["dtype"],
        max_model_len=min(LONGEST, *map(positions, folders)),
        max_num_seqs=wishes["batch"],
        enforce_eager=True,
        # Laps of one prompt repeat: a cached prompt would be read for nothing.
        enable_prefix_caching=False,
        seed=wishes["seed"],
        **speculation,
    )

    numbers = itertools.count()

    def answer(lap: Message) -> Message:
        params = vllm.SamplingParams(
            temperature=lap["temperature"],
            seed=lap["seed"] if lap["temperature"] else None,
            max_tokens=lap["max_tokens"],
            stop_token_ids=lap["eos"],
            detokenize=False,
            output_kind=RequestOutputKind.CUMULATIVE,
        )
        names = [str(next(numbers)) for _ in lap["prompts"]]
        # Step by step, as `LLM.generate` does it, to see when every text had begun.
        requests = engine.llm_engine
        written: dict[str, list[int]] = {}
        first, early = None, {}
        began = time.perf_counter()
        for name, ids in zip(names, lap["prompts"], strict=True):
            requests.add_request(name, {"prompt_token_ids": ids}, params)
        while requests.has_unfinished_requests():
            for output in requests.step():
                written[output.request_id] = list(output.outputs[0].token_ids)
            if first is None and len(written) == len(names) and all(written.values()):
                first = time.perf_counter() - began
                early = {name: len(ids) for name, ids in written.items()}
        seconds = time.perf_counter() - began
        answers = [answered(written[name], first, early.get(name, 0)) for name in names]
        return {"seconds": seconds, "answers": answers}

    about = {"vllm": installed(), "dtype": wishes["dtype"], "threads": wishes["threads"]}
    return about, answer


def positions(folder: str) -> int:
    """Tokens a model can hold."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return int(config.get("max_position_embeddings", LONGEST))


def installed() -> str:
    """The version, of whichever build it is."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "unknown"


if __name__ == "__main__":
    serve(set_up)
