"""antiphon as lm_eval's model: on local tasks from the bundled problems, offline, in float32.

References are a plain transformers forward and lm_eval's own transformers model, of the same
target.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM

from antiphon.errors import UserError
from antiphon.integrations import likelihood
from antiphon.integrations import lm_eval as adapter
from antiphon.integrations.lm_eval import AntiphonLM
from antiphon.integrations.lm_eval_arguments import sampling_params
from antiphon.lab import pair_path, problems

PROBLEMS = problems("test")[:6]
GREEDY: dict[str, Any] = {"until": ["<|endoftext|>"], "do_sample": False, "max_gen_toks": 120}
SAMPLED: dict[str, Any] = {"until": [], "temperature": 1.0, "max_gen_toks": 24}


@functools.cache
def model(method: str = "speculative") -> AntiphonLM:
    return AntiphonLM(method=method, dtype="float32", batch=4)


@functools.cache
def lm_evals_own() -> Any:
    from lm_eval.models.huggingface import HFLM

    path = str(pair_path("target"))
    return HFLM(pretrained=path, device="cpu", dtype="float32", batch_size=4)


@functools.cache
def plain() -> Any:
    path = pair_path("target")
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def requests(*args: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=arg) for arg in args]


def prompts() -> list[str]:
    turns = [[{"role": "user", "content": problem.question}] for problem in PROBLEMS]
    return [model().apply_chat_template(turn) for turn in turns]


def choices(index: int) -> list[str]:
    answer = PROBLEMS[index].answer
    numbers = [answer + shift for shift in (3, -1, 10, 1)]
    numbers[index % 4] = answer
    return [str(number) for number in numbers]


def one_forward(context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """The likelihood of a continuation from one unbatched transformers forward."""
    ids = torch.tensor([context + continuation])
    with torch.no_grad():
        logprobs = plain()(ids[:, :-1]).logits[0, len(context) - 1 :].log_softmax(-1)
    chosen = torch.tensor(continuation)
    total = logprobs.gather(1, chosen[:, None]).sum().item()
    return total, bool((logprobs.argmax(-1) == chosen).all())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "lm_eval.antiphon"][:-1]


class TestTasks:
    """Task files as a user would write them, run through lm_eval."""

    @pytest.fixture
    def tasks(self, tmp_path: Path) -> Path:
        """A folder with a generating and a multiple-choice task over the bundled problems."""
        data = tmp_path / "problems.jsonl"
        rows = [
            {
                "question": problem.question,
                "answer": str(problem.answer),
                "steps": "\n\n".join(problem.steps[:-1]),
                "choices": choices(i),
                "label": i % 4,
            }
            for i, problem in enumerate(PROBLEMS)
        ]
        data.write_text("\n".join(map(json.dumps, rows)))
        common = {
            "dataset_path": "json",
            "dataset_kwargs": {
                "data_files": {"test": str(data)},
                "cache_dir": str(tmp_path / "cache"),
            },
            "test_split": "test",
        }
        number = {"function": "regex", "regex_pattern": r"The answer is (-?\d+)"}
        generating = common | {
            "task": "lab_write",
            "output_type": "generate_until",
            "doc_to_text": "{{question}}",
            "doc_to_target": "{{answer}}",
            "generation_kwargs": {"until": ["<|endoftext|>"], "do_sample": False},
            "filter_list": [
                {"name": "number", "filter": [number, {"function": "take_first"}]},
            ],
            "metric_list": [{"metric": "exact_match", "aggregation": "mean"}],
        }
        choosing = common | {
            "task": "lab_choose",
            "output_type": "multiple_choice",
            "doc_to_text": "<|user|>{{question}}<|assistant|>{{steps}}\n\nThe answer is",
            "doc_to_choice": "choices",
            "doc_to_target": "label",
            "metric_list": [{"metric": "acc", "aggregation": "mean"}],
        }
        folder = tmp_path / "tasks"
        folder.mkdir()
        for task in (generating, choosing):
            (folder / f"{task['task']}.yaml").write_text(yaml.safe_dump(task))
        return folder

    def test_results_do_not_depend_on_the_method(self, tasks: Path) -> None:
        """Texts are equal too, and the target solves its own problems."""
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager

        texts, scores = {}, {}
        for method in ("autoregressive", "speculative"):
            results = simple_evaluate(
                model="antiphon",
                model_args=f"method={method},dtype=float32,batch=4",
                tasks=["lab_write"],
                apply_chat_template=True,
                task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
                bootstrap_iters=0,
            )
            samples = results["samples"]["lab_write"]
            texts[method] = [sample["resps"] for sample in samples]
            scores[method] = results["results"]["lab_write"]["exact_match,number"]
            assert results["config"]["method"] == method
        assert texts["autoregressive"] == texts["speculative"]
        assert scores["autoregressive"] == scores["speculative"] >= 0.5

    def test_likelihoods_through_the_command(
        self, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arguments = ["--model_args", "dtype=float32,batch=4", "--tasks", "lab_choose"]
        arguments += ["--include_path", str(tasks), "--output_path", str(tmp_path / "out")]
        self.command(monkeypatch, arguments)
        (written,) = (tmp_path / "out").rglob("results*.json")
        results = json.loads(written.read_text())
        right = 0
        for i, problem in enumerate(PROBLEMS):
            steps = "\n\n".join([*problem.steps[:-1], "The answer is"])
            context = model().tok_encode(prompts()[i] + steps)
            scores = [one_forward(context, model().tok_encode(f" {c}"))[0] for c in choices(i)]
            right += scores.index(max(scores)) == i % 4
        assert results["results"]["lab_choose"]["acc,none"] == pytest.approx(right / len(PROBLEMS))

    def test_a_mistake_is_one_line_and_exit_code_2(
        self, tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["--model_args", "gama=4", "--tasks", "lab_choose"]
        with pytest.raises(SystemExit) as end:
            self.command(monkeypatch, [*arguments, "--include_path", str(tasks)])
        assert end.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: the model argument 'gama' is not known")

    @staticmethod
    def command(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
        """Run our file as a command would, in this process and without lm_eval's own tasks.

        Reading those takes it about 20 seconds.
        """
        import lm_eval.__main__
        import lm_eval.tasks

        manager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
        monkeypatch.setattr(lm_eval.tasks, "TaskManager", manager)
        monkeypatch.setattr(lm_eval.__main__, "setup_logging", lambda: None)
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # The command sets it: so put back.
        monkeypatch.setattr(sys, "argv", ["lm_eval", "--model", "antiphon", *arguments])
        runpy.run_path(str(adapter.__file__), run_name="__main__")

    @pytest.mark.slow
    def test_the_shell(self, tasks: Path) -> None:
        command = [sys.executable, "-m", "antiphon.integrations.lm_eval", "--model", "antiphon"]
        command += ["--tasks", "lab_choose", "--include_path", str(tasks)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        assert "|lab_choose|" in run.stdout


class TestGenerateUntil:
    @pytest.mark.parametrize(
        "until", [[], "\n\n", [" = ", "The"], ["<|endoftext|>", "\n\nThe answer"]], ids=repr
    )
    def test_texts_are_those_of_lm_evals_own_model(self, until: Any) -> None:
        asked = [(prompt, GREEDY | {"until": until}) for prompt in prompts()[:4]]
        wanted = lm_evals_own().generate_until(copy.deepcopy(requests(*asked)), disable_tqdm=True)
        assert model().generate_until(requests(*asked), disable_tqdm=True) == wanted

    def test_a_token_without_text_stops_too(self) -> None:
        """As do tokens that end a turn in chat models, where they are not the end token."""
        added = model().tokenizer.get_added_vocab()
        params = sampling_params({"until": ["<|user|>"]}, added)
        assert params.stop_token_ids == (added["<|user|>"],)

    def test_repeats_are_samples_and_the_global_seed_governs_them(self) -> None:
        asked = requests(*[(prompts()[0], SAMPLED)] * 3, (prompts()[1], SAMPLED))
        runs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            runs.append(model().generate_until(asked, disable_tqdm=True))
        assert runs[0] == runs[1]
        assert runs[0] != runs[2]
        assert len({text for texts in runs for text in texts[:3]}) > 1

    def test_a_seed_of_its_own_comes_first(self) -> None:
        asked = requests(*[(prompts()[0], SAMPLED | {"seed": 7})] * 4)
        texts = model().generate_until(asked, disable_tqdm=True)
        torch.manual_seed(5)
        assert model().generate_until(asked, disable_tqdm=True) == texts

    def test_a_long_prompt_loses_its_beginning(self, caplog: pytest.LogCaptureFixture) -> None:
        wish = GREEDY | {"max_gen_toks": 20}
        ids = model().tok_encode(" ".join(problem.question for problem in problems("test")[:40]))
        assert len(ids) > 1100
        long, fits = (model().tokenizer.decode(ids[-n:]) for n in (1100, 1004))
        asked = requests((long, wish), (fits, wish), ("A " + long, wish))
        caplog.set_level(logging.INFO, "lm_eval.antiphon")
        texts = model().generate_until(asked, disable_tqdm=True)
        assert texts[0] == texts[1] == texts[2]
        (warning,) = warnings(caplog)
        assert "2 of 3 prompts" in warning
        with pytest.raises(UserError, match="max_gen_toks is 1024"):
            model().generate_until(requests(("a", {"max_gen_toks": 1024})), disable_tqdm=True)

    def test_answers_go_to_the_cache_in_their_own_places(self) -> None:
        lm = copy.copy(model())
        seen: list[Any] = []
        lm.cache_hook = SimpleNamespace(add_partial=lambda *entry: seen.append(entry))
        asked = requests(*[(prompt, GREEDY) for prompt in prompts()], (prompts()[0], GREEDY))
        texts = lm.generate_until(asked, disable_tqdm=True)
        assert texts[0] == texts[-1]
        wanted = [
            ("generate_until", ask.args, text) for ask, text in zip(asked, texts, strict=True)
        ]
        assert sorted(seen, key=repr) == sorted(wanted, key=repr)

    def test_nothing_is_written_where_one_request_is_refused(self) -> None:
        lm = copy.copy(model())
        lm.cache_hook = SimpleNamespace(add_partial=lambda *_: pytest.fail("a text was written"))
        asked = requests((prompts()[0], GREEDY), (prompts()[1], GREEDY | {"penalty": 1}))
        with pytest.raises(UserError, match="'penalty' is not known"):
            lm.generate_until(asked, disable_tqdm=True)

    def test_greedy_with_a_temperature_is_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        wish = GREEDY | {"temperature": 0.7, "max_gen_toks": 4}
        asked = requests(*[(prompt, wish) for prompt in prompts()])
        caplog.set_level(logging.INFO, "lm_eval.antiphon")
        model().generate_until(asked, disable_tqdm=True)
        (warning,) = warnings(caplog)
        assert "temperature 0.7 does not count" in warning


class TestLikelihood:
    @pytest.mark.parametrize("rows", [8, 2048])
    def test_it_is_that_of_a_plain_forward(
        self, rows: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With shared, nested and empty contexts, one-token and long continuations."""
        monkeypatch.setattr(likelihood, "ROWS", rows)
        asked: list[tuple[str, str]] = [("", "A box"), ("", PROBLEMS[0].question)]
        for problem, prompt in zip(PROBLEMS[:3], prompts(), strict=False):
            asked += [
                (prompt, problem.solution),
                (prompt, problem.steps[0]),
                (prompt, "The"),
                (f"{prompt}{problem.steps[0]} ", "The answer is 12."),
                (f"{prompt}{problem.steps[0]}\n\n", problem.steps[1]),
            ]
        answers = model().loglikelihood(requests(*asked), disable_tqdm=True)
        for (context, continuation), (logprob, greedy) in zip(asked, answers, strict=True):
            if context:
                pair = model()._encode_pair(context, continuation)
            else:
                pair = [model().eot_token_id], model().tok_encode(continuation)
            total, is_top = one_forward(*pair)
            assert logprob == pytest.approx(total, rel=1e-5, abs=1e-4)
            assert greedy == is_top
        assert {greedy for _, greedy in answers} == {True, False}
        own = lm_evals_own().loglikelihood(requests(*asked), disable_tqdm=True)
        assert [logprob for logprob, _ in answers] == pytest.approx(
            [a for a, _ in own], rel=1e-5, abs=1e-4
        )
        assert [greedy for _, greedy in answers] == [greedy for _, greedy in own]

    def test_what_greedy_decoding_writes_is_greedy(self) -> None:
        asked = requests(*[(prompt, GREEDY) for prompt in prompts()])
        texts = model("autoregressive").generate_until(asked, disable_tqdm=True)
        pairs = [*zip(prompts(), texts, strict=True), (prompts()[0], texts[0].replace("2", "3"))]
        answers = model().loglikelihood(requests(*pairs), disable_tqdm=True)
        assert [greedy for _, greedy in answers] == [True] * len(texts) + [False]

    def test_whole_texts_longer_than_the_context(self) -> None:
        long = " ".join(problem.question for problem in problems("test")[:60])
        assert len(model().tok_encode(long)) > 2048
        asked = requests((long,), (PROBLEMS[0].question,), ("",), (PROBLEMS[1].question,))
        own = lm_evals_own().loglikelihood_rolling(asked, disable_tqdm=True)
        answers = model().loglikelihood_rolling(asked, disable_tqdm=True)
        assert answers == pytest.approx(own, rel=1e-5, abs=1e-4)
        ids = model().tok_encode(PROBLEMS[0].question)
        assert answers[1] == pytest.approx(
            one_forward([model().eot_token_id], ids)[0], rel=1e-5, abs=1e-4
        )

    def test_a_long_context_loses_its_beginning(self, caplog: pytest.LogCaptureFixture) -> None:
        ids = model().tok_encode(" ".join(problem.question for problem in problems("test")[:40]))
        end = model().tok_encode("The answer is 12.")
        answers = model()._loglikelihood_tokens(
            [(("a", "b"), ids, end), (("c", "d"), ids[:50], end)], disable_tqdm=True
        )
        kept = ids[-(1025 - len(end)) :]
        assert answers[0][0] == pytest.approx(one_forward(kept, end)[0], rel=1e-5, abs=1e-4)
        (record,) = [r for r in caplog.records if r.name == "lm_eval.antiphon"]
        assert "1 of 2 texts" in record.getMessage()
        for wrong in ([], [5] * 1025):
            with pytest.raises(UserError, match="the target can judge 1 to 1024"):
                model()._loglikelihood_tokens([(("a", "b"), ids, wrong)], disable_tqdm=True)


class TestTokens:
    def test_no_second_bos(self) -> None:
        lm = copy.copy(model())
        lm.tokenizer = copy.deepcopy(lm.tokenizer)
        lm.tokenizer.bos_token = "<|user|>"
        bos = lm.tokenizer.bos_token_id
        lm.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<|user|> $A", special_tokens=[("<|user|>", bos)]
        )
        assert lm.prefix_token_id == bos
        assert lm.tok_encode("A box").count(bos) == 1
        assert lm.tok_encode("<|user|>A box") == lm.tok_encode("A box")
        assert lm.tok_encode("A box", add_special_tokens=False).count(bos) == 0

    def test_chat_template(self) -> None:
        lm = model()
        turns = [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "B"}]
        assert lm.apply_chat_template(turns[:1]) == "<|user|>A?<|assistant|>"
        assert lm.apply_chat_template(turns, add_generation_prompt=False).endswith("B")
        assert lm.chat_template(True) == lm.tokenizer.chat_template
        assert "/" not in lm.tokenizer_name
        bare = copy.copy(lm)
        bare.tokenizer = copy.deepcopy(lm.tokenizer)
        bare.tokenizer.chat_template = None
        with pytest.raises(UserError, match="drop --apply_chat_template"):
            bare.apply_chat_template(turns)

    def test_a_name_chooses_among_several_templates(self) -> None:
        lm = copy.copy(model())
        lm.tokenizer = copy.deepcopy(lm.tokenizer)
        lm.tokenizer.chat_template = {"default": "one", "other": "two"}
        assert lm.apply_chat_template([{"role": "user", "content": "A"}]) == "one"
        assert lm.chat_template("other") == "two"
        assert lm.apply_chat_template([{"role": "user", "content": "A"}]) == "two"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gama": 4}, "'gama' is not known with method=speculative"),
        ({"dtype": "float8"}, "dtype is 'float8'"),
        ({"target_quant": "int2"}, "int2"),
        ({"device": "tpu9"}, "device is 'tpu9'"),
        ({"threads": 0}, "threads is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"max_batch_size": 8}, "'max_batch_size' is not known"),
    ],
    ids=repr,
)
def test_no_model_is_loaded_for_a_mistake(
    arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "load_pair", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(UserError, match=message):
        AntiphonLM(**arguments)


def test_without_lm_eval_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(UserError, match=r"lm_eval is missing: pip install 'antiphon\[lm-eval\]'"):
        runpy.run_path(str(adapter.__file__), run_name="again")
