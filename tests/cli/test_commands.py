"""The commands on the bundled pair, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.run import antiphon

from antiphon.lab import pair_path, problems

QUESTION = problems("test")[0].question


def test_json_is_one_object_with_everything_cut_at_one_place() -> None:
    outcome = antiphon("generate", QUESTION, "--json", "--max-tokens", "60", "--logprobs", "2")
    assert outcome.returncode == 0, outcome.stderr
    record = json.loads(outcome.stdout)
    assert set(record) >= {"text", "token_ids", "finish_reason", "logprobs", "provenance"}
    size = len(record["token_ids"])
    assert size == len(record["logprobs"]) == len(record["provenance"])
    assert size == record["statistics"]["completion_tokens"]
    assert record["statistics"]["num_spec_steps"] > 0


def test_methods_and_ways_of_printing_agree() -> None:
    """Greedy: plain, speculative, self-drafted, looked up and streamed text are the same."""
    texts = [
        antiphon("generate", QUESTION, "--dtype", "float32", "--max-tokens", "60", *flags).stdout
        for flags in (
            ["--method", "autoregressive"],
            ["--gamma", "3"],
            ["--chains", "3"],
            ["--draft", "self"],
            ["--draft", "ngram"],
            ["--stream"],
            ["--gamma", "auto"],
        )
    ]
    assert texts[0].strip()
    assert len({text.strip() for text in texts}) == 1


def test_a_trace_holds_every_round_and_the_result(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    outcome = antiphon("generate", QUESTION, "--trace", str(file), "--json", "--max-tokens", "40")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    committed = [t for r in records if r["event"] == "round" for t in r["committed"]]
    assert committed == json.loads(outcome.stdout)["token_ids"]
    assert records[-1]["event"] == "finished"


def test_ctrl_c_prints_what_was_written() -> None:
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "antiphon", "generate", QUESTION, "--stream"),
            *("--max-tokens", "400", "--ignore-eos", "--temperature", "1", "--seed", "1"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # A shell's background job ignores Ctrl-C, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(8)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert first
    assert rest.endswith("\n")
    assert "Traceback" not in errors
    assert process.returncode == 130


def test_the_demo_solves_a_problem_both_ways() -> None:
    outcome = antiphon("demo", "--repeats", "1")
    assert outcome.returncode == 0, outcome.stderr
    for expected in ("autoregressive", "speculative", "same tokens: yes", "speed-up"):
        assert expected in outcome.stdout


def test_a_trace_becomes_a_page(tmp_path: Path) -> None:
    trace, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
    wish = ("--temperature", "0.9", "--seed", "1", "--max-tokens", "20", "-n", "2")
    outcome = antiphon("generate", QUESTION, "--method", "smc", *wish, "--trace", str(trace))
    assert outcome.returncode == 0, outcome.stderr
    outcome = antiphon("trace", "view", str(trace), "--out", str(page))
    assert outcome.returncode == 0, outcome.stderr
    text = page.read_text()
    assert '"title": "sample 0"' in text
    assert '"who": "bonus"' in text
    assert '"mean_ess"' in text
    trace.write_text("{}")
    outcome = antiphon("trace", "view", str(trace), "--out", str(page))
    assert outcome.returncode == 2
    assert "--trace" in outcome.stderr


def test_bench_ends_in_one_json_line(tmp_path: Path) -> None:
    out = tmp_path / "laps.jsonl"
    outcome = antiphon(
        *("bench", "--limit", "2", "--max-tokens", "12", "--dtype", "float32"),
        *("--methods", "autoregressive,speculative,ngram,multi-draft"),
        *("--method", "easd:gamma=2,veto_entropy=99"),
        *("--peers", "transformers,transformers-assisted", "--peer-dtype", "float32"),
        *("--out", str(out)),
    )
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads(outcome.stdout.splitlines()[-1])
    assert report["ratios"].keys() == {
        "speculative/autoregressive",
        "ngram/autoregressive",
        "multi-draft/autoregressive",
        "easd:gamma=2,veto_entropy=99/autoregressive",
        "transformers/autoregressive",
        "transformers-assisted/autoregressive",
        *(
            f"{mine}/{peer}"
            for mine in (
                *("autoregressive", "speculative", "ngram", "multi-draft"),
                "easd:gamma=2,veto_entropy=99",
            )
            for peer in ("transformers", "transformers-assisted")
        ),
    }
    assert all(row["same_text"] == 2 for row in report["rows"])
    assert len(out.read_text().splitlines()) == 14


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (["--batch", "0"], "--batch"),
        (["--timeout", "-1"], "--timeout"),
        (["--max-context", "1"], "--max-context"),
        (["--method", "magic"], "choose"),
        (["--method", "cospec:arbiter=/nowhere"], "train-arbiter"),
        (["--draft", "ngram"], "drafter=ngram"),
    ],
)
def test_bad_serve_flags(flags: list[str], fix: str) -> None:
    outcome = antiphon("serve", "--port", "0", *flags)
    assert outcome.returncode == 2
    assert fix in outcome.stderr


def test_bench_races_what_samples() -> None:
    outcome = antiphon(
        *("bench", "--limit", "1", "--max-tokens", "8", "--dtype", "float32", "--methods", ""),
        *("--method", "smc:particles=2,gamma=2", "--temperature", "0.8"),
    )
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout.splitlines()[-1])["temperature"] == 0.8
    outcome = antiphon("bench", "--limit", "1", "--method", "smc")
    assert outcome.returncode == 2
    assert "--temperature" in outcome.stderr


def test_bench_costs_measures_every_row_count() -> None:
    outcome = antiphon("bench", "--costs")
    record = json.loads(outcome.stdout.splitlines()[-1])
    assert list(record["target_ms"]) == ["1", "2", "4", "8", "16", "32", "64"]


def test_bench_rules_measures_every_rule() -> None:
    outcome = antiphon("bench", "--rules", "--gamma", "2")
    record = json.loads(outcome.stdout.splitlines()[-1])
    assert set(record["rule_ms"]) >= {"exact", "cactus", "mentored", "exact, veto entropy"}
    assert min(record["rule_ms"].values()) > 0


def test_bench_split_says_where_a_round_goes() -> None:
    outcome = antiphon("bench", "--split", "--limit", "2", "--batch", "2", "--max-tokens", "12")
    assert outcome.returncode == 0, outcome.stderr
    record = json.loads(outcome.stdout.splitlines()[-1])
    plain, fast = record["split"]
    assert (plain["name"], fast["name"]) == ("autoregressive", "speculative")
    assert plain["draft_ms"] == 0 < fast["draft_ms"]
    assert plain["requests"] == 2
    for row in (plain, fast):
        parts = row["draft_ms"] + row["target_ms"] + row["engine_ms"]
        assert row["round_ms"] == pytest.approx(parts)
        assert 0 < row["engine_share"] < 1


def test_rules_are_named_on_the_command_line() -> None:
    flags = ("--temperature", "0.7", "--seed", "1", "--max-tokens", "60", "--dtype", "float32")
    exact = antiphon("generate", QUESTION, *flags).stdout
    easd = ("--method", "easd", "--veto-entropy", "99")
    cactus = ("--rule", "cactus", "--rule-arg", "delta=0")
    for neutral in (easd, cactus, ("--rescue", "kl-judge/kl=-1")):
        outcome = antiphon("generate", QUESTION, *flags, *neutral)
        assert outcome.returncode == 0, outcome.stderr
        assert outcome.stdout == exact


def test_chat_keeps_the_conversation() -> None:
    outcome = antiphon("chat", "--max-tokens", "20", stdin=f"{QUESTION}\nWhat is 2 + 3?\n")
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr.count("tok/s") == 2


def test_methods_lists_every_method() -> None:
    outcome = antiphon("methods")
    assert "autoregressive" in outcome.stdout
    assert "confidence" in outcome.stdout
    for name in ("easd", "cactus", "kl-judge", "entropy"):
        assert name in outcome.stdout
    assert "SOURCE" not in outcome.stdout


def test_importing_the_library_is_cheap() -> None:
    """Guards lazy imports: `import antiphon` must not load transformers."""
    code = "import sys, antiphon; print('transformers' in sys.modules)"
    began = time.perf_counter()
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert outcome.stdout.strip() == "False"
    assert time.perf_counter() - began < 60


@pytest.mark.parametrize("which", ["target", "draft"])
def test_the_bundled_models_are_small_and_pickle_free(which: str) -> None:
    files = list(pair_path(which).iterdir())
    assert not [f for f in files if f.suffix in (".bin", ".pt", ".pkl")]
    assert sum(f.stat().st_size for f in files) < 24 * 2**20


def test_lab_eval_grades_a_bundled_model() -> None:
    outcome = antiphon("lab", "eval", "--which", "draft", "--limit", "4")
    assert outcome.returncode == 0, outcome.stderr
    record = json.loads(outcome.stdout.splitlines()[-1])
    assert record["n"] == 4
    assert record["interval"][0] <= record["right"] / 4 <= record["interval"][1]


def test_lab_train_writes_a_model_and_goes_on_where_it_was(tmp_path: Path) -> None:
    flags = ("lab", "train", "--out", str(tmp_path), "--which", "draft", "--threads", "1")
    assert antiphon(*flags, "--tokens", "3000").returncode == 0
    assert (tmp_path / "draft" / "model.safetensors").is_file()
    assert not list(tmp_path.rglob("*.pt"))
    again = antiphon(*flags, "--tokens", "3000")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (["train", "--out", "x", "--which", "both", "--minutes", "0"], "positive"),
        (["train", "--out", "x", "--which", "judge"], "choose"),
        (["eval", "--which", "/nowhere"], "model folder"),
        (["eval", "--split", "exam"], "choose"),
        (["eval", "--limit", "0"], ">= 1"),
    ],
)
def test_bad_lab_flags(flags: list[str], fix: str) -> None:
    outcome = antiphon("lab", *flags)
    assert outcome.returncode == 2
    assert fix in outcome.stderr


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (["--limit", "0"], ">= 1"),
        (["--methods", "magic"], "is not known: choose"),
        (["--method", "smc:particles=x"], "particles"),
        (["--peers", "magic"], "peers are"),
        (["--peers", "transformers", "--batch", "4"], "--batch 1"),
        (["--peers", "transformers", "--peer-dtype", "int3"], "choose"),
        (["--task", "gsm8k"], "--data FILE"),
        (["--data", "/nowhere.jsonl"], "check --data"),
        (["--methods", ""], "nobody races"),
    ],
)
def test_bad_bench_flags(flags: list[str], fix: str) -> None:
    outcome = antiphon("bench", *flags)
    assert outcome.returncode == 2
    assert fix in outcome.stderr


def test_plan_forecasts_here_and_elsewhere(tmp_path: Path) -> None:
    run = tmp_path / "run.jsonl"
    assert antiphon("eval", "--limit", "2", "--max-tokens", "20", "--out", str(run)).returncode == 0
    outcome = antiphon("plan", "--hardware", "this,h100", "--replay", str(run), "--batch", "2")
    assert outcome.returncode == 0, outcome.stderr
    record = json.loads(outcome.stdout.splitlines()[-1])
    assert record["this"]["autoregressive"] > 0
    assert record["h100"]["speculative:gamma=4"] > record["h100"]["autoregressive"]
    assert set(record["this replay"]) == {"autoregressive", "draft-only", "speculative"}
    sizes = ("--hardware", "h200", "--parameters", "70e9,1e9", "--acceptance", "0.8")
    assert antiphon("plan", *sizes, "--all").returncode == 0


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (["--hardware", "h1000"], "choose this"),
        (["--parameters", "70e9,1e9"], "name a --hardware"),
        (["--parameters", "x", "--hardware", "h100", "--acceptance", "0.5"], "70e9,1e9"),
        (["--parameters", "70e9,1e9", "--hardware", "h100"], "--acceptance"),
        (["--acceptance", "2"], "--acceptance"),
        (["--draft", "ngram"], "draft model"),
    ],
)
def test_bad_plan_flags(flags: list[str], fix: str) -> None:
    outcome = antiphon("plan", *flags)
    assert outcome.returncode == 2
    assert fix in outcome.stderr
