"""Peak memory of a stretch of work, where the system tells."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import torch


def reset_peak(device: torch.device) -> None:
    """Begin a new stretch."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: sets the high-water mark anew.


def peak_bytes(device: torch.device) -> int | None:
    """The most memory since `reset_peak`: of the GPU, or of this process with both models."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else None
