"""Mining: at a mismatch, let both branches run to their end, and grade them against gold.

The template is AutoJudge's miner (arXiv 2504.20039), with one change that matters: a branch is
compared with the gold answer, never with the target's own, or the policy could at best tie with
the target.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from antiphon.api import make_engine
from antiphon.arbiter.features import NAMES, features
from antiphon.checkpoint import packed
from antiphon.engine import Engine
from antiphon.errors import UserError
from antiphon.eval.grade import Grade
from antiphon.eval.journal import read_lines
from antiphon.eval.prompting import Prompting
from antiphon.eval.reread import Reread, keep_beginning
from antiphon.eval.task import Problem, Task
from antiphon.methods import Method, Speculative
from antiphon.models.pair import ModelPair
from antiphon.params import SamplingParams
from antiphon.rules.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Branch:
    """One mismatch, and what became of its two branches under the target's greedy decoding.

    Attributes:
        position: output tokens before it.
        features: the scalars of `arbiter.features`.
        states: the target's hidden states before and after the draft's token, ``2 W`` numbers as
            float16 in base64; "": not mined.
        draft_right, target_right: whether each branch ended in the gold answer.
        same: whether both ended in one and the same answer; None: mined before this was noted.
    """

    position: int
    features: tuple[float, ...]
    draft_right: bool
    target_right: bool
    states: str = ""
    same: bool | None = None


@dataclass(frozen=True, slots=True)
class Mined:
    """One problem's branches.

    Attributes:
        right: whether the text that was walked along is right.
        mismatches: how many there were; `branches` may be fewer.
    """

    problem: str
    right: bool
    mismatches: int
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class Miner:
    """How to mine.

    Attributes:
        task, prompting: what the problems are and how they are put.
        max_tokens: of a whole answer.
        walk: the method whose text is walked along; None: the target's own, greedily.
        most: branches a problem at most, drawn without replacement.
        batch: requests at once.
        states: mine the target's hidden states, too.
    """

    task: Task
    prompting: Prompting
    max_tokens: int
    walk: Method | None = None
    most: int = 8
    batch: int = 16
    states: bool = False

    def __post_init__(self) -> None:
        if self.most < 1 or self.batch < 1 or self.max_tokens < 1:
            raise UserError("branches, batch and tokens are whole numbers >= 1")

    def prompts(self, pair: ModelPair, problems: Sequence[Problem]) -> list[tuple[int, ...]]:
        """Token ids of the problems, as the models read them."""
        texts = (self.prompting.render(pair.tokenizer, self.task, one) for one in problems)
        return [self.prompting.encode(pair.tokenizer, text) for text in texts]


def mine(
    miner: Miner,
    pair: ModelPair,
    problems: Sequence[Problem],
    out: Path,
    told: Callable[[Mined], None] = lambda _: None,
) -> list[Mined]:
    """Mine the problems that `out` does not hold yet, a line each; returns all that it holds.

    A killed run goes on where it was. Raises UserError for a file that is something else.
    """
    held = read(out)
    done = {mined.problem for mined in held}
    engine = make_engine(pair, batch=miner.batch, costs=True)
    left = [problem for problem in problems if problem.id not in done]
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:
        for start in range(0, len(left), miner.batch):
            for mined in _group(miner, pair, engine, left[start : start + miner.batch]):
                file.write(json.dumps(asdict(mined)) + "\n")
                file.flush()
                held.append(mined)
                told(mined)
    return held


def read(path: Path) -> list[Mined]:
    """What a file holds; a torn last line is cut off the file."""
    return read_lines(path, b'{"problem": ', _mined, "mined problem")


_GREEDY = Speculative(gamma="auto")
"""However many branches are live, the fastest way to the target's own greedy text."""


def _mined(record: Mapping[str, Any]) -> Mined:
    branches = tuple(
        Branch(**{**branch, "features": tuple(branch["features"])}) for branch in record["branches"]
    )
    return Mined(**{**record, "branches": branches})


def _group(
    miner: Miner, pair: ModelPair, engine: Engine, problems: Sequence[Problem]
) -> Iterator[Mined]:
    prompts = miner.prompts(pair, problems)
    params = [SamplingParams(max_tokens=miner.max_tokens)] * len(prompts)
    walk = miner.walk or _GREEDY
    texts = [result for (result,) in engine.generate(prompts, params, walk)]
    kept = keep_beginning(prompts[0], pair.target, pair.draft)  # The engine has refused long ones.
    ends = pair.eos_token_ids
    asked: list[tuple[int, int, int]] = []  # problem, position, token
    found: dict[int, tuple[int, list[int], torch.Tensor, list[tuple[int, int]]]] = {}
    grades: dict[tuple[int, int, int], Grade] = {}
    whole = [
        miner.task.grade(problem, text.text) for problem, text in zip(problems, texts, strict=True)
    ]
    for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        output = text.token_ids
        spots, seen, rivals = mismatches(pair, prompt, output, miner.states)
        lot = _drawn(problems[i].id, len(spots), miner.most)
        found[i] = (len(spots), [spots[k] for k in lot], seen[lot], [rivals[k] for k in lot])
        for spot, pairs in zip(found[i][1], found[i][3], strict=True):
            for token in pairs:
                if miner.walk is None and token == output[spot]:
                    grades[i, spot, token] = whole[i]  # The text itself is this branch.
                else:
                    asked.append((i, spot, token))
    # Every branch of the group in one queue: the batch never runs empty between problems.
    starts = [(*prompts[i], *texts[i].token_ids[:spot], token) for i, spot, token in asked]
    rooms = [miner.max_tokens - spot - 1 for _, spot, _ in asked]
    for key, tail in zip(asked, continued(engine, starts, rooms, ends), strict=True):
        i, spot, token = key
        ids = (*texts[i].token_ids[:spot], token, *tail)
        grades[key] = miner.task.grade(problems[i], plain(pair, ids))
    del kept
    for i, problem in enumerate(problems):
        count, spots, seen, rivals = found[i]
        yield Mined(
            problem=problem.id,
            right=bool(whole[i].right),
            mismatches=count,
            branches=tuple(
                Branch(
                    spot,
                    tuple(round(float(value), 6) for value in row[: len(NAMES)]),
                    bool(grades[i, spot, drafted].right),
                    bool(grades[i, spot, own].right),
                    packed(row[len(NAMES) :]),
                    grades[i, spot, drafted].answer == grades[i, spot, own].answer,
                )
                for spot, row, (drafted, own) in zip(spots, seen, rivals, strict=True)
            ),
        )


def continued(
    engine: Engine, starts: Sequence[tuple[int, ...]], rooms: Sequence[int], ends: frozenset[int]
) -> list[tuple[int, ...]]:
    """What the target writes greedily behind each beginning, ``rooms`` tokens at most."""
    live = [k for k, room in enumerate(rooms) if room > 0 and starts[k][-1] not in ends]
    wishes = [SamplingParams(max_tokens=rooms[k]) for k in live]
    ran = engine.generate([starts[k] for k in live], wishes, _GREEDY) if live else []
    tails = {k: result.token_ids for k, (result,) in zip(live, ran, strict=True)}
    return [tails.get(k, ()) for k in range(len(starts))]


def plain(pair: ModelPair, ids: Sequence[int]) -> str:
    """The text of an output's ids, without end tokens."""
    kept = [token for token in ids if token not in pair.eos_token_ids]
    text: str = pair.tokenizer.decode(kept, clean_up_tokenization_spaces=False)
    return text


def mismatches(
    pair: ModelPair, prompt: tuple[int, ...], output: tuple[int, ...], states: bool = False
) -> tuple[list[int], torch.Tensor, list[tuple[int, int]]]:
    """Where both models' first choices differ along a text.

    Returns:
        positions, features ``[M, F]`` and pairs (draft's token, target's token).
    """
    assert pair.draft is not None
    if not output:
        return [], torch.empty(0, len(NAMES)), []
    target = Reread(pair.target, prompt, output, hidden=states)
    p, q = target.logprobs.exp(), Reread(pair.draft, prompt, output).logprobs.exp()
    drafted, own = q.argmax(-1), p.argmax(-1)
    seen = features(Evidence(drafted, torch.cat([p, p[-1:]]), q, torch.cat([p, p[-1:]]), q))
    spots = (drafted != own).nonzero()[:, 0].tolist()
    rivals = [(int(drafted[spot]), int(own[spot])) for spot in spots]
    seen = seen[spots]
    if states and spots:
        assert target.hidden is not None
        after = target.instead(spots, [token for token, _ in rivals])
        seen = torch.cat([seen, target.hidden[spots], after], dim=-1)
    return spots, seen, rivals


def _drawn(problem: str, count: int, most: int) -> list[int]:
    """Which of a problem's mismatches are run, in order; the same in every run."""
    if count <= most:
        return list(range(count))

    def lot(k: int) -> bytes:
        return hashlib.sha256(f"{problem}/{k}".encode()).digest()

    return sorted(sorted(range(count), key=lot)[:most])
