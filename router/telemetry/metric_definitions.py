"""Definitions of all metrics: name, type, labels, buckets and help. docs/metrics.md is the same list for users.

Metrics that text-generation-inference has use its names, so that its dashboards work; metrics that the inference
gateway of Kubernetes reads use vLLM's names. With `--compat lorax` metrics that have another name in LoRAX are repeated
under that name, as an alias.
"""

from itertools import accumulate, repeat
from operator import mul

from router.config import ADAPTER_SOURCES
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.loadable_resource_cache import STATUS_BY_STATE as PRESENCES
from router.scheduler.sequence import RequestPhase
from router.telemetry.instruments import OTHER_LABEL, MetricDefinition, MetricType
from router.text.prompt_encoder import TokenLimits

COUNTER, GAUGE, HISTOGRAM = MetricType.COUNTER, MetricType.GAUGE, MetricType.HISTOGRAM
DURATION_BUCKETS = tuple(accumulate(repeat(1.5, 35), mul, initial=0.0001))[1:]
BATCH_SIZE_BUCKETS = tuple(map(float, range(1, 1025)))
METHOD_LABEL, KV_CACHE_METHODS = ("method",), ("prefill", "decode")
STEP_METHODS = (*KV_CACHE_METHODS, "embed")
REQUEST_ERRORS = ("overloaded", "validation", "template", "generation", "incomplete", "dropped", "timeout",
                  "download_adapter", "embedding_failure", "classification_failure")
JOIN_REASONS = ("backpressure", "wait_exceeded", "chunking")
BLOCK_STATES = ("held", "kept", "free")
PHASE_NAMES = tuple(map(str, RequestPhase))
ADAPTER_STATES = tuple(dict.fromkeys(PRESENCES.values()))
OUTCOME_LABEL = ("outcome",)
LOAD_OUTCOMES = ("ok", "failed")
FETCH_OUTCOMES = ("ok", "missing", "failed")
MAX_NAMED_ADAPTERS = 100  # adapters that are counted by name
SHARD_LOSS_NAMES = tuple(loss_reason.name.lower() for loss_reason in ShardLossReason)


# LoRAX's names of the same metrics.
LORAX_METRIC_NAMES = {f"tgi_{name}": f"lorax_{name}" for name in (
    "request_count", "request_success", "request_failure", "request_duration", "request_validation_duration",
    "request_queue_duration", "request_inference_duration", "request_mean_time_per_token_duration",
    "request_input_length", "request_generated_tokens", "request_max_new_tokens", "request_skipped_tokens",
    "batch_current_size", "batch_current_max_tokens", "batch_next_size", "batch_concat", "batch_inference_count",
    "batch_inference_success", "batch_inference_failure", "batch_inference_duration",
)} | {"tgi_queue_size": "lorax_queue_length"}


def all_families(limits: TokenLimits, tokens_per_step: int, *,
                 with_adapters: bool = False) -> tuple[MetricDefinition, ...]:
    """Return all metrics, including those of adapters if adapters are served (`with_adapters`)."""
    return (*request_families(limits, tokens_per_step), *step_families(), *server_families(),
            *(adapter_families() if with_adapters else ()), *gateway_families())


def request_families(limits: TokenLimits, tokens_per_step: int) -> tuple[MetricDefinition, ...]:
    length_buckets, prompt_length_buckets = (percent_buckets(limits.max_total_tokens),
                                             percent_buckets(limits.max_input_tokens))
    return (
        MetricDefinition("tgi_request_count", COUNTER, "Requests that came, each counted once."),
        MetricDefinition("tgi_request_success", COUNTER, "Requests that were answered to their end."),
        MetricDefinition("tgi_request_failure", COUNTER, "Requests that failed, by why.", ("err",), REQUEST_ERRORS),
        MetricDefinition("tgi_request_duration", HISTOGRAM, "Seconds from the coming of a request to its end.",
                         bucket_bounds=DURATION_BUCKETS),
        MetricDefinition("tgi_request_validation_duration", HISTOGRAM, "Seconds for reading, checking and tokenising.",
                         bucket_bounds=DURATION_BUCKETS),
        MetricDefinition("tgi_request_queue_duration", HISTOGRAM, "Seconds that a request waited, whatever for.",
                         bucket_bounds=DURATION_BUCKETS),
        MetricDefinition("tgi_request_inference_duration", HISTOGRAM,
                         "Seconds in which its prompt or its tokens were computed.", bucket_bounds=DURATION_BUCKETS),
        MetricDefinition("tgi_request_mean_time_per_token_duration", HISTOGRAM,
                         "Seconds of inference by tokens generated.",
                         bucket_bounds=DURATION_BUCKETS),
        MetricDefinition("tgi_request_time_to_first_token_duration", HISTOGRAM,
                         "Seconds from a request's coming to its first token.", bucket_bounds=DURATION_BUCKETS),
        MetricDefinition("tgi_request_inter_token_duration", HISTOGRAM,
                         "Seconds from one delivery of tokens to the next of a request.",
                         bucket_bounds=DURATION_BUCKETS),
        MetricDefinition("tgi_request_input_length", HISTOGRAM, "Tokens of prompts that were accepted.",
                         bucket_bounds=prompt_length_buckets),
        MetricDefinition("tgi_request_max_new_tokens", HISTOGRAM, "Tokens that may be generated for those accepted.",
                         bucket_bounds=length_buckets),
        MetricDefinition("tgi_request_generated_tokens", HISTOGRAM, "Tokens generated for a request.",
                         bucket_bounds=length_buckets),
        MetricDefinition("tgi_request_skipped_tokens", HISTOGRAM, "Tokens of a request in one step, beyond the first.",
                         bucket_bounds=tuple(map(float, range(tokens_per_step)))),
        MetricDefinition("tgi_request_yields", COUNTER,
                         "How often requests gave their place in the cache to others and waited again."),
        MetricDefinition("tgi_request_current", GAUGE, "Requests in the house, by what their time goes to now.",
                         ("cause",),
                         PHASE_NAMES),
        MetricDefinition("tgi_prefix_query_tokens", COUNTER, "Prompt tokens of requests that started."),
        MetricDefinition("tgi_prefix_hit_tokens", COUNTER, "Of those, the ones that were found in the cache."),)


def step_families() -> tuple[MetricDefinition, ...]:
    return (
        MetricDefinition("tgi_batch_inference_count", COUNTER, "Steps that were sent to the shards.", METHOD_LABEL,
                         STEP_METHODS),
        MetricDefinition("tgi_batch_inference_success", COUNTER, "Steps that were answered.", METHOD_LABEL,
                         STEP_METHODS),
        MetricDefinition("tgi_batch_inference_failure", COUNTER, "Steps that were lost with the shards.", METHOD_LABEL,
                         STEP_METHODS),
        MetricDefinition("tgi_batch_inference_duration", HISTOGRAM,
                         "Seconds of a step for the router: there, back, and made into text.", METHOD_LABEL,
                         STEP_METHODS,
                         DURATION_BUCKETS),
        MetricDefinition("tgi_batch_forward_duration", HISTOGRAM, "Seconds of a step on the shards.", METHOD_LABEL,
                         STEP_METHODS, DURATION_BUCKETS),
        MetricDefinition("tgi_batch_decode_duration", HISTOGRAM,
                         "Seconds for making text of a step and looking for stop strings.", METHOD_LABEL, STEP_METHODS,
                         DURATION_BUCKETS),
        MetricDefinition("tgi_batch_filter_duration", HISTOGRAM, "Seconds of a Filter that did not ride on a step.",
                         METHOD_LABEL, KV_CACHE_METHODS, DURATION_BUCKETS),
        MetricDefinition("tgi_batch_concat_duration", HISTOGRAM, "Seconds of a Concat that did not ride on a step.",
                         METHOD_LABEL, ("decode",), DURATION_BUCKETS),
        MetricDefinition("tgi_batch_concat", COUNTER,
                         "How often newcomers joined others that were running, by why then.",
                         ("reason",), JOIN_REASONS),
        MetricDefinition("tgi_batch_next_size", HISTOGRAM, "Newcomers that start in the same step.",
                         bucket_bounds=BATCH_SIZE_BUCKETS),
        MetricDefinition("tgi_batch_stall_duration", HISTOGRAM,
                         "Seconds for which prompts kept those waiting that were generating.",
                         bucket_bounds=DURATION_BUCKETS),
        MetricDefinition("tgi_batch_stall_exceeded", COUNTER,
                         "Mixed steps in which prompts took twice as long as they may."),
        MetricDefinition("tgi_batch_max_stall_duration", GAUGE,
                         "Seconds that a stall may take in any case (--max-decode-stall-ms)."),
        MetricDefinition("tgi_batch_prompt_tokens", COUNTER, "Prompt tokens that were sent to be computed."),
        MetricDefinition("tgi_batch_generated_tokens", COUNTER, "Tokens that were delivered."),
        MetricDefinition("tgi_batch_current_size", GAUGE, "Sequences in the running batch."),
        MetricDefinition("tgi_batch_current_max_tokens", GAUGE, "Token places that running sequences hold."),
        MetricDefinition("tgi_batch_max_total_tokens", GAUGE, "Token places of the cache."),)


def server_families() -> tuple[MetricDefinition, ...]:
    return (
        MetricDefinition("tgi_queue_size", GAUGE, "Sequences that wait."),
        MetricDefinition("tgi_cache_blocks", GAUGE,
                         "Blocks of the cache: held by sequences, kept for prompts to come, or free.", ("state",),
                         BLOCK_STATES),
        MetricDefinition("tgi_ready", GAUGE, "1 where requests should be sent here, else 0: what /ready says."),
        MetricDefinition("tgi_shard_ready", GAUGE, "1 while all shards are there, else 0."),
        MetricDefinition("tgi_shard_lost", COUNTER, "How often the shards, or what they held, were lost, by how.",
                         ("loss",), SHARD_LOSS_NAMES),
    )


def adapter_families() -> tuple[MetricDefinition, ...]:
    adapter_label = ("adapter",)
    return (
        MetricDefinition("weft_adapters", GAUGE, "Adapters on the shards, on their way there, or about to leave.",
                         ("state",), ADAPTER_STATES),
        MetricDefinition("weft_adapter_bytes", GAUGE, "Bytes that those take on a shard, at most."),
        MetricDefinition("weft_adapter_loads", COUNTER, "How often an adapter was loaded, or could not be.",
                         OUTCOME_LABEL,
                         LOAD_OUTCOMES),
        MetricDefinition("weft_adapter_unloads", COUNTER, "How often an adapter left the shards."),
        MetricDefinition("weft_adapter_load_seconds", HISTOGRAM, "Seconds until every shard had an adapter.",
                         bucket_bounds=DURATION_BUCKETS),
        MetricDefinition("weft_adapter_fetches", COUNTER, "How often the store was asked for what a name stands for.",
                         ("source", "outcome"), (*ADAPTER_SOURCES, OTHER_LABEL), second_label_values=FETCH_OUTCOMES),
        MetricDefinition("weft_adapter_fetch_seconds", HISTOGRAM, "Seconds until the store had what a name stands for.",
                         bucket_bounds=DURATION_BUCKETS),
        MetricDefinition("weft_adapter_requests", COUNTER, "Requests that were accepted, by adapter.", adapter_label,
                         max_label_values=MAX_NAMED_ADAPTERS),
        MetricDefinition("weft_adapter_generated_tokens", COUNTER, "Tokens generated, by adapter.", adapter_label,
                         max_label_values=MAX_NAMED_ADAPTERS),)


def gateway_families() -> tuple[MetricDefinition, ...]:
    return (
        MetricDefinition("vllm:num_requests_waiting", GAUGE, "As tgi_queue_size."),
        MetricDefinition("vllm:num_requests_running", GAUGE, "Requests in the house that do not wait."),
        MetricDefinition("vllm:kv_cache_usage_perc", GAUGE, "Share of the cache that is held, from 0 to 1."),
        MetricDefinition("vllm:gpu_cache_usage_perc", GAUGE, "The same under its older name."),
        MetricDefinition("vllm:cache_config_info", GAUGE, "The cache, in the labels.",
                         ("block_size", "num_gpu_blocks")),
        MetricDefinition("vllm:lora_requests_info", GAUGE,
                         "Adapters, in the labels; the value is when that changed, in Unix time.",
                         ("max_lora", "running_lora_adapters", "waiting_lora_adapters")),)


def percent_buckets(max_value: int) -> tuple[float, ...]:
    return tuple(max_value / 100 * count for count in range(1, 101))
