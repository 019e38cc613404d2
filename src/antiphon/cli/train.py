"""`antiphon train-arbiter`: CoSpec's arbiter in three stages, each of which resumes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from antiphon.arbiter import mine as mining
from antiphon.arbiter import reinforce as reinforcing
from antiphon.arbiter import warm
from antiphon.arbiter.policy import load
from antiphon.checkpoint import bind
from antiphon.cli import options as opt
from antiphon.cli.eval import build_task, examples
from antiphon.errors import UserError
from antiphon.eval import data as rows
from antiphon.eval.prompting import Prompting, unshown
from antiphon.eval.task import Problem, Task
from antiphon.models.pair import ModelPair

STAGES = ("mine", "warm", "reinforce")


def train_arbiter(
    out: Annotated[Path, typer.Option(help="Folder of the arbiter and everything on the way.")],
    task: Annotated[str, typer.Option(help="What the problems are.")] = "lab",
    data: Annotated[
        Path | None, typer.Option(help="JSONL of the task's TRAIN split. Not for lab.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Problems to mine.")] = 2000,
    stages: Annotated[
        str, typer.Option(help="mine, warm, reinforce; commas between.")
    ] = "mine,warm,reinforce",
    shots: Annotated[int, typer.Option(help="Worked examples in the prompt.")] = 0,
    shots_from: Annotated[Path | None, typer.Option(help="JSONL they come from.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Longest output. Default: the task's.")
    ] = None,
    branches: Annotated[int, typer.Option(help="Branches a problem at most.")] = 8,
    both_right: Annotated[
        float, typer.Option(help="Weight of mismatches where both branches are right.")
    ] = 0.2,
    epochs: Annotated[int, typer.Option(help="Of the warm start.")] = 60,
    steps: Annotated[int, typer.Option(help="Updates of the reinforcement.")] = 200,
    rollouts: Annotated[int, typer.Option(help="Rollouts a problem and update.")] = 8,
    states: Annotated[
        bool, typer.Option(help="Let the arbiter see the target's hidden states, too.")
    ] = True,
    noise: Annotated[
        float, typer.Option(help="On the features of the warm start, in their spreads.")
    ] = 0.3,
    width: Annotated[
        int, typer.Option(help="Hidden units; 0, a logistic regression, for few problems.")
    ] = 64,
    labels: Annotated[
        str, typer.Option(help="gold, or target: keep what gives the target's own answer.")
    ] = "gold",
    rate: Annotated[
        float, typer.Option(help="Of the reinforcement's Adam; few updates want more.")
    ] = 1e-3,
    speed: Annotated[float, typer.Option(help="Reward for a token per target pass.")] = 0.02,
    gamma: Annotated[int, typer.Option(help="Draft tokens per round.")] = 4,
    batch: Annotated[int, typer.Option(help="Requests at once.")] = 16,
    seed: Annotated[int, typer.Option(help="Of the training.")] = 0,
    tensorboard: Annotated[
        bool, typer.Option(help="Curves of the reinforcement, too, in OUT/reinforce.")
    ] = False,
    target: opt.Target = None,
    draft: opt.Draft = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    target_quant: opt.TargetQuant = "none",
    draft_quant: opt.DraftQuant = "none",
    head: opt.DraftVocab = None,
    threads: opt.Threads = None,
    engine: opt.Engine = "auto",
) -> None:
    """Train an arbiter: which mismatches the draft should win."""
    wanted = [name.strip() for name in stages.split(",") if name.strip()]
    unknown = next((name for name in wanted if name not in STAGES), None)
    if unknown is not None or not wanted:
        raise UserError(f"--stages is {stages!r}: choose {', '.join(STAGES)}")
    if draft == "ngram" or (target is not None and draft is None):
        raise UserError("an arbiter stands between two models: give --draft PATH")
    if limit < 1:
        raise UserError(f"--limit is {limit}: give a whole number >= 1")
    chosen = build_task(task, None, None)
    prompting = Prompting(shots=examples(chosen, shots, shots_from))
    problems = list(unshown(train_problems(chosen, data, limit), prompting.shots))
    longest = max_tokens or chosen.max_tokens
    miner = mining.Miner(chosen, prompting, longest, None, branches, batch, states)
    recipe = warm.Recipe(
        epochs=epochs,
        both_right=both_right,
        noise=noise,
        seed=seed,
        labels=labels,
        width=width,
    )
    lessons = reinforcing.Recipe(
        steps=steps, rollouts=rollouts, rate=rate, speed=speed, gamma=gamma, seed=seed
    )
    draw = curves(out / "reinforce") if tensorboard else None
    pair = opt.load(
        target, draft, device, dtype, target_quant, draft_quant, threads, None, engine, head
    )
    console = Console(stderr=True)
    if "mine" in wanted:
        bind(out / "mining.json", _settings(miner, data, pair))
        mined = _mine(miner, pair, problems, out, console)
        console.print(shares(mined), highlight=False)
    if "warm" in wanted:
        _warm(recipe, states, pair, out, console)
    if "reinforce" in wanted:
        _reinforce(lessons, miner, pair, problems, out, console, draw)
    typer.echo(json.dumps({"arbiter": str(out), "stages": wanted}))


def curves(folder: Path) -> Callable[[reinforcing.Update], None]:
    """Draws what each update saw with TensorBoard, which must be installed.

    Raises:
        UserError: where it is not.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard needs tensorboard: pip install tensorboard") from None
    writer: Any = SummaryWriter(str(folder))

    def draw(update: reinforcing.Update) -> None:
        for name, value in asdict(update).items():
            if name != "step" and value is not None:
                writer.add_scalar(name, value, update.step)
        writer.flush()

    return draw


def train_problems(task: Task, data: Path | None, limit: int) -> list[Problem]:
    """Problems no result is reported on."""
    if data is not None:
        return list(rows.load(task, data, limit).problems)
    if task.name != "lab":
        raise UserError("--data is missing: give a JSONL of the task's train split")
    from antiphon.lab.problems import problem

    drawn = (problem("train", 10**9 + index) for index in range(limit))
    return [task.problem(asdict(one), index) for index, one in enumerate(drawn)]


def _settings(miner: mining.Miner, data: Path | None, pair: ModelPair) -> dict[str, Any]:
    """What mined branches depend on; the number of problems and the batch may change."""
    return {
        "pair": pair.description,
        "task": miner.task.name,
        "data": data.name if data else "",
        "shots": [shot.id for shot in miner.prompting.shots],
        "max_tokens": miner.max_tokens,
        "branches": miner.most,
        "states": miner.states,
    }


def shares(mined: list[mining.Mined]) -> str:
    """Whose branch is right, over all mismatches that were run."""
    found = [branch for one in mined for branch in one.branches]
    if not found:
        return "no mismatches were found"
    names = ("neither", "only the target's", "only the draft's", "both")
    counts = [0] * 4
    for branch in found:
        counts[2 * branch.draft_right + branch.target_right] += 1
    parts = ", ".join(
        f"{name} {count / len(found):.1%}" for name, count in zip(names, counts, strict=True)
    )
    return f"{len(found)} mismatches of {len(mined)} problems; right branch: {parts}"


def _mine(
    miner: mining.Miner, pair: ModelPair, problems: list[Problem], out: Path, console: Console
) -> list[mining.Mined]:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("mining", total=len(problems))
        path = out / "branches.jsonl"
        progress.update(bar, completed=len(mining.read(path)))
        return mining.mine(miner, pair, problems, path, lambda _: progress.advance(bar))


def _warm(recipe: warm.Recipe, states: bool, pair: ModelPair, out: Path, console: Console) -> None:
    train, held = warm.split(mining.read(out / "branches.jsonl"), recipe, states)
    policy = warm.warm_start(recipe, train, held, pair.fingerprint, out / "warm" / "checkpoint.pt")
    policy.save_pretrained(str(out / "warm"))
    policy.save_pretrained(str(out))
    console.print(
        f"warm start: {len(train)} mismatches; agreement with the "
        f"{'oracle' if recipe.labels == 'gold' else 'labels'} on "
        f"{len(held)} held-out ones {warm.agreement(policy, held):.1%}",
        highlight=False,
    )


def _reinforce(
    recipe: reinforcing.Recipe,
    miner: mining.Miner,
    pair: ModelPair,
    problems: list[Problem],
    out: Path,
    console: Console,
    draw: Callable[[reinforcing.Update], None] | None,
) -> None:
    policy = load(out / "warm", pair.fingerprint).train()
    size = max(len(problems) // warm.HELD_OUT, 1)
    log = out / "reinforce" / "log.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)

    def told(update: reinforcing.Update) -> None:
        record: dict[str, Any] = asdict(update)
        with log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")
        if draw is not None:
            draw(update)
        if update.validation is not None:
            console.print(
                f"update {update.step + 1}: right {update.right:.1%}, "
                f"{update.tokens_per_pass:.2f} tokens a pass, kept {update.kept:.1%}, "
                f"validation {update.validation:.4f}",
                highlight=False,
            )

    policy = reinforcing.reinforce(
        recipe,
        miner,
        pair,
        problems[size:],
        problems[:size],
        policy,
        out / "reinforce" / "checkpoint.pt",
        told,
    )
    policy.save_pretrained(str(out))
