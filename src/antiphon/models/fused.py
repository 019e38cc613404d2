"""What modeling code spells out in many small operations, each as one (`native/`).

In a pass over one token the operations between the linears are counted in hundreds, and each costs
a microsecond or more however little it computes. PyTorch fuses them through a compiler; so do we,
but only the few that matter, in seconds rather than minutes, once for a machine. Without a C++
compiler the models run as they are.
"""

from __future__ import annotations

import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from antiphon.cache import cache_home, mark

logger = logging.getLogger(__name__)

NATIVE = Path(__file__).with_name("native")
DTYPES = (torch.float32, torch.bfloat16)
SECONDS = 300
"""A compiler that takes longer is given up."""


def ready() -> bool:
    """Whether ``torch.ops.antiphon`` is there; compiled at the first call on this machine.

    ``ANTIPHON_FUSED=0`` says that it is not wanted.
    """
    return os.environ.get("ANTIPHON_FUSED", "1") != "0" and loaded()


def has(operation: str) -> bool:
    """Whether an operation is there that only some CPUs have the instructions for."""
    return ready() and hasattr(torch.ops.antiphon, operation)


def blocks() -> tuple[int, int]:
    """Outputs whose weights lie together for the linears of `native/`, and those of a vector.

    (0, 0) where the CPU has no vectors that they are written for.
    """
    return torch.ops.antiphon.blocks() if has("blocks") else (0, 0)


def announce(say: Callable[[str], None]) -> None:
    """Tell people what the first `ready` of this machine does, or that it is of no use."""
    command = _command()
    if os.environ.get("ANTIPHON_FUSED", "1") == "0":
        return
    if command is None:
        say("note: no C++ compiler (c++, g++, clang++), or no Linux: passes take longer")
    elif not _file(command).is_file() and not _failed(_file(command)).is_file():
        say("compiling fused operations, once for this machine (about a minute)")


def version() -> str:
    """Another word for every other state of these operations: what they speed up is measured."""
    command = _command()
    return _file(command).stem if command and ready() else "plain"


@cache
def loaded() -> bool:
    """Load the compiled operations, after compiling them if need be; False: it cannot be done."""
    command = _command()
    if command is None:
        return False
    file = _file(command)
    failed = _failed(file)
    try:
        try:
            torch.ops.load_library(str(file))
        except OSError:  # Not there, or cut off by a full disk.
            if failed.is_file():
                logger.warning(
                    "operations are not fused, as %s failed before: delete %s to try again",
                    *(command[0], failed),
                )
                return False
            compile_(command, file)
            torch.ops.load_library(str(file))
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", None) or str(error)
        logger.warning("operations are not fused, %s failed: %s", command[0], said[:500])
        with suppress(OSError):
            failed.write_text(said)
        return False
    except OSError as error:
        logger.warning("operations are not fused: %s", error)
        return False
    return True


def _failed(file: Path) -> Path:
    """What the compiler said where it failed: it would say it again, a minute later."""
    return file.with_suffix(".failed")


def compilers() -> list[str]:
    """What is tried, in this order: ``$CXX`` first."""
    return [*shlex.split(os.environ.get("CXX", ""))[:1], "c++", "g++", "clang++"]


def _command() -> list[str] | None:
    """The compiler and its options; None: there is nothing."""
    compiler = next(filter(None, map(shutil.which, compilers())), None)
    if compiler is None or sys.platform != "linux":
        return None
    # By what PyTorch itself uses of this CPU, so that a shared cache serves other machines.
    wide = ["-march=x86-64-v4", "-mprefer-vector-width=512"]
    if _capable("avx512_vnni"):
        wide.append("-mavx512vnni")
    # With tiles (AMX) oneDNN's kernel is the better one.
    if _capable("avx512_bf16") and not _capable("amx_tile"):
        wide.append("-mavx512bf16")
    narrow = ["-march=x86-64-v3", *(["-mavxvnni"] if _capable("avx_vnni") else [])]
    levels = {"AVX512": wide, "AVX2": narrow}
    level = levels.get(torch.backends.cpu.get_cpu_capability(), [])
    folder = Path(torch.__file__).parent
    return [
        *(compiler, "-std=c++20", "-O3", *level, "-fno-math-errno", "-Wno-psabi", "-fopenmp"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *("-fPIC", f"-I{folder / 'include'}", f"-L{folder / 'lib'}"),
    ]


def _capable(instructions: str) -> bool:
    known: Callable[[], dict[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)
    return bool(known().get(instructions, False))


def _file(command: list[str]) -> Path:
    """Where the library of these very sources, PyTorch and flags is kept."""
    texts = [file.read_text() for file in sorted(NATIVE.iterdir())]
    name = mark(*texts, torch.__version__, platform.machine(), *command)
    return cache_home() / "fused" / f"{name}.so"


def compile_(command: list[str], file: Path) -> None:
    """Make `file`, whole or not at all; its sources on as many threads as there are."""
    file.parent.mkdir(parents=True, exist_ok=True)

    def run(*arguments: str) -> None:
        subprocess.run(
            [*command, *arguments],
            cwd=NATIVE,
            check=True,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".partial-") as folder:

        def compiled(source: Path) -> str:
            part = str(Path(folder, f"{source.stem}.o"))
            run("-c", source.name, "-o", part)
            return part

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = list(pool.map(compiled, sorted(NATIVE.glob("*.cpp"))))
        whole = Path(folder, file.name)
        run(*parts, "-shared", "-lc10", "-ltorch_cpu", "-o", str(whole))
        whole.replace(file)


@contextmanager
def fused(module: Any) -> Iterator[None]:
    """Inside, a transformers module on the CPU runs its norms and rotations fused.

    What a fused operation replaces is found by trying: it must give what the module's own code
    gives on random numbers, else the code stays.
    """
    if not ready() or module.dtype not in DTYPES or module.device.type != "cpu":
        yield
        return
    norms = {child: stand_in for child in module.modules() if (stand_in := norm(child)) is not None}
    files: set[Any] = {sys.modules[type(child).__module__] for child in module.modules()}
    rotations = {file: file.apply_rotary_pos_emb for file in files if _rotates(file)}
    try:
        for child, stand_in in norms.items():
            child.forward = stand_in
        for file in rotations:
            file.apply_rotary_pos_emb = _rotation(rotations[file])
        yield
    finally:
        for child in norms:
            del child.forward
        for file, function in rotations.items():
            file.apply_rotary_pos_emb = function


@torch.no_grad()
def norm(module: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """A fused stand-in for the forward of an RMS norm; None: the module is none."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or weight is None or eps is None:
        return None
    generator = torch.Generator().manual_seed(0)
    some = torch.randn(2, len(weight), generator=generator).to(weight.dtype)
    close = 1e-4 if weight.dtype == torch.float32 else 1e-2
    for scale in (weight.detach(), 1 + weight.detach()):  # Gemma keeps it as a distance from 1.
        ours = torch.ops.antiphon.rms_norm(some, scale, eps)
        if torch.allclose(ours, module(some), rtol=close, atol=1e-5):
            return partial(torch.ops.antiphon.rms_norm, weight=scale, eps=eps)
    return None


def _rotates(file: Any) -> bool:
    """Whether a modeling file rotates halves of heads by sines and cosines, the usual way."""
    function = getattr(file, "apply_rotary_pos_emb", None)
    if function is None:
        return False
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 3, 8, generator=generator) for heads in (4, 2))
    cos, sin = (torch.randn(1, 3, 8, generator=generator) for _ in range(2))
    try:
        theirs = function(q, k, cos, sin)
    except (TypeError, ValueError, RuntimeError):
        return False
    ours = torch.ops.antiphon.rotate(q, k, cos, sin)
    return all(map(torch.allclose, ours, theirs))


def _rotation(function: Callable[..., Any]) -> Callable[..., Any]:
    def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        shaped = len(q) == 1 and q.shape[-1] == cos.shape[-1] and q.stride(-1) == k.stride(-1) == 1
        if shaped and q.dtype == cos.dtype and q.dtype in DTYPES:
            return torch.ops.antiphon.rotate(q, k, cos, sin)
        return function(q, k, cos, sin)

    return rotate
