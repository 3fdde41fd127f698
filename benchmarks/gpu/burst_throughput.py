"""Throughput for requests that are all sent at once: a server over HTTP, `transformers` with continuous batching, and a
shard alone.

Each runs in processes of its own, so that the card is free for the next. A byte is a token, and no answer ends early.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from random import Random
from statistics import median
from string import ascii_lowercase
from time import perf_counter
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import uvloop
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.utils import WorkloadHints

from benchmarks.bench.load.dialects import DIALECTS
from benchmarks.bench.load.generator import Target, run_load
from benchmarks.bench.load.request_records import PlannedRequest
from benchmarks.gpu.report import TableRow
from benchmarks.gpu.step_timer import StepTimer
from benchmarks.harness.processes import HOST, run_router_and_shard
from benchmarks.harness.random_checkpoints import make_byte_tokenizer
from shard.config import ShardConfig
from shard.workers.model_loading import load_decoder_model

MAX_PREFILL_TOKENS = 4096  # per step, with and without a server
TRANSFORMERS_TIMEOUT_SECONDS = 300.0  # seconds for an answer of transformers
UNREACHABLE_EOS_TOKEN = -1  # an end token that no model generates
MAX_WARM_UP_TOKENS = 8  # most tokens of each answer of the warm-up, which compiles kernels and allocates memory
NUM_STEP_REPETITIONS = 3  # repetitions of a timed step
# A process that reads answers takes some 25 us of its processor for a token, and should not be what is measured.
STREAMS_PER_CLIENT_PROCESS = 32
MAX_CLIENT_PROCESSES = 8

CallParameters = ParamSpec("CallParameters")
CallResult = TypeVar("CallResult")


class RequestLengths(NamedTuple):
    """Prompt and output length of one request, in tokens."""

    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class ModelLoadOptions:
    """Folder of a model, and the device and dtype with which it is loaded."""

    folder: str  # of the model
    device: str
    dtype: str = "auto"


def draw_request_lengths(num_requests: int, shortest: int, longest: int, seed: int = 0) -> list[RequestLengths]:
    random = Random(seed)
    return [RequestLengths(random.randint(shortest, longest), random.randint(shortest, longest))
            for _ in range(num_requests)]


def make_prompts(request_lengths: Sequence[RequestLengths], turn: int) -> list[str]:
    """Return prompts that begin differently in every turn, so that no prefix cache holds them."""
    random = Random(turn)
    return ["".join(random.choices(ascii_lowercase, k=length.prompt)) for length in request_lengths]


def shorten_outputs(request_lengths: Sequence[RequestLengths]) -> list[RequestLengths]:
    return [length._replace(output=min(length.output, MAX_WARM_UP_TOKENS)) for length in request_lengths]


def count_output_tokens(request_lengths: Sequence[RequestLengths]) -> int:
    return sum(length.output for length in request_lengths)


def run_in_new_process(function: Callable[CallParameters, CallResult], *args: CallParameters.args,
                       **kwargs: CallParameters.kwargs) -> CallResult:
    """Run a call in a new process, whose GPU memory is free again afterwards."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


# -- over HTTP

def measure_http_throughput(load_options: ModelLoadOptions, request_lengths: Sequence[RequestLengths]) -> float:
    """Return the tokens per second of a server over HTTP, after a warm-up that the same processes send."""
    router_settings = {"compat": "lorax", "max_batch_size": len(request_lengths), "max_concurrent_requests": 2
                       * len(request_lengths), "max_batch_prefill_tokens": MAX_PREFILL_TOKENS}
    shard_settings = {"device": load_options.device, "dtype": load_options.dtype}
    num_clients = min(MAX_CLIENT_PROCESSES, -(-len(request_lengths) // STREAMS_PER_CLIENT_PROCESS))
    with (run_router_and_shard(2, settings=router_settings, model=load_options.folder, shard=shard_settings) as server,
          make_client_executor(num_clients) as pool):
        for turn, lengths in enumerate((shorten_outputs(request_lengths), request_lengths)):
            prompts = make_prompts(request_lengths, turn)
            spans = [*pool.map(time_burst, [server.port] * num_clients,
                               [prompts[client::num_clients] for client in range(num_clients)],
                               [lengths[client::num_clients] for client in range(num_clients)])]
    return count_output_tokens(request_lengths) / (max(end for _, end in spans) - min(start for start, _ in spans))


def make_client_executor(num_clients: int) -> Executor:
    return ProcessPoolExecutor(num_clients, get_context("spawn")) if num_clients > 1 else ThreadPoolExecutor(1)


def time_burst(port: int, prompts: Sequence[str],
               request_lengths: Sequence[RequestLengths]) -> tuple[float, float]:
    """Send the requests at once and read their answers; return when the first was sent and the last had ended."""
    target = Target(f"http://{HOST}:{port}", DIALECTS["lorax"])
    requests = [PlannedRequest(number, text, length.output)
                for number, (text, length) in enumerate(zip(prompts, request_lengths, strict=True))]
    started_at = perf_counter()  # which all processes read from the same clock
    records = uvloop.run(run_load(target, requests))
    for record in records:
        if record.error or record.num_tokens != record.ask.output_tokens:
            raise ValueError(f"weft answered with {record.num_tokens} of {record.ask.output_tokens} tokens: "
                             f"{record.error or 'no error'}")
    return (started_at + min(record.sent for record in records), started_at + max(record.ended for record in records))


# -- transformers

def measure_transformers_throughput(load_options: ModelLoadOptions,
                                    request_lengths: Sequence[RequestLengths]) -> tuple[float, str]:
    """Return the tokens per second of `transformers`, after a warm-up, and its attention implementation."""
    dtype = torch.bfloat16 if load_options.dtype == "auto" else getattr(torch, load_options.dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(load_options.folder, dtype=dtype)
    model.to(load_options.device)
    max_lengths = RequestLengths(*map(max, zip(*request_lengths, strict=True)))
    config = GenerationConfig(  # type: ignore[no-untyped-call]  # transformers has no types there
        do_sample=False, max_new_tokens=max_lengths.output, eos_token_id=UNREACHABLE_EOS_TOKEN)
    hints = WorkloadHints(max_lengths.prompt, max_lengths.output, len(request_lengths))
    batching_config: Any = ContinuousBatchingConfig()
    page_size = getattr(batching_config, "page_size", batching_config.block_size)  # block_size is the older name
    # enough for all requests at once
    batching_config.num_blocks = sum(2 + sum(length) // page_size for length in request_lengths)
    request_ids = map(str, count())
    with model.continuous_batching_context_manager(config, continuous_batching_config=batching_config,
                                                   workload_hints=hints,
                                                   timeout=TRANSFORMERS_TIMEOUT_SECONDS) as manager:
        throughputs = [run_transformers_requests(manager, lengths, turn, request_ids)
                       for turn, lengths in enumerate((shorten_outputs(request_lengths), request_lengths))]
        return throughputs[-1], model.config._attn_implementation


def run_transformers_requests(manager: Any, request_lengths: Sequence[RequestLengths], turn: int,
                              request_ids: Iterator[str]) -> float:
    tokenizer = make_byte_tokenizer()
    prompts = [tokenizer.encode(text).ids for text in make_prompts(request_lengths, turn)]
    pending_output_tokens = {name: length.output for name, length in zip(request_ids, request_lengths, strict=False)}
    started_at = perf_counter()
    for (name, output), prompt in zip(pending_output_tokens.items(), prompts, strict=True):
        manager.add_request(prompt, request_id=name, max_new_tokens=output)
    while pending_output_tokens:
        result = manager.get_result(timeout=TRANSFORMERS_TIMEOUT_SECONDS)
        if result is None or result.error or len(result.generated_tokens) != pending_output_tokens.pop(
            result.request_id):
            raise ValueError(f"transformers did not answer as it was asked: {result and result.error}")
    return count_output_tokens(request_lengths) / (perf_counter() - started_at)


# -- a shard alone

def measure_shard_throughput(load_options: ModelLoadOptions, num_requests: int,
                             request_lengths: RequestLengths) -> float:
    """Return the tokens per second of a shard alone, for requests of equal length.

    Prompts run in as few steps as a router would send; decode steps are timed with half of each answer in the cache."""
    loaded_model = load_decoder_model(ShardConfig(model=load_options.folder, device=load_options.device,
                                                  dtype=load_options.dtype))
    step_timer = StepTimer(loaded_model, num_requests, sum(request_lengths))
    prompts_per_step = max(1, MAX_PREFILL_TOKENS // request_lengths.prompt)
    step_sizes = (min(prompts_per_step, num_requests - first) for first in range(0, num_requests, prompts_per_step))
    prefill_seconds = sum(median(step_timer.time_prefill([request_lengths.prompt] * batch_size, NUM_STEP_REPETITIONS))
                          for batch_size in step_sizes)
    decode_step_seconds = median(step_timer.time_decode_steps(num_requests, request_lengths.prompt
                                                              + request_lengths.output // 2, NUM_STEP_REPETITIONS))
    return num_requests * request_lengths.output / (prefill_seconds + (request_lengths.output - 1)
                                                    * decode_step_seconds)


def compare_throughputs(first_name: str, second_name: str, throughput_pairs: Sequence[tuple[float, float]]) -> TableRow:
    """Return the medians of both rates, and median, least and most of their ratios by turn."""
    ratios = [first / second for first, second in throughput_pairs]
    first, second = map(median, zip(*throughput_pairs, strict=True))
    return {f"{first_name} tokens/s": round(first), f"{second_name} tokens/s": round(second),
            "ratio": round(median(ratios), 3), "least": round(min(ratios), 3), "most": round(max(ratios), 3)}
