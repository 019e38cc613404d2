"""Methods as text and back."""

from __future__ import annotations

import pytest

from antiphon.errors import UserError
from antiphon.methods import EASD, SMC, Autoregressive, Method, SpecGuard, Speculative, spec

METHODS: list[Method] = [
    Autoregressive(),
    Speculative(gamma="auto", confidence=0.25),
    Speculative(rule="cactus/delta=0.5", rescue="topk/k=3"),
    EASD(veto_entropy=1.5, top_n=5),
    EASD(quantile=0.9),
    SMC(particles=4, guided=True, draft_temperature=0.7, scheme="residual"),
    SpecGuard(beta=1.0, renormalise=True, low_logprob=-3.0),
]


@pytest.mark.parametrize("method", METHODS, ids=spec.describe)
def test_a_method_comes_back_from_its_text(method: Method) -> None:
    assert spec.parse(spec.describe(method)) == method


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("smcc", "choose autoregressive"),
        ("smc:n=3", "it has particles"),
        ("smc:guided=maybe", "true or false"),
        ("smc:particles=x", "whole number"),
        ("easd:veto_entropy=x", "number"),
        ("speculative:gamma", "field=value"),
        ("autoregressive:gamma=3", "no fields"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, fix: str) -> None:
    with pytest.raises(UserError, match=fix):
        spec.parse(text)
