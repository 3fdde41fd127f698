"""OpenTelemetry spans of requests: one span per request, sent at its end, with a child span for each phase.

Attributes have the names of OpenTelemetry's conventions for generative AI. Spans never contain text of a request.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from math import fsum

from router.request import FinishReason, Wish
from router.scheduler.timeline import RUNNING, Cause
from router.telemetry.request_log import Account
from router.validation.validator import Choice
from shard.telemetry.traces import Attributes, Sender, Span

TEXT, CHAT, EMBEDDINGS = "text_completion", "chat", "embeddings"  # OpenTelemetry's names of operations
LABELS = "token_classification"  # OpenTelemetry has no name for this operation
QUEUE = "queue"  # every kind of waiting
MOST_TEXTS = 32  # sequences of one request that get child spans; a request may have thousands
MOST_PARTS = 100  # child spans of one sequence; a slow reader may cause any number of pauses
MOST_INTEGER = 2**63 - 1  # limit of OTLP
REASONS = {FinishReason.END_TOKEN: "stop", FinishReason.STOP_STRING: "stop"}
now = time.monotonic

Value = str | bool | int | float | Sequence[str]
Interval = tuple[Cause, float, float]


@dataclass(frozen=True, slots=True)
class Part:
    """Phase of a request, for a child span."""

    name: str
    began: float
    ended: float
    attributes: Attributes


class Spans:
    """Factory of the spans of requests."""

    def __init__(self, sender: Sender, model: str) -> None:
        self._sender = sender
        self._model = model

    def begin(self, operation: str, request_id: str, headers: Mapping[str, str], came: float) -> "Traced":
        # The system's clock may be adjusted, so a request reads it once and then uses the monotonic clock.
        epoch = time.time_ns() - nanoseconds(now())
        about = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "weft",
                 "gen_ai.request.model": self._model, "gen_ai.response.model": self._model,
                 "gen_ai.response.id": request_id}
        span = self._sender.serve(f"{operation} {self._model}", headers, epoch + nanoseconds(came))
        return Traced(span, epoch, came, about)


class Traced:
    """Request whose spans are sent at its end."""

    def __init__(self, span: Span, epoch: int, came: float, about: Attributes) -> None:
        """`epoch` is the Unix time, in nanoseconds, at which the monotonic clock was 0."""
        self.traceparent = span.traceparent
        self._span = span
        self._epoch = epoch
        self._came = came
        self._about = about
        self._texts: list[tuple[Choice, Account]] = []

    def follow(self, choice: Choice, account: Account) -> None:
        """Add one of the request's sequences."""
        self._texts.append((choice, account))

    def end(self, outcome: Attributes, *, failed: bool) -> None:
        """Send the spans. `failed`: the server is at fault, not the client."""
        ended = now()
        accounts = [account for _, account in self._texts]
        for part in parts(self._came, accounts, ended):
            self._span.child(part.name, self._at(part.began), self._at(part.ended), part.attributes)
        about = {**self._about, **outcome, **asked([choice for choice, _ in self._texts]),
                 **answered(self._came, accounts, ended)}
        self._span.end(self._at(ended), about, failed=failed)

    def _at(self, moment: float) -> int:
        return self._epoch + nanoseconds(moment)


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


# -- phases


def parts(came: float, accounts: Sequence[Account], now: float) -> Iterator[Part]:
    if accounts:
        yield Part("validation", came, min(account.story.began for account in accounts), {})
    for account in accounts[:MOST_TEXTS]:
        yield from islice(turns(account, now), MOST_PARTS)


def turns(account: Account, now: float) -> Iterator[Part]:
    """Yield the phases of one sequence. Consecutive intervals of waiting are one phase."""
    for name, group in groupby(account.story.intervals(now), key=part_name):
        intervals = list(group)
        about = {"weft.request_id": account.id}
        if name == QUEUE:
            about["weft.wait_reason"] = str(max(intervals, key=lambda interval: interval[2] - interval[1])[0])
        yield Part(name, intervals[0][1], intervals[-1][2], about)


def part_name(interval: Interval) -> str:
    cause = interval[0]
    return str(cause) if cause in RUNNING else QUEUE


# -- attributes


def asked(choices: Sequence[Choice]) -> dict[str, Value]:
    """Return the attributes of the request's parameters, which are the same for all of its sequences."""
    if not choices:
        return {}
    request, seed = choices[0].request, choices[0].seed
    if request.wish is not Wish.TEXT:
        return {}
    about: dict[str, Value] = {"max_tokens": request.max_new_tokens, "temperature": request.sampling.temperature}
    for name in ("top_p", "top_k", "frequency_penalty", "presence_penalty"):
        if value := getattr(request.sampling, name):
            about[name] = value
    if seed is not None and seed <= MOST_INTEGER:
        about["seed"] = seed
    if request.stop_strings:
        about["stop_sequences"] = request.stop_strings
    if len(choices) > 1:
        about["choice.count"] = len(choices)
    return {f"gen_ai.request.{name}": value for name, value in about.items()}


def answered(came: float, accounts: Sequence[Account], now: float) -> dict[str, Value]:
    """Return the attributes of the result; tokens and times of phases are summed over the request's sequences."""
    if not accounts:
        return {}
    about: dict[str, Value] = {
        "gen_ai.usage.input_tokens": sum(account.num_prompt_tokens for account in accounts),
        "gen_ai.usage.output_tokens": sum(account.num_generated for account in accounts),
        "gen_ai.usage.cache_read.input_tokens": sum(account.story.cached_tokens for account in accounts)}
    reasons = [account.finish_reason for account in accounts if account.finish_reason is not None]
    if reasons:
        about["gen_ai.response.finish_reasons"] = [REASONS.get(reason, str(reason)) for reason in reasons]
    firsts = [first_token(account, now) for account in accounts if account.num_generated]
    if firsts:
        about["gen_ai.response.time_to_first_chunk"] = min(firsts) - came
        about["gen_ai.latency.time_to_first_token"] = min(firsts) - came
    return about | latencies(came, accounts, now)


def first_token(account: Account, now: float) -> float:
    """Return the time of the first token: the first decode's start, or the end of a text with only one token."""
    intervals = account.story.intervals(now)
    return next((start for cause, start, _ in intervals if cause is Cause.DECODE), intervals[-1][2])


def latencies(came: float, accounts: Sequence[Account], now: float) -> dict[str, Value]:
    """Return durations in seconds, under vLLM's names."""
    names = {QUEUE: "time_in_queue", Cause.PREFILL: "time_in_model_prefill", Cause.DECODE: "time_in_model_decode"}
    intervals = [interval for account in accounts for interval in account.story.intervals(now)]
    about: dict[str, Value] = {"gen_ai.latency.e2e": now - came}
    for name, told in names.items():
        spent = [interval[2] - interval[1] for interval in intervals if part_name(interval) == name]
        about[f"gen_ai.latency.{told}"] = fsum(spent)
    return about
