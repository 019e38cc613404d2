"""Where a model comes from: a folder, a GGUF file, a hub id or a shape; looked at, not loaded.

Everything a user can get wrong about a path is found here, before a weight is read.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from antiphon.cache import mark
from antiphon.errors import UserError
from antiphon.models import known, shapes
from antiphon.models.short_head import shorten
from antiphon.models.tokenizer import kept


@dataclass(frozen=True, slots=True)
class Source:
    """A model that was found, with its configuration and tokenizer.

    Attributes:
        name: as the user gave it.
        location: folder or hub id for transformers' loaders.
        gguf_file: the file in that folder, for GGUF.
        config: the transformers configuration, or `known.PlainConfig`.
        tokenizer: stands for the transformers fast tokenizer.
        head: the model is to propose only this many tokens, and special ones; None: all.
        ranking: ids from which those are taken first, then come the lowest ids (in a byte-pair
            vocabulary the most frequent ones).
        counted: what `count` gives, where it is known.
    """

    name: str
    location: str
    gguf_file: str | None
    config: Any
    tokenizer: Any
    head: int | None = None
    ranking: tuple[int, ...] = ()
    counted: dict[str, int] | None = None

    def __post_init__(self) -> None:
        if self.head is not None and not 1 <= self.head < len(self.tokenizer):
            raise UserError(
                f"--draft-vocab is {self.head}: give 1 to {len(self.tokenizer) - 1} tokens, "
                f"or leave it out"
            )

    @property
    def title(self) -> str:
        """What messages and records call the model."""
        name = Path(self.name).name or self.name
        kind = "frequent" if self.ranking else "first"
        return name if self.head is None else f"{name} ({kind} {self.head} tokens)"

    def proposed(self) -> set[int]:
        """The ids the head is to have, where it is not to have all."""
        added = self.tokenizer.get_added_vocab().values()
        order = list(dict.fromkeys((*self.ranking, *range(len(self.tokenizer)))))
        ids = {*order[: self.head], *added, *self.tokenizer.all_special_ids}
        # Kernels want a number of outputs that 16 divides: a few more of the next tokens.
        more = (i for i in order[self.head :] if i not in ids)
        return ids | set(itertools.islice(more, -len(ids) % 16))

    @property
    def arguments(self) -> dict[str, str]:
        """What transformers' `from_pretrained` needs beside the location."""
        return {"gguf_file": self.gguf_file} if self.gguf_file else {}

    def files(self) -> list[tuple[str, int, int]]:
        """Path, size and time of change of what the weights come from; a hub id: its name."""
        folder = Path(self.location)
        if not folder.is_dir():
            return [(self.location, 0, 0)]
        names = [self.gguf_file] if self.gguf_file else ["config.json", "*.safetensors", "*.bin"]
        found = sorted(path for name in names for path in folder.glob(name))
        return [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in found]

    def mark(self, *parts: object) -> str:
        """Names these very weights, and `parts`: a new file under the old path is new."""
        config = {k: v for k, v in self.config.to_dict().items() if k != "_name_or_path"}
        text = json.dumps(config, sort_keys=True, default=str)
        head = [] if self.head is None else [self.head]
        ranking = [str(self.ranking)] if self.ranking else []
        return mark(self.files(), text, *parts, *head, *ranking)

    def parameters(self) -> dict[str, int]:
        """Number of parameters: in linears (which may be quantised) and elsewhere."""
        counts = self.counted or count(self.config)
        short = 0
        if self.head is not None:
            text = self.config.get_text_config()
            short = (text.vocab_size - len(self.proposed())) * counts["width"]
        return {"linear": counts["linear"] - short, "other": counts["other"]}


def count(config: Any) -> dict[str, int]:
    """Parameters in linears and elsewhere, and those of a row of the head (``width``)."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    linears = {
        id(m.weight): m.weight.numel() for m in module.modules() if isinstance(m, torch.nn.Linear)
    }
    embedding = module.get_input_embeddings().weight.numel()
    total = sum({id(p): p.numel() for p in module.parameters()}.values())
    whole = sum(linears.values())
    tied = bool(getattr(config.get_text_config(), "tie_word_embeddings", False))
    head = module.get_output_embeddings()
    # A tied head gets a prepacked copy of its own; the embedding keeps its table.
    return {
        "linear": whole,
        "other": total - whole + (embedding if tied else 0),
        "width": 0 if head is None else head.weight.shape[1],
    }


def find(name: str) -> Source:
    """Find a model by folder, ``.gguf`` file or hub id, and read its config and tokenizer.

    Raises UserError, in one line with the fix, for anything that is not a causal LM with a
    fast tokenizer.
    """
    if name.startswith(shapes.PREFIX):
        shape = shapes.config(name)
        return Source(name, name, None, shape, shapes.tokenizer(shape.vocab_size))
    location, gguf_file = _locate(name)
    found = known.recall(location, gguf_file)
    if found is None:
        found = _read(name, location, gguf_file)
        known.keep(location, gguf_file, found)
    return Source(
        name, location, gguf_file, found.config, found.tokenizer, counted=found.parameters
    )


def _read(name: str, location: str, gguf_file: str | None) -> known.Known:
    """What transformers makes of a model's files; raises as `find` does."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    arguments = {"gguf_file": gguf_file} if gguf_file else {}
    try:
        config = AutoConfig.from_pretrained(location, **arguments)
    except Exception as error:
        raise UserError(_not_a_model(name, gguf_file, error)) from error
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UserError(
            f"{name}: {config.model_type!r} is not a causal language model of transformers: "
            "give a decoder-only text model"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(location, **arguments)
    except Exception as error:
        raise UserError(f"{name}: no tokenizer could be read ({_first_line(error)})") from error
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"{name}: needs a fast tokenizer (tokenizer.json): convert it first")
    try:
        counted = count(config)
    except Exception as error:
        raise UserError(
            f"{name}: transformers cannot build a {config.model_type!r} ({_first_line(error)}): "
            "install what it needs, or give another model"
        ) from error
    return known.Known(known.PlainConfig(config), kept(tokenizer), counted)


def load(source: Source, dtype: torch.dtype, device: torch.device) -> Any:
    """The transformers module in eval mode, its weights in `dtype` on `device`.

    Raises UserError for weights that are missing, corrupt or too large for the memory.
    """
    from transformers import AutoModelForCausalLM

    try:
        if source.location.startswith(shapes.PREFIX):
            module = shapes.build(source.config, dtype, device)
        else:
            module = AutoModelForCausalLM.from_pretrained(
                source.location, dtype=dtype, **source.arguments, **_unpacked(source)
            )
        if source.head is not None:
            shorten(module, source.proposed())
        return module.to(device).eval()
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise UserError(
            f"{source.name}: not enough memory for the weights: "
            "use a smaller model or --target-quant int8"
        ) from error
    except Exception as error:
        raise UserError(
            f"{source.name}: the weights cannot be read ({_first_line(error)}): "
            "fetch the model again"
        ) from error


def eos_tokens(module: Any) -> tuple[int, ...]:
    """The ids that end a text, as the model's generation config names them."""
    declared = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    ids = declared if isinstance(declared, list) else [declared]
    return tuple(int(i) for i in ids if i is not None)


def _unpacked(source: Source) -> dict[str, Any]:
    """Ask for dense weights: ours are packed for our own kernels.

    Where a kernel for it is at hand, transformers from 5.24 on keeps a GGUF file's blocks.
    """
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    if source.gguf_file is None or config is None:
        return {}
    return {"quantization_config": config(dequantize=True)}


def _locate(name: str) -> tuple[str, str | None]:
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"{name}: no such file: check the path")
        return str(path.parent), path.name
    if path.is_dir():
        if (path / "config.json").is_file():
            return str(path), None
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return str(path), files[0].name
        raise UserError(f"{name}: holds no config.json: give a Hugging Face model folder")
    if path.exists():
        raise UserError(f"{name}: is a file, not a model: give a folder, a .gguf file or a hub id")
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return name, None
    raise UserError(f"{name}: no such folder: check the path, or give a hub id like ORG/NAME")


def _not_a_model(name: str, gguf_file: str | None, error: Exception) -> str:
    if gguf_file and "architecture" in str(error):
        return f"{name}: GGUF not supported ({_first_line(error)}): use its original weights"
    if gguf_file:
        return f"{name}: not a readable GGUF file ({_first_line(error)}): fetch it again"
    if "/" in name and not Path(name).exists():
        return f"{name}: neither a local folder nor a reachable hub id: check it, or download it"
    return f"{name}: not a model transformers knows ({_first_line(error)})"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:160]
