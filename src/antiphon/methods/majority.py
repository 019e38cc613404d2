"""Self-consistency: several texts of the target's, and the answer that most of them give.

Wang et al. 2023, "Self-Consistency Improves Chain of Thought Reasoning" (arXiv 2203.11171). It is
what a population that votes has to be compared with: the same votes, nothing speculative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from antiphon.errors import UserError
from antiphon.methods.base import Models
from antiphon.methods.branches import Branches
from antiphon.methods.selection import answer, vote
from antiphon.params import SamplingParams
from antiphon.request import Commit, Judged, Provenance, Request, Steps, ask, judge
from antiphon.sampling import Context, choose
from antiphon.stopping import visible


@dataclass(frozen=True, slots=True)
class Majority:
    """Configuration.

    Attributes:
        samples: texts, written side by side as branches of one tree.
    """

    GUARANTEE: ClassVar[str] = "each text is the target's; the answer is the most frequent one"
    SOURCE: ClassVar[str] = "arXiv 2203.11171"

    samples: int = 8

    def __post_init__(self) -> None:
        if type(self.samples) is not int or self.samples < 1:
            raise UserError(f"samples is {self.samples!r}: give a whole number >= 1")

    def check(self, models: Models, params: SamplingParams) -> None:
        if params.greedy:
            raise UserError("majority draws samples: give a --temperature above 0")

    def run(self, request: Request, models: Models) -> Steps[None]:
        tree = models.target.new_tree(request.longest)
        ends = request.eos_token_ids | frozenset(request.params.stop_token_ids)
        assert request.detokenizer is not None
        readers = [request.detokenizer(request.prompt) for _ in range(self.samples)]
        texts = [""] * self.samples
        tokens: list[list[int]] = [[] for _ in range(self.samples)]
        judged: list[list[Judged]] = [[] for _ in range(self.samples)]

        branches = Branches(models.target, tree)
        tips = dict.fromkeys(range(self.samples), branches.add(tree.tip, request.prompt)[-1])
        while tips:
            # One pass for every text that has not ended; equal beginnings are one branch.
            rows = {i: branches.score(tip) for i, tip in tips.items()}
            scores = yield from ask(branches.extension())
            going = list(rows)
            contexts = [Context(request.prompt, tuple(tokens[i])) for i in going]
            logits = scores.logits[[rows[i] for i in going]]
            drawn = choose(logits, request.params, contexts, request.randomness)
            told = judge(logits, drawn, request.params.logprobs)
            branches = Branches(models.target, tree)
            left = {}
            for i, token, each in zip(going, drawn, told, strict=True):
                tokens[i].append(token)
                judged[i].append(each)
                texts[i] += readers[i].push(token)
                stopped = visible(texts[i], request.params.stop) != texts[i]
                if not stopped and token not in ends and request.room(len(tokens[i])) > 0:
                    left[i] = branches.add(tips[i], (token,))[-1]
            tips = left

        whole = [text + reader.flush() for text, reader in zip(texts, readers, strict=True)]
        chosen = vote([answer(visible(text, request.params.stop)) for text in whole])
        target: Provenance = "target"
        yield Commit(
            tokens=tuple(tokens[chosen]),
            provenance=(target,) * len(tokens[chosen]),
            judged=tuple(judged[chosen]),
            notes={"texts": [list(each) for each in tokens]},
        )
