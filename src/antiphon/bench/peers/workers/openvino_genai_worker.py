"""Worker: OpenVINO GenAI, plain or with a draft model; a lap's prompts go in at once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peer_protocol import Answer, Message, answered, serve

CACHE_GIB = 2


def set_up(wishes: Message) -> tuple[Message, Answer]:
    """Export what is not exported yet, then load."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    target = export(wishes["target"], wishes["target_export"], wishes["weights"])
    properties: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": wishes["threads"],
        "PERFORMANCE_HINT": "LATENCY",
    }
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    scheduler.max_num_seqs = wishes["batch"]
    # Laps of one prompt repeat: a cached prompt would be read for nothing.
    scheduler.enable_prefix_caching = False
    # Prompts are read in one pass, as `LLMPipeline`'s own default has it.
    scheduler.max_num_batched_tokens = 1 << 20
    arguments = dict(properties)
    if wishes["draft"]:
        draft = export(wishes["draft"], wishes["draft_export"], wishes["weights"])
        arguments["draft_model"] = genai.draft_model(draft, "CPU", **properties)
    # What `LLMPipeline` runs on a CPU; here each step can be seen.
    pipeline = genai.ContinuousBatchingPipeline(target, scheduler, "CPU", arguments)

    def answer(lap: Message) -> Message:
        config = genai.GenerationConfig()
        config.max_new_tokens = lap["max_tokens"]
        config.stop_token_ids = set(lap["eos"])
        config.eos_token_id = lap["eos"][0]
        config.do_sample = lap["temperature"] > 0
        if config.do_sample:
            config.temperature, config.rng_seed = lap["temperature"], lap["seed"]
        if wishes["draft"]:
            config.num_assistant_tokens = wishes["gamma"]
        tensors = [ov.Tensor(np.array([ids], dtype=np.int64)) for ids in lap["prompts"]]
        written: list[list[int]] = [[] for _ in tensors]
        first: float | None = None
        early = [0] * len(tensors)
        began = time.perf_counter()
        handles = [
            pipeline.add_request(number, tensor, config) for number, tensor in enumerate(tensors)
        ]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for ids, handle in zip(written, handles, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        ids += output.generated_ids
            if first is None and all(written):
                first = time.perf_counter() - began
                early = [len(ids) for ids in written]
        seconds = time.perf_counter() - began
        answers = [answered(ids, first, count) for ids, count in zip(written, early, strict=True)]
        return {"seconds": seconds, "answers": answers}

    about = {
        "openvino_genai": version("openvino-genai"),
        "openvino": version("openvino"),
        "weights": wishes["weights"],
        "threads": wishes["threads"],
    }
    return about, answer


def export(model: str, folder: str, weights: str) -> str:
    """The folder of a model in OpenVINO's form, written if it is not there."""
    done = Path(folder)
    if not (done / "openvino_model.xml").is_file():
        for package in ("nncf", "optimum"):  # Missed before minutes of work, not after.
            if find_spec(package) is None:
                raise ModuleNotFoundError(f"no module named {package}", name=package)
        half = done.with_name(f"{done.name}.part")
        shutil.rmtree(half, ignore_errors=True)
        # In a process of its own, whose memory is free afterwards.
        subprocess.run(
            [
                *(sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino"),
                *("--model", model, "--task", "text-generation-with-past"),
                *("--weight-format", weights, str(half)),
            ],
            stdin=subprocess.DEVNULL,
            check=True,
        )
        half.rename(done)
    return str(done)


if __name__ == "__main__":
    serve(set_up)
