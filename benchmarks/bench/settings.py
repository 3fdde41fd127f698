"""Settings of `weft bench`: server, requests, load and output files."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from benchmarks.bench.flag_rules import (
    check_exclusive_settings,
    check_settings_have_effect,
    drop_settings,
    find_given_settings,
    find_replaced_settings,
    format_masked_command,
    setting_to_flag,
)
from benchmarks.bench.load.dialects import DIALECTS, RequestOptions
from benchmarks.bench.load.generator import Target
from benchmarks.bench.load.http import HttpConnectionPool
from benchmarks.bench.load.workload import WorkloadSettings
from benchmarks.bench.report.summary import LatencyGoal

AT_LEAST_ONE = Number(gte=1)
POSITIVE = Number(gt=0)
POSITIVE_UP_TO_MILLION = Number(gt=0, lte=1e6)
BATCHING_SETTINGS = ("prompt", "numtokens", "numsamples", "wait", "numtokens_range", "selection")
SETTINGS_FIXED_BY_PROMPT = (  # number, times and lengths of requests
    "concurrency", "rate", "trace", "requests", "numsamples", "seconds", "wait", "selection", "numtokens_range",
    "prompts", "prompt_tokens", "output_tokens")
API_KEY_VARIABLE = "WEFT_API_KEY"
HELP = ("Send requests to a server and report throughput and latencies. weft bench --shard measures shards without a "
        "router, and has settings of its own: weft bench --shard --help.")


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    url: str = ""
    "URL of the server. Default: http://127.0.0.1:3000, with --dialect batching port 8500."
    port: Annotated[int | None, Parameter(validator=Number(gte=1, lte=65535))] = None
    "Port on this machine, instead of --url."
    dialect: Literal[tuple(DIALECTS)] = "tgi"  # type: ignore[valid-type]  # a computed Literal
    "API of the requests: /generate_stream (tgi, lorax), /v1/completions (openai), /v1/chat/completions \
(openai-chat), or /inference (batching)."
    model: str = ""
    "Name of the model in the requests, for servers that require one."
    api_key: Annotated[str, Parameter(env_var=API_KEY_VARIABLE)] = ""
    "API key of the server."
    concurrency: Annotated[int | None, Parameter(validator=AT_LEAST_ONE)] = None
    "Closed loop: number of clients. Each sends its next request when it has its answer, or a second after an error. \
Default: 8, unless --rate or --trace is given."
    rate: Annotated[float | None, Parameter(validator=POSITIVE_UP_TO_MILLION)] = None
    "Open loop: requests per second at random times (Poisson), sent without waiting for answers."
    burst: Annotated[int, Parameter(validator=AT_LEAST_ONE)] = 1
    "With --rate: number of requests that are sent at the same time."
    even: bool = False
    "With --rate: send at equal intervals instead of random ones."
    trace: str = ""
    "Open loop: file of JSON lines with at, prompt_tokens and output_tokens, as for `weft simulate`; other fields are \
ignored."
    speed: Annotated[float, Parameter(validator=POSITIVE_UP_TO_MILLION)] = 1.0
    "With --trace: factor by which the requests are sent faster than recorded."
    requests: Annotated[int | None, Parameter(validator=AT_LEAST_ONE)] = None
    "Number of requests. Default: 100, unless --seconds or --trace is given."
    seconds: Annotated[float | None, Parameter(validator=POSITIVE_UP_TO_MILLION)] = None
    "Time for which requests are sent. A closed loop repeats its prompts when all of --requests were sent."
    warm_up: Annotated[float, Parameter(validator=Number(gte=0, lte=1e6))] = 0.0
    "Seconds at the beginning that are not measured."
    prompt_tokens: str = ""
    "Prompt lengths: a number, a range such as 16-128, a choice such as 1,25,100, or normal:MEAN:DEVIATION. Default: \
64."
    output_tokens: str = ""
    "Output lengths, in the same format. Default: 64."
    tokenizer: str = ""
    "Folder or file of the tokenizer that counts prompt tokens. Default: the server counts them; if it cannot, words \
are counted."
    prompts: str = ""
    "File with one prompt per line: text, a JSON string, or an object with prompt and output_tokens."
    shared_prefix: Annotated[int, Parameter(validator=Number(gte=0))] = 0
    "Number of the first --prompt-tokens that are the same in all prompts."
    prefixes: Annotated[int, Parameter(validator=AT_LEAST_ONE)] = 1
    "Number of different shared prefixes; prompts use them in turn."
    adapters: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ()
    "Adapters that the requests use in turn."
    stop_at_end: bool = False
    "Let answers end at the model's end token. By default the server is asked to ignore it, so that lengths are as \
given (TGI cannot)."
    sampling: str = ""
    """JSON object of sampling parameters of every request, such as '{"temperature": 0.7}'."""
    goal: str = ""
    "Latency limits, such as ttft=500ms,itl=50ms,e2e=10s: goodput counts the answers that keep them. ttft is the time \
to the first token, itl the mean time per further token, e2e the total; each is optional."
    timeout: Annotated[float, Parameter(validator=POSITIVE)] = 600.0
    "Seconds after which a request is cancelled and counted as failed."
    seed: int = 0
    "Seed of prompts, lengths and times. A run with the seed of an earlier one finds its prompts in the server's cache."
    versus: Annotated[str, Parameter(allow_leading_hyphen=True)] = ""
    "Flags of a second configuration, as one string; it is otherwise like the first. Both are measured in turn and \
compared."
    turns: Annotated[int, Parameter(validator=AT_LEAST_ONE)] = 3
    "With --versus: number of runs of each configuration."
    json: str = ""
    "Write all results to this JSON file."
    csv: str = ""
    "Write a line for each request to this CSV file."
    html: str = ""
    "Write a page with plots to this file; needs weft[bench]."
    quiet: bool = False
    "Show no progress."
    numsamples: Annotated[int | None, Parameter(name="--numsamples", validator=AT_LEAST_ONE)] = None
    "With --dialect batching: number of requests. Default: 100, unless --seconds is given."
    wait: Annotated[float | None, Parameter(name="--wait", validator=Number(gte=0, lte=1e6))] = None
    "With --dialect batching: maximum pause between two requests in seconds; pauses are random up to it. Default: 1."
    selection: Annotated[Literal["random", "descend"], Parameter(name="--selection")] = "random"
    "With --dialect batching: order of the requests; descend sends the longest outputs first."
    numtokens_range: Annotated[
        tuple[int, ...], Parameter(name="--numtokens_range", consume_multiple=True, validator=AT_LEAST_ONE)] = ()
    "With --dialect batching: output lengths, one of which is chosen for each request. Default: 1 25 100."
    prompt: str = ""
    "With --dialect batching: send one request, with this prompt and --numtokens."
    numtokens: Annotated[int | None, Parameter(name="--numtokens", validator=AT_LEAST_ONE)] = None
    "With --dialect batching and --prompt: number of output tokens."

    def __post_init__(self) -> None:
        validate_settings(self)

    @property
    def is_open_loop(self) -> bool:
        return self.workload.is_open_loop

    @property
    def num_clients(self) -> int | None:
        return None if self.is_open_loop else self.concurrency or 8

    @property
    def base_url(self) -> str:
        return self.url or f"http://127.0.0.1:{self.port or (8500 if self.dialect == 'batching' else 3000)}"

    @property
    def target(self) -> Target:
        options = RequestOptions(self.model, parse_sampling(self.sampling), not self.stop_at_end)
        return Target(self.base_url, DIALECTS[self.dialect], self.api_key, options, self.timeout)

    @property
    def workload(self) -> WorkloadSettings:
        is_study_load = self.dialect == "batching" and not (self.concurrency or self.rate or self.trace)
        if self.prompt:
            return WorkloadSettings(requests=1, output_tokens=f"{self.numtokens}", only_prompt=self.prompt)
        has_other_end = self.trace or (self.seconds and (self.rate or (is_study_load and self.wait != 0)))
        requests = self.requests or self.numsamples or (None if has_other_end else 100)
        optional_fields: dict[str, Any] = {} if requests is None else {"requests": requests}
        if self.seconds is not None and (self.rate or self.trace or is_study_load):
            optional_fields["seconds"] = self.seconds
        if is_study_load:
            optional_fields["wait"] = 1.0 if self.wait is None else self.wait
        return WorkloadSettings(
            rate=self.rate or 0.0, burst=self.burst, even=self.even, trace=self.trace, speed=self.speed,
            prompt_tokens=self.prompt_tokens or "64", output_tokens=self._output_length_spec, prompts=self.prompts,
            shared_prefix=self.shared_prefix, prefixes=self.prefixes, adapters=self.adapters,
            longest_first=self.selection == "descend",
            has_numbered_prompts=self.dialect == "batching" and not self.prompt_tokens,
            seed=self.seed, **optional_fields)

    @property
    def _output_length_spec(self) -> str:
        if self.dialect != "batching" or self.output_tokens:
            return self.output_tokens or "64"
        return ",".join(map(str, self.numtokens_range or (1, 25, 100)))

    @property
    def latency_goal(self) -> LatencyGoal | None:
        return parse_goal(self.goal) if self.goal else None


DEFAULT_VALUES = {one.name: one.default for one in fields(BenchSettings)}


def find_changed_settings(settings: BenchSettings) -> set[str]:
    """Return the names of the settings with another value than the default."""
    return {name for name, default in DEFAULT_VALUES.items() if getattr(settings, name) != default}


def validate_settings(settings: BenchSettings) -> None:
    if settings.url and settings.port is not None:
        raise ValueError(f"--port {settings.port} and --url {settings.url} name two servers; leave one out")
    """Validate the settings before any request is sent. Raises ValueError."""
    check_exclusive_settings(find_changed_settings(settings))
    if settings.seconds is not None and settings.warm_up >= settings.seconds:
        raise ValueError(f"--warm-up {settings.warm_up:g} must be less than --seconds {settings.seconds:g}")
    validate_batching_dialect_settings(settings)
    _ = settings.latency_goal, settings.workload, HttpConnectionPool(settings.base_url), settings.target


def validate_batching_dialect_settings(settings: BenchSettings) -> None:
    """Validate the flags of the study's client, and those that its dialect cannot support."""
    changed_settings = find_changed_settings(settings)
    if settings.dialect != "batching":
        if used := [name for name in BATCHING_SETTINGS if name in changed_settings]:
            raise ValueError(f"{setting_to_flag(used[0])} is of --dialect batching")
        return
    if bool(settings.prompt) != bool(settings.numtokens):
        raise ValueError("--prompt and --numtokens belong together: one request is made of both")
    if settings.prompt and (surplus := [name for name in SETTINGS_FIXED_BY_PROMPT if name in changed_settings]):
        raise ValueError("--prompt and --numtokens make one request, of which "
                         f"{setting_to_flag(surplus[0])} says nothing: leave it out")
    if settings.shared_prefix and not settings.prompt_tokens:
        raise ValueError("--shared-prefix is part of --prompt-tokens, which has to be given with --dialect batching: "
                         "its prompts are short")
    if (goal := settings.latency_goal) and min(goal.ttft, goal.itl) < inf:
        raise ValueError("--goal: answers of --dialect batching are not streamed, so that only e2e can be kept")


def parse_sampling(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text) if text else {}
    except ValueError as error:
        raise ValueError(f"--sampling must be a JSON object, got {text!r}: {error}") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"--sampling must be a JSON object, got {text!r}")
    return parsed


def parse_goal(text: str) -> LatencyGoal:
    """Parse a goal such as `ttft=500ms,itl=50ms,e2e=10s`."""
    limits: dict[str, float] = {}
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        number, scale = (value[:-2], 1000.0) if value.endswith("ms") else (value[:-1], 1.0)
        try:
            limits[name] = float(number if value.endswith("s") else "no unit") / scale
        except ValueError:
            raise ValueError(f"--goal is such as ttft=500ms,itl=50ms,e2e=10s, got {word!r}") from None
        if name not in {"ttft", "itl", "e2e"} or not 0 < limits[name] < inf:
            raise ValueError(f"--goal knows ttft, itl and e2e with a time above 0, got {word!r}")
    return LatencyGoal(**limits)


def parse_settings(arguments: list[str], own_arguments: Sequence[str] | None = None) -> BenchSettings:
    """Parse the words of a command line. Raises CycloptsError and ValueError; --help exits after printing the help.

    `own_arguments` are those words that were not taken over from another run."""
    app = App("weft bench", help=HELP, result_action="return_value", version_flags=[])
    app.default(return_settings)
    settings = app(arguments, exit_on_error=False, print_error=False)
    if settings is None:
        raise SystemExit(0)
    assert isinstance(settings, BenchSettings)
    check_settings_have_effect(find_given_settings(arguments if own_arguments is None else own_arguments),
                               find_changed_settings(settings), settings.dialect)
    return settings


def return_settings(settings: BenchSettings = BenchSettings()) -> BenchSettings:
    """Return the settings; cyclopts makes them from the command line."""
    return settings


def parse_versus_settings(arguments: list[str], settings: BenchSettings) -> BenchSettings:
    """Return the settings of the second run: the first run's flags, except for those that its own flags replace."""
    try:
        second_run_arguments = shlex.split(settings.versus)
    except ValueError as error:
        raise ValueError(f"--versus holds flags of a second run, as a shell takes them: {error}") from None
    try:
        second = parse_settings([*drop_settings(arguments, find_replaced_settings(second_run_arguments)),
                                 *second_run_arguments], second_run_arguments)
    except (CycloptsError, ValueError) as error:
        raise ValueError(f"--versus {format_masked_command(second_run_arguments)!r}: {error}") from None
    for file_setting in ("json", "csv", "html"):
        if getattr(second, file_setting) != getattr(settings, file_setting):
            raise ValueError(f"--versus {format_masked_command(second_run_arguments)!r}: one file gets the results of "
                             f"both runs; give --{file_setting} outside " "of --versus")
    return second
