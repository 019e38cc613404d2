"""A run on disk: one JSON line an event, written as it happens, so that nothing is lost.

Lines are of three kinds. ``run`` opens every session and says what was asked for; ``answer`` is
one graded answer; ``lap`` closes a stretch of one method's answers. A killed run is resumed
from its own file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, TypeVar

from antiphon.errors import UserError

T = TypeVar("T")
Key = tuple[str, int, str]
"""Method, seed, problem."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, as recorded.

    Attributes:
        method: text form of the method, see `methods.spec`.
        seed: of the run; 0 for greedy ones.
        problem: id.
        prompts, outputs: one a turn; the prompts as rendered, special tokens included.
        gold, answer: as the grader reads them.
        right, reason: the grade.
        seconds: its share of the machine's time. A pass over many requests is split evenly
            among them, so the shares add up to the time that passed.
        tokens, prompt_tokens: output and input.
        target_passes, draft_passes: forwards it took part in.
        rounds: rounds in which something was drafted.
        drafted, accepted: draft tokens, and those that stand.
        accepted_lengths: entry k counts the rounds that accepted k draft tokens.
        notes: what the method adds, summed over its rounds.
        finish_reason: of the last turn.
    """

    method: str
    seed: int
    problem: str
    prompts: tuple[str, ...]
    outputs: tuple[str, ...]
    gold: str
    answer: str | None
    right: bool | None
    reason: str
    seconds: float
    tokens: int
    prompt_tokens: int
    target_passes: int
    draft_passes: int
    rounds: int
    drafted: int
    accepted: int
    accepted_lengths: tuple[int, ...]
    finish_reason: str
    notes: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.method, self.seed, self.problem


@dataclass(frozen=True, slots=True)
class Log:
    """What a file holds.

    Attributes:
        path: the file.
        runs: the ``run`` lines, one a session; all have one identity.
        answers: by method, seed and problem.
        laps: the ``lap`` lines.
    """

    path: Path
    runs: tuple[dict[str, Any], ...]
    answers: Mapping[Key, Answer]
    laps: tuple[dict[str, Any], ...]

    @property
    def identity(self) -> dict[str, Any]:
        identity: dict[str, Any] = self.runs[0]["identity"]
        return identity


def read(path: Path) -> Log:
    """Read a run; a torn last line is left out.

    Raises UserError for a file that is missing or no record of a run.
    """
    runs, answers, laps = [], {}, []
    for number, record in _records(path):
        try:
            match record["kind"]:
                case "run":
                    runs.append(record)
                case "answer":
                    del record["kind"]
                    lists = ("prompts", "outputs", "accepted_lengths")
                    answer = Answer(**record | {name: tuple(record[name]) for name in lists})
                    answers[answer.key] = answer
                case "lap":
                    laps.append(record)
                case kind:
                    raise ValueError(f"kind {kind!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}, line {number}: no record of a run ({error})") from None
    if not runs:
        raise UserError(f"{path}: holds no run: give a file that antiphon eval --out has written")
    return Log(path, tuple(runs), answers, tuple(laps))


class Journal:
    """Writes a run, going on where the file ends.

    Args:
        path: made if it is not there.
        run: the ``run`` line of this session; its ``identity`` must be that of the file.

    Attributes:
        answers: what the file held already.

    Raises:
        UserError: the file holds another run, or another process writes to it.
    """

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        self.answers: Mapping[Key, Answer] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error}): check --out") from None
        try:
            _lock(self._file, path)
            if not cut_torn_line(path, _OPENING):
                raise UserError(f"{path}: is no run of antiphon eval: give another --out")
            if path.stat().st_size:
                log = read(path)
                _refuse_another(log, run["identity"])
                self.answers = log.answers
            self._write("run", run)
        except BaseException:
            self._file.close()
            raise

    def answer(self, answer: Answer) -> None:
        self._write("answer", asdict(answer))

    def lap(self, record: Mapping[str, Any]) -> None:
        self._write("lap", record)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, kind: str, record: Mapping[str, Any]) -> None:
        # One write a line: a kill leaves whole lines, but for the last one.
        self._file.write(json.dumps({"kind": kind, **record}, ensure_ascii=False) + "\n")
        self._file.flush()


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): check the path") from None
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("no JSON object")
        except ValueError as error:
            if number == len(lines):
                return  # No line end after it: the run was killed while writing it.
            raise UserError(f"{path}, line {number}: no record of a run ({error})") from None
        yield number, record


def cut_torn_line(path: Path, opening: bytes) -> bool:
    """Cut a last line without an end off a file that begins with `opening`, or a part of it.

    Any other file is left alone: then False is returned.
    """
    content = path.read_bytes()
    if not content or content.endswith(b"\n"):
        return True
    # The first line, too, is torn where the run was killed at once.
    if not opening.startswith(content[: len(opening)]):
        return False
    with path.open("r+b") as file:
        file.truncate(content.rfind(b"\n") + 1)
    return True


def read_lines(
    path: Path, opening: bytes, made: Callable[[dict[str, Any]], T], what: str
) -> list[T]:
    """What a file of one JSON object a line holds, none if it is not there.

    A torn last line is cut off. Raises UserError for a file that is something else.

    Args:
        opening: how every such file begins.
        made: from an object to what is returned.
        what: one of these is called in messages.
    """
    if not path.exists():
        return []
    if not cut_torn_line(path, opening):
        raise UserError(f"{path}: holds no {what}s: give another --out")
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(made(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}, line {number}: is no {what} ({error}): delete it, or give another --out"
            ) from None
    return found


_OPENING = b'{"kind": "run"'


def _refuse_another(log: Log, identity: Mapping[str, Any]) -> None:
    for name, value in json.loads(json.dumps(identity)).items():
        if log.identity.get(name) != value:
            raise UserError(
                f"{log.path}: holds a run with {name} {log.identity.get(name)!r}, not {value!r}: "
                "give another --out, or the same settings to go on with it"
            )


def _lock(file: TextIO, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # pragma: no cover - not on this system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"{path}: another process is writing to it: wait, or stop it") from None
