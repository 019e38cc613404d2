"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

# Before any library reads it: no test asks the hub for anything.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import settings

from antiphon.models import fused

# The models in the tests are tiny, and one thread is the fastest for them. It also keeps the
# tests from waiting on one another's threads on a busy machine.
torch.set_num_threads(int(os.environ.get("ANTIPHON_TEST_THREADS", "1")))
# Compiled here, in the user's own cache, and not in that of some test.
fused.ready()

# A first call may load a library, so a single example has no time limit.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

MODELS = Path(os.environ.get("ANTIPHON_MODELS", "~/.cache/antiphon-models")).expanduser()
REAL_TARGET = MODELS / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
REAL_DRAFT = MODELS / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skips = {}
    if not config.getoption("--slow"):
        skips["slow"] = pytest.mark.skip(reason="slow; run with --slow")
    if not torch.cuda.is_available():
        skips["gpu"] = pytest.mark.skip(reason="no CUDA device")
    if not (REAL_TARGET.is_file() and REAL_DRAFT.is_file()):
        skips["real"] = pytest.mark.skip(reason=f"the real pair is not in {MODELS}")
    for item in items:
        for marker, skip in skips.items():
            if item.get_closest_marker(marker):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def real_pair_files() -> tuple[Path, Path]:
    """The GGUF files of the real target and draft; for tests marked `real`."""
    return REAL_TARGET, REAL_DRAFT


@pytest.fixture(autouse=True)
def _fixed_torch_seed() -> None:
    """A test that draws from torch's global generator draws the same every time."""
    torch.manual_seed(0)
