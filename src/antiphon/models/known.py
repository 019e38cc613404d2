"""What was found out of a model's folder, kept on this machine.

Reading a configuration and a tokenizer takes transformers seconds, most of it imports, and longer
where both have to be made out of a GGUF file. What comes of it is small, and changes only with the
files.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from antiphon.cache import cache_home, mark, versions, whole
from antiphon.errors import UserError
from antiphon.models.tokenizer import KeptTokenizer, unbounded

FORMAT = 2
"""Rises when what is kept changes."""
PARTS = ("*.json", "*.jinja", "*.model", "*.txt")
"""Files of a folder that a configuration or tokenizer may come from."""


class PlainConfig:
    """A transformers configuration as what it says, without the class that says it.

    Attributes are those of the text configuration.
    """

    def __init__(self, config: Any) -> None:
        self.model_type = str(config.model_type)
        # As JSON has it: what goes into fingerprints does not change by being kept.
        self._whole = json.dumps(config.to_dict(), default=str)
        text = json.dumps(_values(config.get_text_config()), default=str)
        self._attributes = json.loads(text)

    def to_dict(self) -> dict[str, Any]:
        whole: dict[str, Any] = json.loads(self._whole)
        return whole

    def get_text_config(self) -> PlainConfig:
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_attributes"][name]
        except KeyError:
            raise AttributeError(f"this configuration has no {name}") from None


def _values(config: Any) -> dict[str, Any]:
    """What a configuration says, under the names that modeling code uses too."""
    other: Mapping[str, str] = getattr(type(config), "attribute_map", {})
    values = config.to_dict()
    values |= {alias: getattr(config, alias) for alias in other if hasattr(config, alias)}
    return {name: value for name, value in values.items() if not name.startswith("_")}


@dataclass(frozen=True, slots=True)
class Known:
    """A model's configuration, its tokenizer, and its numbers of parameters (`source.count`)."""

    config: Any
    tokenizer: KeptTokenizer
    parameters: dict[str, int]


def recall(location: str, gguf_file: str | None) -> Known | None:
    """What was kept of these very files; None: nothing, or they are not on this machine."""
    file = _file(location, gguf_file)
    if file is None or not file.is_file():
        return None
    try:
        # Written by this very module, in the user's own cache.
        config, facts, parameters = pickle.loads(file.read_bytes())
        backend, whole = _backend_file(facts.digest), _whole_file(file)
    except Exception:  # Cut off, or of a library that is no longer there: found out anew.
        return None
    if not backend.is_file() or not whole.is_file():
        return None
    tokenizer = KeptTokenizer(facts, partial(_backend, backend), partial(_unpickled, whole))
    return Known(config, tokenizer, parameters)


def keep(location: str, gguf_file: str | None, known: Known) -> None:
    """Store what was found out of files on this machine; where that fails nothing is lost."""
    file = _file(location, gguf_file)
    if file is None:
        return
    tokenizer, facts = known.tokenizer, known.tokenizer.facts
    with suppress(pickle.PicklingError, TypeError, AttributeError):  # Not every tokenizer can be.
        for where, what in (
            (_whole_file(file), pickle.dumps(tokenizer.whole)),
            (_backend_file(facts.digest), tokenizer.backend_tokenizer.to_str().encode()),
            (file, pickle.dumps((known.config, facts, known.parameters))),
        ):
            whole(where, partial(Path.write_bytes, data=what))


@lru_cache(maxsize=8)
def _backend(file: Path) -> Tokenizer:
    """The models of a pair share one: reading a large vocabulary takes half a second."""
    with _readable(file):
        return unbounded(Tokenizer.from_file(str(file)))


def _unpickled(file: Path) -> Any:
    with _readable(file):
        return pickle.loads(file.read_bytes())


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise UserError(
            f"{file}: a tokenizer that was kept cannot be read ({type(error).__name__}): delete it"
        ) from error


def _backend_file(digest: str) -> Path:
    return cache_home() / "known" / f"{digest}.tokenizer.json"


def _whole_file(file: Path) -> Path:
    return file.with_suffix(".tokenizer.pkl")


def _file(location: str, gguf_file: str | None) -> Path | None:
    folder = Path(location)
    if not folder.is_dir():
        return None
    names = [gguf_file] if gguf_file else PARTS
    files = sorted({path.resolve() for name in names for path in folder.glob(name)})
    seen = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    name = mark(FORMAT, seen, *versions("transformers", "tokenizers"))
    return cache_home() / "known" / f"{name}.pkl"
