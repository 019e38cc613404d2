"""Prometheus metrics: vLLM's speculative counters under the same meanings, plus ours."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from antiphon.models.base import LoadedModel
from antiphon.result import Result
from antiphon.serve.worker import Worker

MEANINGS = {
    "easd": "vetoes",
    "cospec": "rescues",
    "smc": "resamples",
    "specguard": "steps_refused",
    "rsd": "steps_refused",
    "stepscore": "steps_refused",
    "specreason": "steps_refused",
}
"""What it means that a method fired; speculative decoding's own depends on its rules."""
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class Metrics:
    """One server's counters; the gauges are read when somebody asks."""

    def __init__(self, worker: Worker, models: dict[str, LoadedModel | None]) -> None:
        self.registry = CollectorRegistry()
        label = ("method",)

        def counter(name: str, text: str, labels: tuple[str, ...] = label) -> Counter:
            return Counter(f"antiphon_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(
                f"antiphon_{name}", text, label, registry=self.registry, buckets=_SECONDS
            )

        self.requests = counter(
            "request", "Samples that ended, by how.", ("method", "finished_reason")
        )
        self.refused = counter("refused", "Requests that were refused, by status.", ("status",))
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of ended samples.")
        self.generation_tokens = counter("generation_tokens", "Tokens written.")
        self.drafts = counter("spec_decode_num_drafts", "Rounds in which something was drafted.")
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Tokens drafted.")
        self.accepted = counter(
            "spec_decode_num_accepted_tokens", "Drafted tokens that stand in the output."
        )
        self.target_passes = counter("target_passes", "Target forwards samples took part in.")
        self.draft_passes = counter("draft_passes", "Draft forwards samples took part in.")
        self.fired = counter("fired", "What the method adds: see the counters that follow.")
        self.fired_as = {
            name: counter(name, text)
            for name, text in (
                ("vetoes", "Accepted tokens that were refused after all."),
                ("rescues", "Refused tokens that were kept after all."),
                ("resamples", "Resamplings of a population."),
                ("steps_refused", "Drafted steps that the target wrote anew."),
            )
        }
        self.steps = counter("steps", "Steps that were judged.")
        self.step_score = Histogram(
            "antiphon_step_score",
            "What a drafted step scored: 0 to 1, or nats for stepscore.",
            label,
            registry=self.registry,
            buckets=(-16, -8, -4, -2, -1, -0.5, 0, 0.2, 0.4, 0.6, 0.8, 1),
        )
        self.first = histogram("time_to_first_token_seconds", "From the request to its first text.")
        self.between = histogram("inter_token_latency_seconds", "Seconds per token after that.")
        self.effective_size = Histogram(
            "antiphon_effective_sample_size",
            "Mean effective sample size of a population.",
            registry=self.registry,
            buckets=(1, 2, 4, 8, 16, 32, 64),
        )

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"antiphon_{name}", text, registry=self.registry)

        engine = worker.engine
        gauge("num_requests_running", "Samples in flight.").set_function(
            lambda: len(engine.in_flight)
        )
        gauge("num_requests_waiting", "Samples in line.").set_function(lambda: engine.waiting)
        slots = Gauge(
            "antiphon_kv_slots", "Tokens in the caches.", ("model",), registry=self.registry
        )
        for name, model in models.items():
            pool = getattr(model, "slots", None)
            if pool is not None:  # The eager engine has no pool: its trees own their buffers.
                slots.labels(name).set_function(partial(getattr, pool, "in_use"))

    def ended(self, method: str, result: Result, first: float | None, whole: float) -> None:
        """Count a sample.

        Args:
            first, whole: seconds from the request to its first text (None: there was none) and
                to its end.
        """
        counts = result.statistics
        self.requests.labels(method, result.finish_reason).inc()
        self.prompt_tokens.labels(method).inc(counts.prompt_tokens)
        self.generation_tokens.labels(method).inc(counts.completion_tokens)
        self.drafts.labels(method).inc(counts.num_spec_steps)
        self.draft_tokens.labels(method).inc(counts.num_draft_tokens)
        self.accepted.labels(method).inc(counts.num_accepted_draft_tokens)
        self.target_passes.labels(method).inc(counts.target_passes)
        self.draft_passes.labels(method).inc(counts.draft_passes)
        notes = [record.notes for record in result.rounds]
        fired = sum(float(note.get("fired", 0)) for note in notes)
        self.fired.labels(method).inc(fired)
        if method in MEANINGS:
            self.fired_as[MEANINGS[method]].labels(method).inc(fired)
        self.steps.labels(method).inc(sum(float(note.get("steps", 0)) for note in notes))
        for note in notes:
            if "score" in note:
                self.step_score.labels(method).observe(float(note["score"]))
        sizes = [float(note["mean_ess"]) for note in notes if "mean_ess" in note]
        if sizes:
            self.effective_size.observe(sizes[-1])
        if first is not None:
            self.first.labels(method).observe(first)
            if counts.completion_tokens > 1:
                self.between.labels(method).observe(
                    (whole - first) / (counts.completion_tokens - 1)
                )

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
