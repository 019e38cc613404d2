"""Worker: OpenVINO GenAI's `LLMPipeline`, plain or with a draft model."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from importlib.metadata import version
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
    properties = {"INFERENCE_NUM_THREADS": wishes["threads"], "PERFORMANCE_HINT": "LATENCY"}
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    # Laps of one prompt repeat: a cached prompt would be read for nothing.
    scheduler.enable_prefix_caching = False
    # A prompt is read in one pass, as the pipeline's own default for one request has it.
    scheduler.max_num_batched_tokens = 1 << 20
    arguments: dict[str, Any] = {"scheduler_config": scheduler} | properties
    if wishes["draft"]:
        draft = export(wishes["draft"], wishes["draft_export"], wishes["weights"])
        arguments["draft_model"] = genai.draft_model(draft, "CPU", **properties)
    pipeline = genai.LLMPipeline(target, "CPU", **arguments)

    class FirstTokens(genai.StreamerBase):  # type: ignore[misc]
        """Notes when the first new tokens came, and how many."""

        def __init__(self) -> None:
            super().__init__()
            self.at: float | None = None
            self.tokens = 0

        def write(self, token: int | list[int]) -> Any:
            if self.at is None:
                self.at = time.perf_counter()
                self.tokens = len(token) if isinstance(token, list) else 1
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            """The text is complete."""

    def answer(lap: Message) -> Message:
        config = genai.GenerationConfig()
        config.max_new_tokens = lap["max_tokens"]
        config.stop_token_ids = set(lap["eos"])
        config.eos_token_id = lap["eos"][0]
        config.do_sample = lap["temperature"] > 0
        if config.do_sample:
            config.temperature, config.rng_seed = lap["temperature"], lap["seed"]
            config.top_p, config.top_k = 1.0, 2**31
        if wishes["draft"]:
            config.num_assistant_tokens = wishes["gamma"]
        answers = []
        began = time.perf_counter()
        for prompt in lap["prompts"]:
            watch, start = FirstTokens(), time.perf_counter()
            result = pipeline.generate(ov.Tensor(np.array([prompt], dtype=np.int64)), config, watch)
            first = None if watch.at is None else watch.at - start
            answers.append(answered(list(result.tokens[0]), first, watch.tokens))
        return {"seconds": time.perf_counter() - began, "answers": answers}

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
        import nncf  # noqa: F401  # Missed before minutes of work, not after.
        import optimum.intel  # noqa: F401

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
