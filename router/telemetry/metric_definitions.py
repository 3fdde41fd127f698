"""Definitions of all metrics; docs/metrics.md is the same list for users. Metrics that text-generation-inference has
use its names, so that its dashboards work; those that the inference gateway of Kubernetes reads use vLLM's."""

from functools import partial
from itertools import accumulate, repeat
from operator import mul

from router.config import ADAPTER_SOURCES
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.loadable_resource_cache import STATUS_BY_STATE
from router.scheduler.sequence import RequestPhase
from router.telemetry.instruments import OTHER_LABEL, MetricDefinition, MetricType
from router.text.prompt_encoder import TokenLimits

DURATION_BUCKETS = tuple(accumulate(repeat(1.5, 35), mul, initial=0.0001))[1:]
BATCH_SIZE_BUCKETS = tuple(map(float, range(1, 1025)))
METHOD_LABEL, KV_CACHE_METHODS = ("method",), ("prefill", "decode")
STEP_METHODS = (*KV_CACHE_METHODS, "embed")
REQUEST_ERRORS = ("overloaded", "validation", "template", "generation", "incomplete", "dropped", "timeout",
                  "download_adapter", "embedding_failure", "classification_failure")
PHASE_NAMES = tuple(map(str, RequestPhase))
ADAPTER_STATES = tuple(dict.fromkeys(STATUS_BY_STATE.values()))
MAX_NAMED_ADAPTERS = 100  # adapters that are counted by name
# LoRAX's names of the same metrics, under which `--compat lorax` repeats them.
LORAX_METRIC_NAMES = {f"tgi_{name}": f"lorax_{name}" for name in (
    "request_count", "request_success", "request_failure", "request_duration", "request_validation_duration",
    "request_queue_duration", "request_inference_duration", "request_mean_time_per_token_duration",
    "request_input_length", "request_generated_tokens", "request_max_new_tokens", "request_skipped_tokens",
    "batch_current_size", "batch_current_max_tokens", "batch_next_size", "batch_concat", "batch_inference_count",
    "batch_inference_success", "batch_inference_failure", "batch_inference_duration",
)} | {"tgi_queue_size": "lorax_queue_length"}
counter, gauge = partial(MetricDefinition, MetricType.COUNTER), partial(MetricDefinition, MetricType.GAUGE)
histogram = partial(MetricDefinition, MetricType.HISTOGRAM)
duration = partial(histogram, bucket_bounds=DURATION_BUCKETS)


def all_families(limits: TokenLimits, tokens_per_step: int, *,
                 with_adapters: bool = False) -> tuple[MetricDefinition, ...]:
    """Return all metrics, including those of adapters if adapters are served (`with_adapters`)."""
    return (*request_families(limits, tokens_per_step), *STEP_FAMILIES, *SERVER_FAMILIES,
            *(ADAPTER_FAMILIES if with_adapters else ()), *GATEWAY_FAMILIES)


def request_families(limits: TokenLimits, tokens_per_step: int) -> tuple[MetricDefinition, ...]:
    length_buckets = percent_buckets(limits.max_total_tokens)
    return (
        counter("tgi_request_count", "Requests that came, each counted once."),
        counter("tgi_request_success", "Requests that were answered to their end."),
        counter("tgi_request_failure", "Requests that failed, by why.", ("err",), REQUEST_ERRORS),
        duration("tgi_request_duration", "Seconds from the coming of a request to its end."),
        duration("tgi_request_validation_duration", "Seconds for reading, checking and tokenising."),
        duration("tgi_request_queue_duration", "Seconds that a request waited, whatever for."),
        duration("tgi_request_inference_duration", "Seconds in which its prompt or its tokens were computed."),
        duration("tgi_request_mean_time_per_token_duration", "Seconds of inference by tokens generated."),
        duration("tgi_request_time_to_first_token_duration", "Seconds from a request's coming to its first token."),
        duration("tgi_request_inter_token_duration", "Seconds from one delivery of tokens to the next of a request."),
        histogram("tgi_request_input_length", "Tokens of prompts that were accepted.",
                  bucket_bounds=percent_buckets(limits.max_input_tokens)),
        histogram("tgi_request_max_new_tokens", "Tokens that may be generated for those accepted.",
                  bucket_bounds=length_buckets),
        histogram("tgi_request_generated_tokens", "Tokens generated for a request.", bucket_bounds=length_buckets),
        histogram("tgi_request_skipped_tokens", "Tokens of a request in one step, beyond the first.",
                  bucket_bounds=tuple(map(float, range(tokens_per_step)))),
        counter("tgi_request_yields", "How often requests gave their place in the cache to others and waited again."),
        gauge("tgi_request_current", "Unfinished requests, by what their time goes to now.", ("cause",), PHASE_NAMES),
        counter("tgi_prefix_query_tokens", "Prompt tokens of requests that started."),
        counter("tgi_prefix_hit_tokens", "Of those, the ones that were found in the cache."),
    )


STEP_FAMILIES = (
    counter("tgi_batch_inference_count", "Steps that were sent to the shards.", METHOD_LABEL, STEP_METHODS),
    counter("tgi_batch_inference_success", "Steps that were answered.", METHOD_LABEL, STEP_METHODS),
    counter("tgi_batch_inference_failure", "Steps that were lost with the shards.", METHOD_LABEL, STEP_METHODS),
    duration("tgi_batch_inference_duration", "Seconds of a step for the router: there, back, and made into text.",
             METHOD_LABEL, STEP_METHODS),
    duration("tgi_batch_forward_duration", "Seconds of a step on the shards.", METHOD_LABEL, STEP_METHODS),
    duration("tgi_batch_decode_duration", "Seconds for making text of a step and looking for stop strings.",
             METHOD_LABEL, STEP_METHODS),
    duration("tgi_batch_filter_duration", "Seconds of a Filter that did not ride on a step.", METHOD_LABEL,
             KV_CACHE_METHODS),
    duration("tgi_batch_concat_duration", "Seconds of a Concat that did not ride on a step.", METHOD_LABEL,
             ("decode",)),
    counter("tgi_batch_concat", "How often newcomers joined others that were running, by why then.", ("reason",),
            ("backpressure", "wait_exceeded", "chunking")),
    histogram("tgi_batch_next_size", "Newcomers that start in the same step.", bucket_bounds=BATCH_SIZE_BUCKETS),
    duration("tgi_batch_stall_duration", "Seconds for which prompts kept those waiting that were generating."),
    counter("tgi_batch_stall_exceeded", "Mixed steps in which prompts took twice as long as they may."),
    gauge("tgi_batch_max_stall_duration", "Seconds that a stall may take in any case (--max-decode-stall-ms)."),
    counter("tgi_batch_prompt_tokens", "Prompt tokens that were sent to be computed."),
    counter("tgi_batch_generated_tokens", "Tokens that were delivered."),
    gauge("tgi_batch_current_size", "Sequences in the running batch."),
    gauge("tgi_batch_current_max_tokens", "Token places that running sequences hold."),
    gauge("tgi_batch_max_total_tokens", "Token places of the cache."),
)
SERVER_FAMILIES = (
    gauge("tgi_queue_size", "Sequences that wait."),
    gauge("tgi_cache_blocks", "Blocks of the cache: held by sequences, kept for prompts to come, or free.", ("state",),
          ("held", "kept", "free")),
    gauge("tgi_ready", "1 where requests should be sent here, else 0: what /ready says."),
    gauge("tgi_shard_ready", "1 while all shards are there, else 0."),
    counter("tgi_shard_lost", "How often the shards, or what they held, were lost, by how.", ("loss",),
            tuple(loss_reason.name.lower() for loss_reason in ShardLossReason)),
)
ADAPTER_FAMILIES = (
    gauge("weft_adapters", "Adapters on the shards, on their way there, or about to leave.", ("state",),
          ADAPTER_STATES),
    gauge("weft_adapter_bytes", "Bytes that those take on a shard, at most."),
    counter("weft_adapter_loads", "How often an adapter was loaded, or could not be.", ("outcome",), ("ok", "failed")),
    counter("weft_adapter_unloads", "How often an adapter left the shards."),
    duration("weft_adapter_load_seconds", "Seconds until every shard had an adapter."),
    counter("weft_adapter_fetches", "How often the store was asked for what a name stands for.", ("source", "outcome"),
            (*ADAPTER_SOURCES, OTHER_LABEL), second_label_values=("ok", "missing", "failed")),
    duration("weft_adapter_fetch_seconds", "Seconds until the store had what a name stands for."),
    counter("weft_adapter_requests", "Requests that were accepted, by adapter.", ("adapter",),
            max_label_values=MAX_NAMED_ADAPTERS),
    counter("weft_adapter_generated_tokens", "Tokens generated, by adapter.", ("adapter",),
            max_label_values=MAX_NAMED_ADAPTERS),
)
GATEWAY_FAMILIES = (
    gauge("vllm:num_requests_waiting", "As tgi_queue_size."),
    gauge("vllm:num_requests_running", "Requests that are started and unfinished."),
    gauge("vllm:kv_cache_usage_perc", "Share of the cache that is held, from 0 to 1."),
    gauge("vllm:gpu_cache_usage_perc", "The same under its older name."),
    gauge("vllm:cache_config_info", "The cache, in the labels.", ("block_size", "num_gpu_blocks")),
    gauge("vllm:lora_requests_info", "Adapters, in the labels; the value is when that changed, in Unix time.",
          ("max_lora", "running_lora_adapters", "waiting_lora_adapters")),
)


def percent_buckets(max_value: int) -> tuple[float, ...]:
    return tuple(max_value / 100 * count for count in range(1, 101))
