"""No file imports upward: the order of docs/architecture.md, checked on the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "antiphon"
LAYERS = [
    ["errors", "cache", "perceptron"],
    ["checkpoint"],
    ["params", "models.pool", "drawing", "grammar", "logprobs"],
    ["models.tree"],
    ["models.base", "sampling", "detokenizer"],
    ["models.watch", "profile"],
    ["models", "costs", "stopping"],
    ["request"],
    ["rules.evidence"],
    ["arbiter.features", "arbiter.policy"],
    ["rules"],
    ["drafting"],
    ["trace"],
    ["result"],
    ["methods"],
    ["live"],
    ["engine"],
    ["api"],
    ["bench", "eval"],
    ["arbiter"],
    ["integrations"],
    ["serve.fields", "serve.limits", "serve.worker", "serve.guard", "serve.page"],
    ["serve.offers", "serve.answers", "serve.metrics"],
    ["serve.service"],
    ["serve.app"],
    ["serve"],
    ["cli"],
]
BESIDE = ("lab",)  # Knows errors and perceptron alone; may be used from anywhere.


def layer(module: str) -> int:
    """The most specific entry of `LAYERS` that a module belongs to."""
    name = module.removeprefix("antiphon").lstrip(".")
    while name:
        for height, names in enumerate(LAYERS):
            if name in names:
                return height
        name = name.rpartition(".")[0]
    return len(LAYERS)


def imports(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(statement)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("antiphon"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = (SOURCE.parent / Path(*full.split("."))).with_suffix(".py").exists()
                yield full if is_module else node.module or ""


def test_no_file_imports_upward() -> None:
    upward = []
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        module = module.removesuffix(".__init__")
        part = module.split(".")[1] if "." in module else ""
        if part in (*BESIDE, "", "__main__"):
            continue
        for other in imports(path):
            if other.split(".")[1:2] and other.split(".")[1] in BESIDE:
                continue
            if layer(other) > layer(module):
                upward.append(f"{module} imports {other}")
    assert not upward


def test_files_stay_readable() -> None:
    long = [p for p in SOURCE.rglob("*.py") if len(p.read_text().splitlines()) > 310]
    assert not long
