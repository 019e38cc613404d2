"""What the measuring scripts share: which pair to load, and how a record is kept."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch

from antiphon.costs import machine
from antiphon.models.pair import LoadOptions, ModelPair, load_pair


def parser(description: str | None, threads: int = 1) -> argparse.ArgumentParser:
    """A parser with the flags of a pair, of threads and of the record."""
    found = argparse.ArgumentParser(description=description)
    for flag in ("--target", "--draft"):
        found.add_argument(flag)
        found.add_argument(f"{flag}-quant", default="none")
    found.add_argument("--profile", type=Path)
    found.add_argument("--threads", type=int, default=threads)
    found.add_argument("--record", type=Path)
    return found


def pair(options: argparse.Namespace) -> ModelPair:
    """The pair the flags name; without them the bundled one in float32."""
    torch.set_num_threads(options.threads)
    quants = {"target_quant": options.target_quant, "draft_quant": options.draft_quant}
    load = LoadOptions(dtype="auto" if options.target else "float32", **quants)
    return load_pair(options.target, options.draft, load, profile=options.profile)


def keep(options: argparse.Namespace, pair: str, figures: dict[str, Any]) -> None:
    """Write figures with what they were measured on, if a record is asked for."""
    about = {
        "pair": pair,
        "machine": machine(),
        "date": date.today().isoformat(),
        "command": shlex.join(["python", f"scripts/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
    }
    if options.record:
        options.record.write_text(json.dumps(figures | about) + "\n")
