"""Worker: vLLM in this process, plain or with a draft model; a lap's prompts go in at once."""

from __future__ import annotations

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
        disable_log_stats=False,  # They hold the time of the first token.
        seed=wishes["seed"],
        **speculation,
    )

    def answer(lap: Message) -> Message:
        params = vllm.SamplingParams(
            temperature=lap["temperature"],
            seed=lap["seed"] if lap["temperature"] else None,
            max_tokens=lap["max_tokens"],
            stop_token_ids=lap["eos"],
            detokenize=False,
        )
        prompts = [{"prompt_token_ids": ids} for ids in lap["prompts"]]
        began = time.perf_counter()
        outputs = engine.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        answers = []
        for output in outputs:
            first = getattr(output.metrics, "first_token_latency", None)
            answers.append(answered(list(output.outputs[0].token_ids), first or None, 1))
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
