"""Load on a running `antiphon serve`: many clients at once, every answer checked against itself.

    python scripts/load.py --url http://127.0.0.1:8000 --requests 200 --clients 32

Prints one JSON line: what was lost or mixed up, times to the first token and between tokens,
throughput, and the same requests one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import httpx
import numpy as np

from antiphon.lab.problems import problem


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """One streamed request: its text, and when each chunk came."""
    began, times, text, tokens = time.perf_counter(), [], "", 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as stream:
        async for line in stream.aiter_lines():
            if not line.startswith("data: {"):
                continue
            record = json.loads(line[6:])
            if "error" in record:
                return {"error": record["error"]["message"]}
            if record.get("usage"):
                tokens = record["usage"]["completion_tokens"]
            for choice in record["choices"]:
                if choice["delta"].get("content"):
                    times.append(time.perf_counter() - began)
                    text += choice["delta"]["content"]
    end = time.perf_counter() - began
    first = times[0] if times else end
    return {"text": text, "tokens": tokens, "first": first, "end": end}


async def crowd(url: str, bodies: list[dict[str, Any]], clients: int) -> tuple[list[Any], float]:
    """All requests, `clients` at a time; the answers and the seconds."""
    gate = asyncio.Semaphore(clients)
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def one(body: dict[str, Any]) -> Any:
            async with gate:
                return await ask(client, body)

        began = time.perf_counter()
        answers = await asyncio.gather(*map(one, bodies))
        return answers, time.perf_counter() - began


def main() -> None:
    """Send the load twice, together and one by one, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="lab")
    parser.add_argument("--methods", default="autoregressive,speculative,smc,easd")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    methods = options.methods.split(",")
    bodies = [
        {
            "model": f"{options.model}@{methods[i % len(methods)]}",
            "messages": [{"role": "user", "content": problem("test", i).question}],
            "temperature": 1.0,
            "max_tokens": options.max_tokens,
            "seed": i,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for i in range(options.requests)
    ]
    together, seconds = asyncio.run(crowd(options.url, bodies, options.clients))
    alone, one_by_one = asyncio.run(crowd(options.url, bodies, 1))
    good = [answer for answer in together if "error" not in answer]
    first = np.array([answer["first"] for answer in good])
    between = np.array([(a["end"] - a["first"]) / max(a["tokens"] - 1, 1) for a in good])
    tokens = sum(answer["tokens"] for answer in good)
    print(
        json.dumps(
            {
                "requests": len(bodies),
                "clients": options.clients,
                "lost": len(bodies) - len(good),
                "different_alone": sum(
                    a.get("text") != b.get("text") for a, b in zip(together, alone, strict=True)
                ),
                "first_token_ms": _percentiles(first),
                "between_tokens_ms": _percentiles(between),
                "tokens_per_second": tokens / seconds,
                "one_by_one_tokens_per_second": sum(a.get("tokens", 0) for a in alone) / one_by_one,
            }
        )
    )


def _percentiles(seconds: np.ndarray) -> dict[str, float]:
    return {f"p{p}": round(1e3 * float(np.percentile(seconds, p)), 2) for p in (50, 95)}


if __name__ == "__main__":
    main()
