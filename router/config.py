"""Settings of the router, each with default, bounds and help. Flags (made by `launcher/cli.py`), environment names and
docs/configuration.md are derived from them."""

import re
from dataclasses import dataclass, field, fields
from typing import Any

ORIGIN_PATTERN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/,]+", re.IGNORECASE)
ADAPTER_SOURCES = ("hub", "local", "s3", "pbase")  # of adapters
HUB_TOKEN_ENV = "WEFT_HUB_TOKEN"  # noqa: S105 - environment variable of the router's own token
ADAPTER_TOKEN_ENV = "WEFT_ADAPTER_TOKEN"  # noqa: S105 - environment variable of our client's token for a source
API_KEY_ENV = "WEFT_API_KEY"  # environment variable of the router's key: other users can read a process's arguments


def setting(default: Any, help_text: str, *, low: float | None = None, high: float | None = None,
            choices: tuple[str, ...] = (), secret: bool = False) -> Any:
    """Return a dataclass field with the metadata for the command line, the checks and the documentation."""
    rules = {"help": help_text, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=rules, repr=not secret)


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Settings of one router, checked when the object is created. Each field is a flag."""

    hostname: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 opens the server to the network.")
    port: int = setting(3000, "Port to listen on; 0 takes a free one.", low=0, high=65535)
    api_key: str = setting(
        "", "Key that clients must send, as `Authorization: Bearer KEY`. Other users of the machine see command lines, "
        "so give it by its variable, or use --api-keys.", secret=True)
    api_keys: str = setting(
        "", "JSON file with the keys that clients may send: for each its tenant, with weight and limits, and its "
        "role. The page of the router shows one.")
    cors_allow_origin: tuple[str, ...] = setting(
        (), "Website whose pages may ask this server from a browser, such as https://chat.example.org, or * for all; "
        "may be given several times. By default none.")
    max_concurrent_requests: int = setting(
        128, "Most requests at a time, waiting and running; the next one is refused with 429.", low=1)
    max_queue_requests: int | None = setting(
        None, "Most requests that wait to start; the next one is refused with 429; by default without limit.", low=1)
    max_queue_tokens: int | None = setting(
        None, "Most prompt tokens of the requests that wait to start; what goes beyond is refused with 429.", low=1)
    max_queue_ms: float | None = setting(
        None, "Longest wait that is accepted: a request that would wait longer, as far as can be foreseen, is refused "
        "with 429 at once.", low=0)
    max_best_of: int = setting(2, "Largest `best_of` of a request.", low=1)
    max_stop_sequences: int = setting(4, "Most stop strings in a request.", low=0)
    max_top_n_tokens: int = setting(5, "Largest `top_n_tokens` of a request.", low=0)
    compat: str = setting(
        "none", "Whose oddities are kept for clients that depend on them. tgi: its words for how an answer ended on "
        "/v1, a role in every chunk, its errors on /v1, its reading of `presence_penalty`, and fields that it ignores "
        "are ignored. lorax: its own parameters, answers and errors on /, /generate, /generate_stream, /tokenize and "
        "/info, and the odd shapes of its answers and errors on /v1. batching: as the server of the "
        "effective-batching study was, which is --dialect batching with --max-handlers 8, --recompute and, with "
        "--batching static, --static-equal-lengths.",
        choices=("none", "tgi", "lorax", "batching"))
    dialect: str = setting(
        "none", "Which other system's routes are there as well. batching: /inference and /stats of the "
        "effective-batching study, at port 8500 unless --port says another; /stats writes data/token_data_*.csv, and "
        "POST / names both.",
        choices=("none", "batching"))
    max_handlers: int = setting(
        0, "With --dialect batching: most requests to /inference that are heard at once, 8 in the study; others wait "
        "where no clock runs. 0: all are heard.", low=0)
    max_client_batch_size: int = setting(
        4, "Most prompts in a request to /v1/completions or /vertex, or texts to /classify_batch.", low=1)
    adapter_source: str = setting(
        "hub", "Where adapters come from whose request does not say: the Hub (hub), a folder below --adapter-root "
        "(local), or a bucket (s3).", choices=ADAPTER_SOURCES)
    adapter_id: str = setting("", "Adapter that requests go by which name none, as its source names it.")
    preloaded_adapter_ids: tuple[str, ...] = setting(
        (), "Adapter that is loaded at start and stays, as its source names it, or NAME=ID for one that requests call "
        "NAME; may be given several times.")
    preloaded_adapter_source: str = setting(
        "", "Where adapters come from that are loaded at start; by default as --adapter-source.",
        choices=("", *ADAPTER_SOURCES))
    max_active_adapters: int = setting(
        1024, "Most adapters that are loaded at once, on a GPU no more than 1,024; others wait until one of them can "
        "leave.", low=1)
    adapter_cycle_time_s: float = setting(
        2.0, "Seconds that a loaded adapter may stay in use while others wait for its place.", low=0)
    disable_grammar_support: bool = setting(False, "Whether requests with a grammar are refused.")
    max_input_tokens: int | None = setting(
        None, "Most tokens in a prompt; by default one less than --max-total-tokens.", low=1)
    max_total_tokens: int | None = setting(
        None, "Most tokens, prompt and generated, in a request; by default what model and cache can hold.", low=2)
    max_batch_prefill_tokens: int = setting(
        4096, "Most tokens in one step: prompts wait for their turn when they are longer together.", low=32)
    max_batch_total_tokens: int | None = setting(
        None, "Size of the cache in token places, at most what fits; by default all of it.", low=16)
    max_batch_size: int = setting(256, "Most sequences that run at once.", low=1)
    batching: str = setting(
        "continuous", "Who runs together. continuous: requests join and leave at every step. static: groups run from "
        "their first step to their last, and others wait. none: one request at a time. The last two are there to "
        "compare with. dynamic and nobatch are other names of continuous and none.",
        choices=("continuous", "static", "none", "dynamic", "nobatch"))
    static_window_ms: float = setting(
        0.0, "With --batching static: how long whoever came first waits for others, unless --max-batch-size of them "
        "are there before.", low=0)
    static_equal_lengths: bool = setting(
        False, "With --batching static: whether only requests with as many prompt tokens and as many to generate are a "
        "group.")
    recompute: bool = setting(
        False, "Whether every step computes prompts and what was generated anew, and nothing is found in the cache: as "
        "a model without one, to compare with.")
    prefill_policy: str = setting(
        "mixed", "How prompts join running sequences: in the same step in chunks (mixed), or in steps of their own "
        "while the running sequences pause.", choices=("mixed", "pause"))
    max_decode_stall_ms: float | None = setting(
        None, "With mixed steps: how much longer a step may take because prompts run in it. By default 50 on CUDA, 150 "
        "on CPU. Prompts may always take twice as long as the step takes without them, and more while more "
        "requests wait than run: a slow machine would not get to them otherwise.", low=0)
    waiting_served_ratio: float = setting(
        0.3, "With pause: prompts are taken as soon as this many times the running sequences wait.", low=0)
    max_waiting_tokens: int = setting(
        20, "With pause: prompts are taken after this many decode steps, however few wait.", low=0)
    cache_scope: str = setting(
        "tenant", "Who may find the prompts of earlier requests in the cache: requests of the same tenant, everybody "
        "(global), or nobody (off).", choices=("tenant", "global", "off"))
    max_passed_over_ms: float = setting(
        2000.0, "For how long a waiting request may be passed over by later ones whose prompts are cached.", low=0)
    look_ahead: int = setting(2, "Steps that may be on their way to the shards at once.", low=1, high=2)
    block_size: int = setting(16, "Token places in a cache block, a multiple of 16.", low=16)
    payload_limit: int = setting(2_000_000, "Most bytes in the body of a request, compressed and decompressed.", low=1)
    tokenizer_config_path: str = setting(
        "", "File like tokenizer_config.json whose `chat_template` is used instead of the model's own.")
    slow_client_buffer: int = setting(
        262_144, "Bytes that are kept for a client that does not read; its request pauses beyond.", low=4096)
    slow_client_timeout: float = setting(30.0, "Seconds after which a client that does not read is given up.", low=0)
    step_timeout: float | None = setting(
        None, "Seconds after which a shard that does not answer counts as hung; by default ten times the longest step "
        "expected, at least 30.", low=0)
    shard_transport: str = setting(
        "stream", "How steps travel to a shard: over one lasting call (stream), or each as a call of its own (unary), "
        "which costs the router more.", choices=("stream", "unary"))
    request_log: bool = setting(
        True, "Log a line for each finished request: lengths, times and how it ended, never its text.")
    record_minutes: float = setting(
        5.0, "Minutes of the scheduler's decisions that are kept in memory, without text or tokens, to be written to a "
        "file when it gets SIGUSR1 or fails (`weft replay`); 0 keeps none.", low=0, high=60)
    validation_workers: int = setting(2, "Threads that tokenise prompts.", low=1)
    shutdown_timeout: float = setting(
        30.0, "Seconds that running requests get to finish when the server is asked to stop.", low=0)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.block_size % 16:
            raise ValueError(f"--block-size must be a multiple of 16, got {self.block_size}")
        if self.max_batch_prefill_tokens < 2 * self.block_size:
            raise ValueError(f"--max-batch-prefill-tokens must be at least two blocks ({2 * self.block_size}), got "
                             f"{self.max_batch_prefill_tokens}")
        if self.max_input_tokens and self.max_total_tokens and self.max_input_tokens >= self.max_total_tokens:
            raise ValueError(f"--max-input-tokens ({self.max_input_tokens}) must be below --max-total-tokens "
                             f"({self.max_total_tokens}): a request generates at least one token")
        if self.max_batch_total_tokens and (self.max_total_tokens or 0) > self.max_batch_total_tokens:
            raise ValueError(f"--max-total-tokens ({self.max_total_tokens}) must be at most --max-batch-total-tokens "
                             f"({self.max_batch_total_tokens}): the cache has to hold a whole request")
        if self.max_batch_total_tokens and self.max_batch_total_tokens < self.block_size:
            raise ValueError(f"--max-batch-total-tokens must be at least one block ({self.block_size}, --block-size), "
                             f"got {self.max_batch_total_tokens}")
        for origin in self.cors_allow_origin:
            if not ORIGIN_PATTERN.fullmatch(origin):
                raise ValueError("--cors-allow-origin must be * or an origin without a path, such as "
                                 f"https://chat.example.org, got {origin}")


def check_settings(config: Any) -> None:
    """Raise ValueError for a value outside the bounds of its field; the message names flag, bound and value."""
    for item in fields(config):
        value, rule = getattr(config, item.name), item.metadata
        flag = "--" + item.name.replace("_", "-")
        if value is None:
            continue
        if rule["choices"] and value not in rule["choices"]:
            raise ValueError(f"{flag} must be one of {', '.join(rule['choices'])}, got {value}")
        if rule["low"] is not None and not value >= rule["low"]:
            raise ValueError(f"{flag} must be at least {rule['low']}, got {value}")
        if rule["high"] is not None and not value <= rule["high"]:
            raise ValueError(f"{flag} must be at most {rule['high']}, got {value}")
