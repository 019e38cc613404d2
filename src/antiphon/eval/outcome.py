"""A reward model from outcomes: a value head on the target, taught by graded answers.

Every step of an answer is labelled with the answer's grade, so that the head learns the chance
that a solution which stands so far ends well: the verifiers of Cobbe et al. (arXiv 2110.14168),
read off the target's own hidden state. No step needs a gold label.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from antiphon.checkpoint import packed, unpacked
from antiphon.drawing import lot
from antiphon.errors import UserError
from antiphon.eval import journal
from antiphon.eval.calibrate import step_ends
from antiphon.eval.journal import Answer, read_lines
from antiphon.eval.prompting import Prompting
from antiphon.eval.reread import keep_beginning
from antiphon.lab.value_head import Report, ValueHead, auroc
from antiphon.models.base import Extension
from antiphon.models.pair import ModelPair

HELD_OUT = 5
"""One problem in so many is kept to see how well the head tells."""
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0)
PARTS = 4
"""Of the training problems, to choose the penalty by."""
FEWEST = 20
"""Held-out steps of either kind below which a figure would say nothing."""


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """One graded answer, as the target read it.

    Attributes:
        answer: file, method, seed and problem.
        problem: its id.
        right: the grade, and the label of every step.
        states: the target's last hidden states at the steps' last tokens, ``S W`` numbers as
            float16 in base64.
        width: W.
    """

    answer: str
    problem: str
    right: bool
    states: str
    width: int

    def rows(self) -> torch.Tensor:
        """The states ``[S, W]``, float32."""
        return unpacked(self.states).reshape(-1, self.width)


def graded(paths: Sequence[Path]) -> dict[str, tuple[Answer, Prompting]]:
    """Every graded answer of some recorded runs, by name, and how its prompt was put.

    Raises UserError for a file that holds no run, or a run without grades.
    """
    found: dict[str, tuple[Answer, Prompting]] = {}
    for path in paths:
        log = journal.read(path)
        prompting = Prompting(chat=log.identity["chat"])
        held = {
            f"{path.name}/{answer.method}/{answer.seed}/{answer.problem}": (answer, prompting)
            for answer in log.answers.values()
            if answer.right is not None and answer.outputs and answer.outputs[-1]
        }
        if not held:
            raise UserError(f"{path}: has no graded answers: give a run of a task that grades")
        found |= held
    return found


def collect(
    pair: ModelPair,
    answers: dict[str, tuple[Answer, Prompting]],
    boundary: str,
    out: Path,
    told: Callable[[ReadAnswer], None] = lambda _: None,
) -> list[ReadAnswer]:
    """Have the target read the answers that `out` does not hold yet, a line each.

    A killed run goes on where it was. Raises UserError for a file that is something else.
    """
    held = [one for one in read(out) if one.answer in answers]
    done = {one.answer for one in held}
    left = {name: found for name, found in answers.items() if name not in done}
    if not left:
        return held
    first, how = next(iter(answers.values()))
    kept = keep_beginning(how.encode(pair.tokenizer, first.prompts[-1]), pair.target)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:
        for name, (answer, prompting) in left.items():
            prompt, output = prompting.reread(pair.tokenizer, answer)
            if not output:
                continue
            ends = step_ends(pair.tokenizer, prompt, output, boundary)
            states = states_at(pair, prompt + output, [len(prompt) + end - 1 for end in ends])
            one = ReadAnswer(
                name, answer.problem, bool(answer.right), packed(states), states.shape[1]
            )
            file.write(json.dumps(asdict(one)) + "\n")
            file.flush()
            held.append(one)
            told(one)
    del kept
    return held


def states_at(pair: ModelPair, text: tuple[int, ...], rows: Sequence[int]) -> torch.Tensor:
    """The target's last hidden states ``[len(rows), W]`` at some places of a text."""
    tree = pair.target.new_tree(len(text))
    ask = Extension(pair.target, tree, text, rows=tuple(rows), hidden=True)
    (scores,) = pair.target.forward([ask])
    assert scores.hidden is not None
    return scores.hidden


def read(path: Path) -> list[ReadAnswer]:
    """What a file of `collect` holds; a torn last line is cut off the file."""
    return read_lines(path, b'{"answer": ', lambda line: ReadAnswer(**line), "read answer")


@dataclass(frozen=True, slots=True)
class Taught:
    """A trained head.

    Attributes:
        report: how well it tells steps of right answers from others, on held-out problems.
        penalty: on its squared weights, chosen on the training problems.
        rewards: of the held-out steps, sorted; a bound for them is chosen from these.
    """

    head: ValueHead
    report: Report
    penalty: float
    rewards: tuple[float, ...]

    def quantile(self, level: float) -> float:
        """The reward that this share of held-out steps falls below."""
        return float(torch.tensor(self.rewards).quantile(level))


def teach(answers: Iterable[ReadAnswer]) -> Taught:
    """Train a head; a problem is wholly a training problem or wholly held out.

    Raises UserError where there is too little to learn from.
    """
    sides: tuple[list[ReadAnswer], list[ReadAnswer]] = ([], [])
    for one in answers:
        sides[lot(one.problem) % HELD_OUT == 0].append(one)
    train, (held_states, held) = sides[0], _stacked(sides[1])
    few = min(int(held.sum()), int((~held).sum()))
    if few < FEWEST or len({one.right for one in train}) < 2:
        raise UserError(
            f"held-out problems have {few} steps of the rarer kind, {FEWEST} are needed: "
            "give more answers, of right and of wrong ones"
        )
    penalty = min(PENALTIES, key=lambda each: _crossed_loss(train, each))
    head = logistic(*_stacked(train), penalty)
    with torch.no_grad():
        rewards = head(held_states).sigmoid()
    steps = sum(len(one.rows()) for one in train)
    report = Report(auroc(rewards, held), len(held), float(held.float().mean()), steps)
    return Taught(head, report, penalty, tuple(rewards.sort().values.tolist()))


def logistic(states: torch.Tensor, labels: torch.Tensor, penalty: float) -> ValueHead:
    """A head without hidden units on ``[N, W]`` states: hundreds of answers teach no more.

    Args:
        penalty: on the squared weights; it also keeps the rewards from being surer than they are.
    """
    head = ValueHead(states.shape[1], width=0)
    head.mean.copy_(states.mean(0))
    head.scale.copy_(states.std(0) + 1e-3)
    nn.init.zeros_(head.outer.weight)
    nn.init.zeros_(head.outer.bias)
    optimiser = torch.optim.LBFGS(
        head.outer.parameters(), max_iter=100, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        fit = functional.binary_cross_entropy_with_logits(head(states), labels.float())
        loss: torch.Tensor = fit + penalty * head.outer.weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return head.eval()


def _crossed_loss(answers: Sequence[ReadAnswer], penalty: float) -> float:
    """The loss of steps whose problems were left out of the training, part by part."""
    total, count = 0.0, 0
    for part in range(PARTS):
        states, labels = _stacked([one for one in answers if lot(one.problem, 1) % PARTS != part])
        others, truth = _stacked([one for one in answers if lot(one.problem, 1) % PARTS == part])
        if not len(truth) or not len(labels):
            continue
        with torch.no_grad():
            odds = logistic(states, labels, penalty)(others)
            loss = functional.binary_cross_entropy_with_logits(odds, truth.float(), reduction="sum")
        total, count = total + float(loss), count + len(truth)
    return total / max(count, 1)


def _stacked(answers: Sequence[ReadAnswer]) -> tuple[torch.Tensor, torch.Tensor]:
    """States ``[N, W]`` and labels ``[N]`` of all steps."""
    rows = [one.rows() for one in answers]
    if not rows:
        return torch.empty(0, 0), torch.empty(0, dtype=torch.bool)
    labels = [torch.full((len(r),), one.right) for r, one in zip(rows, answers, strict=True)]
    return torch.cat(rows), torch.cat(labels)
