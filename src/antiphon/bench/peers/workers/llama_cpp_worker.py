"""Worker: llama.cpp through llama-cpp-python, on the .gguf file itself."""

from __future__ import annotations

import time
from importlib.metadata import version

from peer_protocol import Answer, Message, answered, serve

LONGEST = 4096


def set_up(wishes: Message) -> tuple[Message, Answer]:
    """Load the file."""
    import llama_cpp

    model = llama_cpp.Llama(
        wishes["target"],
        n_ctx=LONGEST,
        n_threads=wishes["threads"],
        n_threads_batch=wishes["threads"],
        seed=wishes["seed"],
        verbose=False,
    )

    def answer(lap: Message) -> Message:
        ends = set(lap["eos"])
        answers = []
        began = time.perf_counter()
        for prompt in lap["prompts"]:
            model.reset()  # Else what two prompts have in common is not read again.
            model.set_seed(lap["seed"])
            start, first, written = time.perf_counter(), None, []
            for token in model.generate(
                prompt, top_k=0, top_p=1.0, min_p=0.0, temp=lap["temperature"], repeat_penalty=1.0
            ):
                first = first or time.perf_counter() - start
                written.append(int(token))
                if token in ends or len(written) == lap["max_tokens"]:
                    break
            answers.append(answered(written, first, 1))
        return {"seconds": time.perf_counter() - began, "answers": answers}

    about = {"llama_cpp_python": version("llama-cpp-python"), "threads": wishes["threads"]}
    return about, answer


if __name__ == "__main__":
    serve(set_up)
