"""Throughput for requests that are all sent at once: a server over HTTP, `transformers` with continuous batching, and a
shard alone.

Each runs in processes of its own, so that the card is free for the next. A byte is a token, and no answer ends early.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
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

from benchmarks.bench.load.client import Target
from benchmarks.bench.load.dialects import DIALECTS
from benchmarks.bench.load.generator import drive
from benchmarks.bench.load.record import Ask
from benchmarks.gpu.steps import Stage
from benchmarks.harness.checkpoints import byte_tokenizer
from benchmarks.harness.processes import HOST, serving
from shard.config import ShardConfig
from shard.workers.load_decoder import load

PREFILL_TOKENS = 4096  # per step, with and without a server
PATIENCE = 300.0  # seconds for an answer of transformers
NOBODY = -1  # an end token that no model generates
WARM = 8  # most tokens of each answer of the warm-up, which compiles kernels and allocates memory
TIMES = 3  # repetitions of a timed step

Given = ParamSpec("Given")
Made = TypeVar("Made")


class Lengths(NamedTuple):
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Where:
    folder: str  # of the model
    device: str
    dtype: str = "auto"


def drawn(requests: int, shortest: int, longest: int, seed: int = 0) -> list[Lengths]:
    random = Random(seed)
    return [Lengths(random.randint(shortest, longest), random.randint(shortest, longest)) for _ in range(requests)]


def texts(work: Sequence[Lengths], turn: int) -> list[str]:
    """Return prompts that begin differently in every turn, so that no prefix cache holds them."""
    random = Random(turn)
    return ["".join(random.choices(ascii_lowercase, k=length.prompt)) for length in work]


def shortened(work: Sequence[Lengths]) -> list[Lengths]:
    return [length._replace(output=min(length.output, WARM)) for length in work]


def num_tokens(work: Sequence[Lengths]) -> int:
    return sum(length.output for length in work)


def apart(call: Callable[Given, Made], *given: Given.args, **named: Given.kwargs) -> Made:
    """Run a call in a new process, whose GPU memory is free again afterwards."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(call, *given, **named).result()


# -- over HTTP

def over_http(where: Where, work: Sequence[Lengths]) -> float:
    """Return the tokens per second of a server over HTTP, after a warm-up."""
    router = {"compat": "lorax", "max_batch_size": len(work), "max_concurrent_requests": 2 * len(work),
              "max_batch_prefill_tokens": PREFILL_TOKENS}
    shard = {"device": where.device, "dtype": where.dtype}
    with serving(2, settings=router, model=where.folder, shard=shard) as server:
        target = Target(f"http://{HOST}:{server.port}", DIALECTS["lorax"])
        return [uvloop.run(asked(target, lengths, turn)) for turn, lengths in enumerate((shortened(work), work))][-1]


async def asked(target: Target, work: Sequence[Lengths], turn: int) -> float:
    asks = [Ask(number, text, length.output)
            for number, (text, length) in enumerate(zip(texts(work, turn), work, strict=True))]
    records = await drive(target, asks)
    for record in records:
        if record.error or record.num_tokens != record.ask.output_tokens:
            raise ValueError(f"weft answered with {record.num_tokens} of {record.ask.output_tokens} tokens: "
                             f"{record.error or 'no error'}")
    return num_tokens(work) / (max(record.ended for record in records) - min(record.sent for record in records))


# -- transformers

def by_transformers(where: Where, work: Sequence[Lengths]) -> tuple[float, str]:
    """Return the tokens per second of `transformers`, after a warm-up, and its attention implementation."""
    dtype = torch.bfloat16 if where.dtype == "auto" else getattr(torch, where.dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(where.folder, dtype=dtype)
    model.to(where.device)
    longest = Lengths(*map(max, zip(*work, strict=True)))
    config = GenerationConfig(  # type: ignore[no-untyped-call]  # transformers has no types there
        do_sample=False, max_new_tokens=longest.output, eos_token_id=NOBODY)
    hints = WorkloadHints(longest.prompt, longest.output, len(work))
    cache = ContinuousBatchingConfig()
    cache.num_blocks = sum(2 + sum(length) // cache.page_size for length in work)  # enough for all requests at once
    names = map(str, count())
    with model.continuous_batching_context_manager(config, continuous_batching_config=cache, workload_hints=hints,
                                                   timeout=PATIENCE) as manager:
        rates = [added(manager, lengths, turn, names) for turn, lengths in enumerate((shortened(work), work))]
        return rates[-1], model.config._attn_implementation


def added(manager: Any, work: Sequence[Lengths], turn: int, names: Iterator[str]) -> float:
    tokenizer = byte_tokenizer()
    prompts = [tokenizer.encode(text).ids for text in texts(work, turn)]
    wanted = {name: length.output for name, length in zip(names, work, strict=False)}
    began = perf_counter()
    for (name, output), prompt in zip(wanted.items(), prompts, strict=True):
        manager.add_request(prompt, request_id=name, max_new_tokens=output)
    while wanted:
        answer = manager.get_result(timeout=PATIENCE)
        if answer is None or answer.error or len(answer.generated_tokens) != wanted.pop(answer.request_id):
            raise ValueError(f"transformers did not answer as it was asked: {answer and answer.error}")
    return num_tokens(work) / (perf_counter() - began)


# -- a shard alone

def by_shard(where: Where, requests: int, length: Lengths) -> float:
    """Return the tokens per second of a shard alone, for requests of equal length.

    Prompts run in as few steps as a router would send; decode steps are timed with half of each answer in the cache."""
    loaded = load(ShardConfig(model=where.folder, device=where.device, dtype=where.dtype))
    stage = Stage(loaded, requests, sum(length))
    fitting = max(1, PREFILL_TOKENS // length.prompt)
    lots = (min(fitting, requests - first) for first in range(0, requests, fitting))
    prompts = sum(median(stage.prompt_seconds([length.prompt] * lot, TIMES)) for lot in lots)
    decode = median(stage.decode_seconds(requests, length.prompt + length.output // 2, TIMES))
    return requests * length.output / (prompts + (length.output - 1) * decode)
