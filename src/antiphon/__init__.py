"""antiphon: speculative decoding beyond exact matching."""

from antiphon.errors import UserError
from antiphon.params import SamplingParams

__all__ = [
    "EASD",
    "RSD",
    "SMC",
    "Autoregressive",
    "CoSpec",
    "Delta",
    "DraftOnly",
    "Engine",
    "LoadOptions",
    "Majority",
    "ModelPair",
    "Result",
    "SamplingParams",
    "SpecGuard",
    "SpecReason",
    "Speculative",
    "StepScore",
    "UserError",
    "generate",
    "generate_many",
    "load_pair",
    "make_engine",
    "stream",
]

_HOME = {
    "EASD": "antiphon.methods",
    "RSD": "antiphon.methods",
    "SMC": "antiphon.methods",
    "Autoregressive": "antiphon.methods",
    "CoSpec": "antiphon.methods",
    "Delta": "antiphon.result",
    "DraftOnly": "antiphon.methods",
    "Engine": "antiphon.engine",
    "LoadOptions": "antiphon.models.pair",
    "Majority": "antiphon.methods",
    "ModelPair": "antiphon.models.pair",
    "Result": "antiphon.result",
    "SpecGuard": "antiphon.methods",
    "SpecReason": "antiphon.methods",
    "Speculative": "antiphon.methods",
    "StepScore": "antiphon.methods",
    "generate": "antiphon.api",
    "generate_many": "antiphon.api",
    "load_pair": "antiphon.models.pair",
    "make_engine": "antiphon.api",
    "stream": "antiphon.api",
}


def __getattr__(name: str) -> object:
    """Import on first use: `import antiphon` itself needs no transformers."""
    if name not in _HOME:
        raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
