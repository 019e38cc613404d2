"""What a pair takes in memory, before anything of it is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from antiphon.errors import UserError
from antiphon.models.hf import head_size, key_heads
from antiphon.models.packed import QUANTISED
from antiphon.models.source import Source


def budget(
    pair: Sequence[Source | None],
    precisions: Sequence[str],
    slots: int,
    device: torch.device,
    say: Callable[[str], None],
) -> None:
    """Say what both models and their caches will take; raise UserError if that cannot fit.

    Args:
        pair: target and draft; None: there is no model of its own in that role.
        slots: tokens of cache to count.
    """
    needed = 0
    for role, found, precision in zip(("target", "draft"), pair, precisions, strict=True):
        if found is None:
            continue
        weights, cache = estimate(found, precision, slots)
        needed += weights + cache
        say(
            f"{role} {found.title}: {precision}, weights {_gib(weights)}, "
            f"cache {_gib(cache)} for {slots} tokens"
        )
    available = available_memory(device)
    if available is not None:
        say(f"memory: needs about {_gib(needed)}, {_gib(available)} available")
        if needed > available:
            raise UserError(
                f"the pair needs about {_gib(needed)} of memory, {_gib(available)} is available: "
                "use --target-quant int8, a smaller model, or fewer --max-tokens"
            )


def estimate(found: Source, precision: str, slots: int) -> tuple[int, int]:
    """Bytes of weights and of `slots` cached tokens."""
    counts = found.parameters()
    config = found.config.get_text_config()
    width = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.625}
    rest = 4 if precision in ("float32", "float16") or precision in QUANTISED else 2
    one = 2 * config.num_hidden_layers * key_heads(config) * head_size(config) * rest
    cache = one * slots
    return int(counts["linear"] * width[precision] + counts["other"] * rest), cache


def available_memory(device: torch.device) -> int | None:
    """Free bytes on the device; None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with Path("/proc/meminfo").open() as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**27 else f"{count / 2**20:.1f} MiB"
