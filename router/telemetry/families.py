"""Definitions of all metrics: name, type, labels, buckets and help. docs/metrics.md is the same list for users.

Metrics that text-generation-inference has use its names, so that its dashboards work; metrics that the inference
gateway of Kubernetes reads use vLLM's names. With `--compat lorax` metrics that have another name in LoRAX are repeated
under that name, as twins.
"""

from itertools import accumulate, repeat
from operator import mul

from router.config import SOURCES
from router.scheduler.fault_isolation import Loss
from router.scheduler.resource_cache import STATES as PRESENCES
from router.scheduler.timeline import Cause
from router.telemetry.instruments import OTHER, Family, Kind
from router.text.prompts import Limits

C, G, H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
DURATIONS = tuple(accumulate(repeat(1.5, 35), mul, initial=0.0001))[1:]
BATCH_SIZES = tuple(map(float, range(1, 1025)))
METHOD, CACHING = ("method",), ("prefill", "decode")
METHODS = (*CACHING, "embed")
ERRORS = ("overloaded", "validation", "template", "generation", "incomplete", "dropped", "timeout", "download_adapter",
          "embedding_failure", "classification_failure")
REASONS = ("backpressure", "wait_exceeded", "chunking")
STATES = ("held", "kept", "free")
CAUSES = tuple(map(str, Cause))
ADAPTER_STATES = tuple(dict.fromkeys(PRESENCES.values()))
OUTCOME = ("outcome",)
LOADS = ("ok", "failed")
FETCHES = ("ok", "missing", "failed")
MOST_NAMED = 100  # adapters that are counted by name
LOSSES = tuple(loss.name.lower() for loss in Loss)


# LoRAX's names of the same metrics.
LORAX = {f"tgi_{name}": f"lorax_{name}" for name in (
    "request_count", "request_success", "request_failure", "request_duration", "request_validation_duration",
    "request_queue_duration", "request_inference_duration", "request_mean_time_per_token_duration",
    "request_input_length", "request_generated_tokens", "request_max_new_tokens", "request_skipped_tokens",
    "batch_current_size", "batch_current_max_tokens", "batch_next_size", "batch_concat", "batch_inference_count",
    "batch_inference_success", "batch_inference_failure", "batch_inference_duration",
)} | {"tgi_queue_size": "lorax_queue_length"}


def families(limits: Limits, tokens_per_step: int, *, adapters: bool = False) -> tuple[Family, ...]:
    """Return all metrics, including those of adapters if `adapters` are served."""
    return (*requests(limits, tokens_per_step), *steps(), *house(), *(of_adapters() if adapters else ()), *gateway())


def requests(limits: Limits, tokens_per_step: int) -> tuple[Family, ...]:
    lengths, prompts = hundredths(limits.max_total_tokens), hundredths(limits.max_input_tokens)
    return (
        Family("tgi_request_count", C, "Requests that came, each counted once."),
        Family("tgi_request_success", C, "Requests that were answered to their end."),
        Family("tgi_request_failure", C, "Requests that failed, by why.", ("err",), ERRORS),
        Family("tgi_request_duration", H, "Seconds from the coming of a request to its end.", bounds=DURATIONS),
        Family("tgi_request_validation_duration", H, "Seconds for reading, checking and tokenising.", bounds=DURATIONS),
        Family("tgi_request_queue_duration", H, "Seconds that a request waited, whatever for.", bounds=DURATIONS),
        Family("tgi_request_inference_duration", H, "Seconds in which its prompt or its tokens were computed.",
               bounds=DURATIONS),
        Family("tgi_request_mean_time_per_token_duration", H, "Seconds of inference by tokens generated.",
               bounds=DURATIONS),
        Family("tgi_request_time_to_first_token_duration", H, "Seconds from a request's coming to its first token.",
               bounds=DURATIONS),
        Family("tgi_request_inter_token_duration", H, "Seconds from one delivery of tokens to the next of a request.",
               bounds=DURATIONS),
        Family("tgi_request_input_length", H, "Tokens of prompts that were accepted.", bounds=prompts),
        Family("tgi_request_max_new_tokens", H, "Tokens that may be generated for those accepted.", bounds=lengths),
        Family("tgi_request_generated_tokens", H, "Tokens generated for a request.", bounds=lengths),
        Family("tgi_request_skipped_tokens", H, "Tokens of a request in one step, beyond the first.",
               bounds=tuple(map(float, range(tokens_per_step)))),
        Family("tgi_request_yields", C, "How often requests gave their place in the cache to others and waited again."),
        Family("tgi_request_current", G, "Requests in the house, by what their time goes to now.", ("cause",), CAUSES),
        Family("tgi_prefix_query_tokens", C, "Prompt tokens of requests that started."),
        Family("tgi_prefix_hit_tokens", C, "Of those, the ones that were found in the cache."),
    )


def steps() -> tuple[Family, ...]:
    return (
        Family("tgi_batch_inference_count", C, "Steps that were sent to the shards.", METHOD, METHODS),
        Family("tgi_batch_inference_success", C, "Steps that were answered.", METHOD, METHODS),
        Family("tgi_batch_inference_failure", C, "Steps that were lost with the shards.", METHOD, METHODS),
        Family("tgi_batch_inference_duration", H, "Seconds of a step for the router: there, back, and made into text.",
               METHOD, METHODS, DURATIONS),
        Family("tgi_batch_forward_duration", H, "Seconds of a step on the shards.", METHOD, METHODS, DURATIONS),
        Family("tgi_batch_decode_duration", H, "Seconds for making text of a step and looking for stop strings.",
               METHOD, METHODS, DURATIONS),
        Family("tgi_batch_filter_duration", H, "Seconds of a Filter that did not ride on a step.", METHOD, CACHING,
               DURATIONS),
        Family("tgi_batch_concat_duration", H, "Seconds of a Concat that did not ride on a step.", METHOD, ("decode",),
               DURATIONS),
        Family("tgi_batch_concat", C, "How often newcomers joined others that were running, by why then.", ("reason",),
               REASONS),
        Family("tgi_batch_next_size", H, "Newcomers that start in the same step.", bounds=BATCH_SIZES),
        Family("tgi_batch_stall_duration", H, "Seconds for which prompts kept those waiting that were generating.",
               bounds=DURATIONS),
        Family("tgi_batch_stall_exceeded", C, "Mixed steps in which prompts took twice as long as they may."),
        Family("tgi_batch_max_stall_duration", G, "Seconds that a stall may take in any case (--max-decode-stall-ms)."),
        Family("tgi_batch_prompt_tokens", C, "Prompt tokens that were sent to be computed."),
        Family("tgi_batch_generated_tokens", C, "Tokens that were delivered."),
        Family("tgi_batch_current_size", G, "Sequences in the running batch."),
        Family("tgi_batch_current_max_tokens", G, "Token places that running sequences hold."),
        Family("tgi_batch_max_total_tokens", G, "Token places of the cache."),
    )


def house() -> tuple[Family, ...]:
    return (
        Family("tgi_queue_size", G, "Sequences that wait."),
        Family("tgi_cache_blocks", G, "Blocks of the cache: held by sequences, kept for prompts to come, or free.",
               ("state",), STATES),
        Family("tgi_ready", G, "1 where requests should be sent here, else 0: what /ready says."),
        Family("tgi_shard_ready", G, "1 while all shards are there, else 0."),
        Family("tgi_shard_lost", C, "How often the shards, or what they held, were lost, by how.", ("loss",), LOSSES),
    )


def of_adapters() -> tuple[Family, ...]:
    adapter = ("adapter",)
    return (
        Family("weft_adapters", G, "Adapters on the shards, on their way there, or about to leave.", ("state",),
               ADAPTER_STATES),
        Family("weft_adapter_bytes", G, "Bytes that those take on a shard, at most."),
        Family("weft_adapter_loads", C, "How often an adapter was loaded, or could not be.", OUTCOME, LOADS),
        Family("weft_adapter_unloads", C, "How often an adapter left the shards."),
        Family("weft_adapter_load_seconds", H, "Seconds until every shard had an adapter.", bounds=DURATIONS),
        Family("weft_adapter_fetches", C, "How often the store was asked for what a name stands for.",
               ("source", "outcome"), (*SOURCES, OTHER), second=FETCHES),
        Family("weft_adapter_fetch_seconds", H, "Seconds until the store had what a name stands for.",
               bounds=DURATIONS),
        Family("weft_adapter_requests", C, "Requests that were accepted, by adapter.", adapter, most=MOST_NAMED),
        Family("weft_adapter_generated_tokens", C, "Tokens generated, by adapter.", adapter, most=MOST_NAMED),
    )


def gateway() -> tuple[Family, ...]:
    return (
        Family("vllm:num_requests_waiting", G, "As tgi_queue_size."),
        Family("vllm:num_requests_running", G, "Requests in the house that do not wait."),
        Family("vllm:kv_cache_usage_perc", G, "Share of the cache that is held, from 0 to 1."),
        Family("vllm:gpu_cache_usage_perc", G, "The same under its older name."),
        Family("vllm:cache_config_info", G, "The cache, in the labels.", ("block_size", "num_gpu_blocks")),
        Family("vllm:lora_requests_info", G, "Adapters, in the labels; the value is when that changed, in Unix time.",
               ("max_lora", "running_lora_adapters", "waiting_lora_adapters")),
    )


def hundredths(most: int) -> tuple[float, ...]:
    return tuple(most / 100 * count for count in range(1, 101))
