"""Peers in other processes, without their engines: a worker that needs nothing stands in."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.cli.run import antiphon

from antiphon.bench.figure import save
from antiphon.bench.laps import Lap, PeerError
from antiphon.bench.peers.dense import dense_folder
from antiphon.bench.peers.engines import KINDS, WORKERS
from antiphon.bench.peers.process import Process
from antiphon.bench.race import race
from antiphon.errors import UserError
from antiphon.lab import pair_path
from antiphon.models import source
from antiphon.params import SamplingParams

HONEST = f"""
import os, sys
sys.path.insert(0, {str(WORKERS)!r})
from peer_protocol import answered, serve

def set_up(wishes):
    print("a banner")
    os.write(1, b"a banner from below\\n")
    def answer(lap):
        print("progress")
        if lap["max_tokens"] == 13:
            sys.stderr.write("the kernel is missing\\n")
            os._exit(3)
        if lap["max_tokens"] == 14:
            raise ValueError("too long\\nmore")
        answers = [
            answered((ids[::-1] + lap["eos"])[: lap["max_tokens"]], wishes["first"], 1)
            for ids in lap["prompts"]
        ]
        return {{"answers": answers, "seconds": 2.0}}
    return {{"engine": "fake 1.0"}}, answer

serve(set_up)
"""


def worker(
    folder: Path, text: str = HONEST, batch: int = 1, first: float | None = 0.5, **settings: Any
) -> Process:
    script = folder / "worker.py"
    script.write_text(text)
    return Process(
        "fake",
        Path(sys.executable),
        script,
        {"first": first},
        "do this",
        lambda text: [ord(letter) for letter in text],
        eos=[7],
        batch=batch,
        **settings,
    )


@pytest.fixture(autouse=True)
def _logs_go_with_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Process]:
    process = worker(tmp_path)
    yield process
    process.close()


def test_ids_and_times_make_the_round_trip_whatever_the_engine_prints(fake: Process) -> None:
    lap = fake.run(["ab", "c"], SamplingParams(max_tokens=9))
    assert lap.token_ids == ((98, 97, 7), (99, 7))
    assert lap.seconds == 4.0  # Two prompts, one after the other.
    assert lap.decode_seconds == pytest.approx(2 * (2.0 - 0.5))
    assert lap.decode_tokens == (3 - 1) + (2 - 1)
    assert fake.about["engine"] == "fake 1.0"
    assert "a banner from below" in fake.log.read_text()
    fake.close()
    assert not fake.log.exists()


def test_a_batch_is_one_lap_and_an_unknown_first_token_leaves_no_decode_speed(
    tmp_path: Path,
) -> None:
    process = worker(tmp_path, batch=2, first=None)
    lap = process.run(["ab", "c"], SamplingParams(max_tokens=2))
    process.close()
    assert lap.token_ids == ((98, 97), (99, 7))
    assert (lap.seconds, lap.decode_seconds, lap.decode_tokens) == (2.0, 0.0, 0)


def test_a_worker_that_dies_is_told_of_with_its_last_words(fake: Process) -> None:
    with pytest.raises(PeerError, match=r"fake died \(exit status 3\).*the kernel is missing"):
        fake.run(["ab"], SamplingParams(max_tokens=13))
    with pytest.raises(PeerError, match="died"):
        fake.run(["ab"], SamplingParams(max_tokens=9))
    fake.close()
    assert fake.log.exists()


def test_an_error_of_the_engine_comes_over_in_a_line(fake: Process) -> None:
    with pytest.raises(PeerError, match=r"fake failed: ValueError: too long; log: "):
        fake.run(["ab"], SamplingParams(max_tokens=14))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("print('Loading...')", "fake printed 'Loading...' where an answer was due"),
        ("print('[1]')", "where an answer was due"),
        ("raise SystemExit('no licence')", r"fake died \(exit status 1\); it said last: no lic"),
        ("", "it said nothing"),
        ("import no_such_engine", "died.*No module named 'no_such_engine'"),
    ],
)
def test_a_worker_that_does_not_start(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        worker(tmp_path, text)


def test_a_worker_that_takes_too_long(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"fake was not ready after 0\.2 s"):
        worker(tmp_path, "import time; time.sleep(60)", start_seconds=0.2)


def test_no_interpreter(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no Python at .*nowhere: do this"):
        Process("fake", tmp_path / "nowhere", tmp_path, {}, "do this", list, eos=[7])


ENGINES = {"vllm": "vllm", "openvino": "openvino", "llama-cpp": "llama_cpp"}


@pytest.mark.parametrize(("name", "package"), ENGINES.items())
def test_a_missing_package_is_named_with_the_fix(name: str, package: str) -> None:
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed here")
    wishes = {"target": "x", "draft": None, "target_export": "x", "weights": "int8", "threads": 1}
    script = WORKERS / KINDS[name].script
    with pytest.raises(UserError, match=rf"{name}: .*python.* lacks {package}: do this"):
        Process(name, Path(sys.executable), script, wishes, "do this", list, eos=[7])


@pytest.mark.parametrize("engine", ENGINES)
def test_the_command_says_how_to_get_an_engine(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"ANTIPHON_PEER_{engine.upper().replace('-', '_')}"
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path))
    outcome = antiphon("bench", "--peers", engine, "--limit", "1")
    assert outcome.returncode == 2
    place = tmp_path / "peers" / engine / "bin" / "python"
    assert f"{engine}: there is no Python at {place}" in outcome.stderr
    assert f"scripts/peers.sh {engine}" in outcome.stderr
    monkeypatch.setenv(variable, "/nowhere/python")
    outcome = antiphon("bench", "--peers", engine, "--limit", "1")
    assert "there is no Python at /nowhere/python" in outcome.stderr


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (["--peers", "vllm,llama-cpp", "--batch", "4"], "llama-cpp answers one request at a time"),
        (["--peers", "openvino", "--peer-weights", "int3"], "choose int8"),
        (["--peers", "llama-cpp"], "reads .gguf files alone"),
        (["--peers", "vllm-draft", "--draft", "ngram"], "give --draft PATH"),
    ],
)
def test_what_a_peer_cannot_do(flags: list[str], fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ENGINES:
        monkeypatch.setenv(f"ANTIPHON_PEER_{engine.upper().replace('-', '_')}", sys.executable)
    outcome = antiphon("bench", *flags, "--limit", "1")
    assert outcome.returncode == 2
    assert fix in outcome.stderr


class Racer:
    """Writes the same tokens at its own speed; fails at its `last`."""

    def __init__(self, name: str, speed: float, peer: bool, batch: int = 1, last: int = 99) -> None:
        self.name, self.speed, self.peer, self.batch, self.last = name, speed, peer, batch, last
        self.groups: list[int] = []
        self.about: dict[str, Any] = {}

    def run(self, prompts: Sequence[str], params: SamplingParams) -> Lap:
        self.groups.append(len(prompts))
        if len(self.groups) > self.last:
            raise PeerError(f"{self.name} died")
        tokens = tuple((1, 2, 3, 4) for _ in prompts)
        seconds = 4 * len(prompts) / self.speed
        blind = self.name == "blind"
        return Lap(tokens, seconds, *((0.0, 0) if blind else (seconds / 2, 3 * len(prompts))))

    def close(self) -> None: ...


def test_every_method_is_set_against_every_peer() -> None:
    field = [
        Racer("plain", 1.0, peer=False),
        Racer("fast", 3.0, peer=False),
        Racer("p", 2.0, peer=True),
        Racer("blind", 4.0, peer=True),
    ]
    record = race(field, ["a", "b", "c"], SamplingParams()).to_json()
    json.dumps(record)
    assert record["ratios"] == pytest.approx(
        {
            "fast/plain": 3.0,
            "p/plain": 2.0,
            "blind/plain": 4.0,
            "plain/p": 0.5,
            "fast/p": 1.5,
            "plain/blind": 0.25,
            "fast/blind": 0.75,
        }
    )
    assert record["ratio_intervals"]["fast/p"] == pytest.approx([1.5, 1.5])
    assert record["decode_ratios"].keys() == {"fast/plain", "p/plain", "plain/p", "fast/p"}
    assert record["decode_ratios"].keys() == record["decode_ratio_intervals"].keys()
    blind = record["rows"][3]
    assert (blind["decode_tokens_per_second"], blind["decode_ratio"]) == (0.0, 0.0)
    assert "failed" in record
    assert not record["failed"]


def test_a_peer_that_fails_drops_out_and_its_laps_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "laps.jsonl"
    field = [Racer("plain", 1.0, peer=False), Racer("p", 2.0, peer=True, last=2)]
    report = race(field, ["a", "b", "c"], SamplingParams(), out=out)
    assert [row.name for row in report.rows] == ["plain"]
    assert report.failed == {"p": "p died"}
    names = [json.loads(line)["contestant"] for line in out.read_text().splitlines()]
    assert names == ["plain", "p", "plain", "plain"]
    with pytest.raises(PeerError):
        race([Racer("p", 1.0, peer=True, last=2)], ["a", "b", "c"], SamplingParams())


def test_a_figure_names_everyone(tmp_path: Path) -> None:
    field = [Racer("plain", 1.0, peer=False), Racer("blind", 2.0, peer=True)]
    save(race(field, ["a", "b"], SamplingParams()), "a pair", tmp_path / "new" / "race.svg")
    text = (tmp_path / "new" / "race.svg").read_text()
    assert all(word in text for word in ("plain", "blind", "a pair", "tokens/s"))


def protocol() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peer_protocol", WORKERS / "peer_protocol.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_worker_answers_once_its_threads_rest() -> None:
    until = time.monotonic() + 0.6

    def spin() -> None:
        while time.monotonic() < until:
            pass

    spinner = threading.Thread(target=spin)
    spinner.start()
    protocol().settle()
    assert not spinner.is_alive()


def test_workers_import_nothing_of_antiphon() -> None:
    scripts = [path for path in WORKERS.glob("*.py") if path.name != "__init__.py"]
    assert {kind.script for kind in KINDS.values()} < {path.name for path in scripts}
    for path in scripts:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "antiphon" for name in names), path


def test_a_plain_folder_is_its_own_dense_copy_and_others_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path))
    draft = str(pair_path("draft"))
    assert dense_folder(draft) == Path(draft).resolve()
    found = source.find(draft)
    found.config.quantization_config = {"some": "packing"}
    monkeypatch.setattr(source, "find", lambda name: found)
    said: list[str] = []
    copies = {dense_folder("packed", said.append) for _ in range(2)}
    (copy,) = copies
    assert copy == tmp_path / "dense" / found.mark()
    assert len(said) == 1
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        p.name for p in copy.iterdir()
    }
    assert list(copy.parent.iterdir()) == [copy]
    config = json.loads((copy / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
