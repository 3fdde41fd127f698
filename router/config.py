"""Settings of the router, each with default, bounds and help. Flags (made by `launcher/cli.py`), environment names and
docs/reference/settings.md are derived from them."""

import re
from dataclasses import dataclass, field, fields
from typing import Any

ORIGIN_PATTERN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/,]+", re.IGNORECASE)
LOCAL_SOURCE = "local"  # its names are paths of folders below --adapter-root
ADAPTER_SOURCES = ("hub", LOCAL_SOURCE, "s3", "pbase")  # of adapters
HUB_TOKEN_ENV = "WEFT_HUB_TOKEN"  # noqa: S105 - environment variable of the router's own token
ADAPTER_TOKEN_ENV = "WEFT_ADAPTER_TOKEN"  # noqa: S105 - environment variable of our client's token for a source
MAX_NAME_LENGTH = 512  # characters in the name of a model or an adapter
API_KEY_ENV = "WEFT_API_KEY"  # environment variable of the router's key: other users can read a process's arguments


def setting(default: Any, help_text: str, *, low: float | None = None, high: float | None = None,
            choices: tuple[str, ...] = (), secret: bool = False) -> Any:
    """Return a dataclass field with the metadata for the command line, the checks and the documentation."""
    rules = {"help": help_text, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=rules, repr=not secret)


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Settings of one router, checked when the object is created. Each field is a flag."""

    hostname: str = setting("127.0.0.1", "Address to listen on. 0.0.0.0 opens the server to the network.")
    port: int = setting(3000, "Port to listen on. 0 takes a free one.", low=0, high=65535)
    api_key: str = setting(
        "", "Key that clients must send, as `Authorization: Bearer KEY`. Other users of the machine can read command "
        "lines, so prefer the variable or --api-keys.", secret=True)
    api_keys: str = setting(
        "", "JSON file of the keys that clients may send, with tenant, weight, limits and role of each. "
        "docs/guides/tenants.md shows one.")
    cors_allow_origin: tuple[str, ...] = setting(
        (), "Website whose pages may call this server from a browser, such as https://chat.example.org, or * for "
        "all. Can be repeated. Default: none.")
    served_model_name: tuple[str, ...] = setting(
        (), "Name of the model for clients, instead of its folder or its name at the Hub. Can be repeated: requests "
        "may use each, and `/v1/models` lists them. An answer has the name that its request used, or the first.")
    max_concurrent_requests: int = setting(
        128, "Maximum number of requests, running and waiting. Further ones get 429.", low=1)
    max_queue_requests: int | None = setting(
        None, "Maximum number of waiting requests. Further ones get 429. Default: no limit.", low=1)
    max_queue_tokens: int | None = setting(
        None, "Maximum number of prompt tokens of all waiting requests. Further requests get 429.", low=1)
    max_queue_ms: float | None = setting(
        None, "Maximum predicted wait in milliseconds. A request that would wait longer gets 429 at once.", low=0)
    max_best_of: int = setting(2, "Maximum `best_of` of a request.", low=1)
    max_choices: int = setting(32, "Maximum `n`, the number of choices, of a request on OpenAI's routes.", low=1)
    max_stop_sequences: int = setting(4, "Maximum number of stop strings in a request.", low=0)
    max_top_n_tokens: int = setting(
        5, "Maximum `top_n_tokens` of a request, and `top_logprobs` of a chat, which is 20 with the default.", low=0)
    compat: str = setting(
        "none", "Reproduce the special behaviour of another server, for clients that depend on it. tgi: its finish "
        "reasons, roles, errors and ignored fields on /v1. lorax: its parameters, answers and errors on every route. "
        "batching: the server of the effective-batching study, the same as --dialect batching --max-handlers 8 "
        "--recompute, and --static-equal-lengths with --batching static.", choices=("none", "tgi", "lorax", "batching"))
    dialect: str = setting(
        "none", "Add the routes of another server. batching: /inference and /stats of the effective-batching study, "
        "by default on port 8500. /stats writes data/token_data_*.csv, and POST / lists both.",
        choices=("none", "batching"))
    max_handlers: int = setting(
        0, "With --dialect batching: maximum number of requests to /inference that are handled at once, 8 in the "
        "study. Others wait, and their time does not count. 0: no limit.", low=0)
    max_client_batch_size: int = setting(
        4, "Maximum number of requests in one to /vertex, of texts in one to /classify_batch, and with --compat tgi of "
        "prompts in one to /v1/completions.", low=1)
    adapter_source: str = setting(
        "hub", "Source of adapters unless a request names one: the Hugging Face Hub (hub), a folder in "
        "--adapter-root (local), or a bucket (s3). Default with --adapter-root: local, but not with --compat lorax.",
        choices=ADAPTER_SOURCES)
    adapter_id: str = setting("", "Adapter for requests that name none, by its name in its source.")
    preloaded_adapter_ids: tuple[str, ...] = setting(
        (), "Adapter to load at startup and to keep loaded, by its name in its source, or NAME=ID to give it another "
        "name for requests. Can be repeated.")
    preloaded_adapter_source: str = setting(
        "", "Source of the preloaded adapters. Default: --adapter-source.", choices=("", *ADAPTER_SOURCES))
    max_active_adapters: int = setting(
        1024, "Maximum number of loaded adapters, at most 1,024 on a GPU. Requests for further ones wait until one "
        "can be unloaded.", low=1)
    adapter_cycle_time_s: float = setting(
        2.0, "Maximum time in seconds for which an adapter stays loaded while requests for others wait.", low=0)
    disable_grammar_support: bool = setting(False, "Refuse requests with a grammar.")
    max_input_tokens: int | None = setting(
        None, "Maximum number of tokens in a prompt. Default: one less than --max-total-tokens.", low=1)
    max_total_tokens: int | None = setting(
        None, "Maximum number of tokens in a request, prompt and output together. Default: as many as model and "
        "cache can hold.", low=2)
    max_batch_prefill_tokens: int = setting(
        4096, "Maximum number of tokens in a step. Prompts that are longer together run in several steps.", low=32)
    max_batch_total_tokens: int | None = setting(
        None, "Size of the KV cache in tokens, at most what fits into memory. Default: all that fits, but "
        "no more than --max-batch-size requests of full length can use.", low=16)
    max_batch_size: int = setting(256, "Maximum number of sequences that run at once.", low=1)
    batching: str = setting(
        "continuous", "Which requests run together. continuous: requests join and leave at every step. static: a "
        "group runs from its first step to its last, and others wait. none: one request at a time. The last two are "
        "for comparison. dynamic and nobatch are other names of continuous and none.",
        choices=("continuous", "static", "none", "dynamic", "nobatch"))
    static_window_ms: float = setting(
        0.0, "With --batching static: time in milliseconds for which the first request of a group waits for others. "
        "It ends early when --max-batch-size requests wait.", low=0)
    static_equal_lengths: bool = setting(
        False, "With --batching static: form groups only of requests with equal prompt and output lengths.")
    recompute: bool = setting(False, "Recompute prompt and output at every step and use no KV cache, for comparison.")
    prefill_policy: str = setting(
        "mixed", "How prompts join running sequences. mixed: in chunks, in the same steps as decodes. pause: in "
        "steps of their own, while running sequences wait.", choices=("mixed", "pause"))
    max_decode_stall_ms: float | None = setting(
        None, "With mixed steps: maximum time in milliseconds by which prompts may delay a step. Default: 50 on "
        "CUDA, 150 on CPU. Prompts may always take twice as long as the step without them, rounded up to whole "
        "blocks, and more if more requests wait than run, so that slow machines make progress.", low=0)
    waiting_served_ratio: float = setting(
        0.3, "With --prefill-policy pause: start prompts when this many requests wait for each running sequence.",
        low=0)
    max_waiting_tokens: int = setting(
        20, "With --prefill-policy pause: start prompts after this many decode steps, however few requests wait.",
        low=0)
    cache_scope: str = setting(
        "tenant", "Which requests share cached prompt prefixes: those of the same tenant (tenant), all (global), or "
        "none (off).", choices=("tenant", "global", "off"))
    max_passed_over_ms: float = setting(
        2000.0, "Maximum time in milliseconds for which a waiting request can be overtaken by later ones whose "
        "prompts are cached.", low=0)
    look_ahead: int = setting(2, "Maximum number of steps in flight to the shards.", low=1, high=2)
    block_size: int = setting(16, "Tokens in a block of the KV cache, a multiple of 16.", low=16)
    payload_limit: int = setting(
        2_000_000, "Maximum size of a request's body in bytes, compressed and decompressed.", low=1)
    tokenizer_config_path: str = setting(
        "", "File like tokenizer_config.json whose `chat_template` replaces that of the model, or a template in a file "
        "whose name ends with .jinja.")
    slow_client_buffer: int = setting(
        262_144, "Bytes that are buffered for a client that reads too slowly. Beyond that its request is paused.",
        low=4096)
    slow_client_timeout: float = setting(
        30.0, "Seconds after which a client that reads nothing is disconnected.", low=0)
    allowed_hosts: tuple[str, ...] = setting(
        (), "Domain name by which clients may address the server, in the header Host; `*` for any. Can be repeated. "
        "Default: any, but none on a loopback address without API keys. Addresses and names without a dot are always "
        "allowed.")
    header_timeout: float = setting(
        10.0, "Seconds that the head of a request may take, also on a new connection.", low=0.1)
    body_timeout: float = setting(60.0, "Seconds that the body of a request may take.", low=0.1)
    keep_alive_timeout: float = setting(
        75.0, "Seconds for which a connection is kept open between two requests.", low=0.1)
    max_connections: int | None = setting(
        None, "Maximum number of connections. Beyond it a new one replaces the one that has been longest without a "
        "complete request. Default: as many as the system's limit of open files allows.", low=1)
    max_connections_per_address: int | None = setting(
        None, "Maximum number of connections from one address. Default: half of all.", low=1)
    step_timeout: float | None = setting(
        None, "Seconds after which a shard that does not answer counts as hung. Default: ten times the longest "
        "expected step, at least 30.", low=0)
    shard_response_timeout: float = setting(
        5.0, "Seconds after which a shard whose process does not respond at all, such as a stopped one, is replaced. "
        "A process that computes responds.", low=0.5)
    on_shard_loss: str = setting(
        "resume", "What happens to requests when shards die or are given up. resume: they continue on the new shards. "
        "fail: they get an error then, and so does every request until the new shards are ready.",
        choices=("resume", "fail"))
    shard_transport: str = setting(
        "stream", "How steps are sent to a shard: over one stream for all of them (stream), or as a call for each "
        "(unary), which costs the router more.", choices=("stream", "unary"))
    request_log: bool = setting(
        True, "Log a line for each finished request: lengths, times and finish reason, never text.")
    ui: bool = setting(
        True, "Serve the page at / and /ui: playground, live batch, requests. Without it, GET / is a health probe.")
    ui_show_text: bool = setting(
        False, "Show the text that running requests generate in the live batch: to a tenant its own, to an admin key "
        "that of all. Without it the live batch has no text.")
    record_minutes: float = setting(
        5.0, "Minutes of scheduling decisions kept in memory, without text or tokens. They are written to a file at "
        "SIGUSR1 or when the scheduler fails, for `weft replay`. 0: none.", low=0, high=60)
    validation_workers: int = setting(2, "Number of threads that tokenize prompts.", low=1)
    shutdown_timeout: float = setting(
        30.0, "Seconds that running requests get to finish when the server is stopped.", low=0)
    shutdown_delay: float = setting(
        0.0, "Seconds for which a server that is stopped still takes requests while /ready answers 503, so that a load "
        "balancer sees it before a request is refused. --shutdown-timeout begins afterwards.", low=0)

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
        check_served_model_names(self)
        for adapter_id in self.preloaded_adapter_ids:
            if adapter_id.startswith("{"):
                raise ValueError(f"--preloaded-adapter-ids takes ID or NAME=ID, not JSON, got {adapter_id}")
        for origin in self.cors_allow_origin:
            if not ORIGIN_PATTERN.fullmatch(origin):
                raise ValueError("--cors-allow-origin must be * or an origin without a path, such as "
                                 f"https://chat.example.org, got {origin}")


def check_served_model_names(config: RouterConfig) -> None:
    """Raise ValueError for names that no request can use, or that would hide an adapter."""
    names = config.served_model_name
    adapters = {adapter_id.partition("=")[0] for adapter_id in config.preloaded_adapter_ids} | {config.adapter_id}
    for name in names:
        if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
            raise ValueError(f"--served-model-name must be 1 to {MAX_NAME_LENGTH} characters that can be "
                             f"printed, got {len(name)} characters")
        if names.count(name) > 1:
            raise ValueError(f"--served-model-name {name} is given twice")
        if name in adapters:
            raise ValueError(f"--served-model-name {name} is also the name of an adapter that is loaded at start; "
                             "choose another")


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
