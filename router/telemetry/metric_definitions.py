"""Definitions of all metrics, from which the tables of docs/reference/metrics.md are generated (`metrics_docs.py`).

Metrics that text-generation-inference has use its names, so that its dashboards work; those that the inference gateway
of Kubernetes reads use vLLM's."""

from functools import partial

from router.config import ADAPTER_SOURCES
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.loadable_resource_cache import STATE_NAMES
from router.scheduler.sequence import RequestPhase
from router.telemetry.instruments import OTHER_LABEL, MetricDefinition, MetricType
from router.text.prompt_encoder import TokenLimits

# Fewer buckets than text-generation-inference has, so that a page stays small; queries for quantiles need no change.
REQUEST_DURATION_BUCKETS = tuple(0.01 * 2**exponent for exponent in range(15))  # seconds
STEP_DURATION_BUCKETS = tuple(0.001 * 2**exponent for exponent in range(15))  # seconds
LOOP_DELAY_BUCKETS = (0.001, 0.004, 0.016, 0.032, 0.064, 0.128, 0.256, 1.024, 4.096)  # seconds
BATCH_SIZE_BUCKETS = (1.0, 2.0, *sorted(float(size * 2**exponent) for exponent in range(9) for size in (3, 4)))
NUM_LENGTH_BUCKETS = 20
METHOD_LABEL, KV_CACHE_METHODS = ("method",), ("prefill", "decode")
STEP_METHODS = (*KV_CACHE_METHODS, "embed")
REQUEST_ERRORS = ("overloaded", "validation", "template", "generation", "incomplete", "dropped", "timeout",
                  "download_adapter", "embedding_failure", "classification_failure", "shutting_down")
PHASE_NAMES = tuple(map(str, RequestPhase))
ADAPTER_STATES = tuple(dict.fromkeys(STATE_NAMES.values()))
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
request_duration = partial(histogram, bucket_bounds=REQUEST_DURATION_BUCKETS)
step_duration = partial(histogram, bucket_bounds=STEP_DURATION_BUCKETS)


def all_metric_definitions(limits: TokenLimits, tokens_per_step: int, *,
                           with_adapters: bool = False) -> tuple[MetricDefinition, ...]:
    """Return all metrics, including those of adapters if adapters are served (`with_adapters`)."""
    return (*request_metric_definitions(limits, tokens_per_step), *STEP_FAMILIES, *SERVER_FAMILIES,
            *(ADAPTER_FAMILIES if with_adapters else ()), *GATEWAY_FAMILIES)


def request_metric_definitions(limits: TokenLimits, tokens_per_step: int) -> tuple[MetricDefinition, ...]:
    length_buckets = length_bucket_bounds(limits.max_total_tokens)
    return (
        counter("tgi_request_count", "Requests received, each counted once."),
        counter("tgi_request_success", "Requests that were answered completely."),
        counter("tgi_request_failure", "Requests that failed, by the kind of error.", ("err",), REQUEST_ERRORS),
        request_duration("tgi_request_duration", "Seconds from the arrival of a request to its end."),
        step_duration("tgi_request_validation_duration",
                      "Seconds to receive a request's body, to check it and to tokenize it."),
        request_duration("tgi_request_queue_duration",
                         "Seconds that a request waited in total, before its start and after each preemption."),
        request_duration("tgi_request_inference_duration",
                         "Seconds during which a request's prompt or tokens were computed."),
        step_duration("tgi_request_mean_time_per_token_duration",
                      "Seconds of inference of a request, divided by its generated tokens."),
        request_duration("tgi_request_time_to_first_token_duration",
                         "Seconds from the arrival of a request to its first token. Observed at that token."),
        step_duration("tgi_request_inter_token_duration",
                      "Seconds between two deliveries of tokens of a request. Observed at each delivery."),
        histogram("tgi_request_input_length", "Prompt tokens of an accepted request.",
                  bucket_bounds=length_bucket_bounds(limits.max_input_tokens)),
        histogram("tgi_request_max_new_tokens", "Maximum number of tokens to generate for an accepted request.",
                  bucket_bounds=length_buckets),
        histogram("tgi_request_generated_tokens", "Tokens generated for a request.", bucket_bounds=length_buckets),
        histogram("tgi_request_skipped_tokens",
                  "Tokens that one step generated for a request beyond the first, by speculation.",
                  bucket_bounds=tuple(map(float, range(tokens_per_step)))),
        counter("tgi_request_yields",
                "Preemptions: how often requests gave up their cache blocks and waited again. Counted at their end."),
        gauge("tgi_request_current", "Unfinished requests, by what they spend their time on now.", ("cause",),
              PHASE_NAMES),
        counter("tgi_prefix_query_tokens", "Prompt tokens of started requests. Counted at their end."),
        counter("tgi_prefix_hit_tokens",
                "Prompt tokens that were found in the prefix cache and not computed. Counted at the request's end."),
    )


STEP_FAMILIES = (
    counter("tgi_batch_inference_count",
            "Steps sent to the shards. A step with a prompt in it is a prefill, even if it decodes as well.",
            METHOD_LABEL, STEP_METHODS),
    counter("tgi_batch_inference_success", "Steps that the shards answered.", METHOD_LABEL, STEP_METHODS),
    counter("tgi_batch_inference_failure", "Steps that were in flight when the shards were lost.", METHOD_LABEL,
            STEP_METHODS),
    step_duration("tgi_batch_inference_duration",
                  "Seconds of a step for the router, from sending it, or from the previous answer, to its text.",
                  METHOD_LABEL, STEP_METHODS),
    step_duration("tgi_batch_forward_duration", "Seconds of a step as measured by the shards.", METHOD_LABEL,
                  STEP_METHODS),
    step_duration("tgi_batch_decode_duration",
                  "Seconds in which the router converted a step's tokens to text and searched for stop strings.",
                  METHOD_LABEL, STEP_METHODS),
    step_duration("tgi_batch_filter_duration",
                  "Seconds of a Filter message that was sent by itself. Most are sent together with a step.",
                  METHOD_LABEL, KV_CACHE_METHODS),
    step_duration("tgi_batch_concat_duration",
                  "Seconds of a Concat message that was sent by itself. Most are sent together with a step.",
                  METHOD_LABEL, ("decode",)),
    counter("tgi_batch_concat", "How often requests joined a running batch, by the rule that let them in.", ("reason",),
            ("backpressure", "wait_exceeded", "chunking")),
    histogram("tgi_batch_next_size", "Requests that started in the same step.", bucket_bounds=BATCH_SIZE_BUCKETS),
    step_duration("tgi_batch_stall_duration", "Seconds by which prompts delayed the sequences that were generating."),
    counter("tgi_batch_stall_exceeded",
            "Steps in which prompts took more than twice the time allowed by --max-decode-stall-ms."),
    gauge("tgi_batch_max_stall_duration",
          "Seconds by which prompts may always delay a step of decodes (--max-decode-stall-ms)."),
    counter("tgi_batch_prompt_tokens", "Prompt tokens sent to the shards, repeated ones after a preemption included."),
    counter("tgi_batch_generated_tokens", "Tokens delivered to requests. Counted at each step."),
    gauge("tgi_batch_current_size", "Sequences in the running batch."),
    gauge("tgi_batch_current_max_tokens", "Cache slots, in tokens, that running sequences occupy."),
    gauge("tgi_batch_max_total_tokens", "Cache slots, in tokens, of the whole cache."),
)
SERVER_FAMILIES = (
    gauge("tgi_queue_size", "Sequences that wait to start, or to start again."),
    gauge("tgi_cache_blocks", "Cache blocks by state: held by sequences, kept for later prompts, or free.", ("state",),
          ("held", "kept", "free")),
    gauge("tgi_ready", "1 if requests should be sent here, else 0; the same as /ready."),
    gauge("tgi_shard_ready", "1 if all shards are up, else 0."),
    histogram("weft_event_loop_delay_seconds",
              "Seconds by which the router's event loop was late, observed every 20 milliseconds: in all, and the part "
              "in which it computed.", ("part",), ("all", "computing"), bucket_bounds=LOOP_DELAY_BUCKETS),
    counter("tgi_shard_lost", "How often the shards, or the state in them, were lost, by the reason.", ("loss",),
            tuple(loss_reason.name.lower() for loss_reason in ShardLossReason)),
)
ADAPTER_FAMILIES = (
    gauge("weft_adapters", "Adapters on the shards, by state.", ("state",), ADAPTER_STATES),
    gauge("weft_adapter_bytes", "Bytes that the adapters occupy on each shard, at most."),
    counter("weft_adapter_loads", "Loads of adapters onto the shards, by outcome.", ("outcome",), ("ok", "failed")),
    counter("weft_adapter_unloads", "Adapters removed from the shards, to make room or on request."),
    request_duration("weft_adapter_load_seconds", "Seconds to load an adapter onto all shards."),
    counter("weft_adapter_fetches", "Lookups of an adapter's name in its source, by source and outcome.",
            ("source", "outcome"), (*ADAPTER_SOURCES, OTHER_LABEL), second_label_values=("ok", "missing", "failed")),
    request_duration("weft_adapter_fetch_seconds", "Seconds to find an adapter's version and to download it."),
    counter("weft_adapter_requests", "Accepted requests, by adapter.", ("adapter",),
            max_label_values=MAX_NAMED_ADAPTERS),
    counter("weft_adapter_generated_tokens", "Tokens generated, by adapter. Counted at each request's end.",
            ("adapter",), max_label_values=MAX_NAMED_ADAPTERS),
)
GATEWAY_FAMILIES = (
    gauge("vllm:num_requests_waiting", "The same as tgi_queue_size."),
    gauge("vllm:num_requests_running", "Requests that have started and are not finished."),
    gauge("vllm:kv_cache_usage_perc", "Share of the cache that sequences hold, from 0 to 1."),
    gauge("vllm:gpu_cache_usage_perc", "The same under its older name."),
    gauge("vllm:cache_config_info", "Always 1; the labels tell the size of the cache.",
          ("block_size", "num_gpu_blocks")),
    gauge("vllm:lora_requests_info",
          "The labels name the adapters on the shards, and those for which requests wait; the value is Unix time.",
          ("max_lora", "running_lora_adapters", "waiting_lora_adapters")),
)


def length_bucket_bounds(max_length: int) -> tuple[float, ...]:
    return tuple(max_length / NUM_LENGTH_BUCKETS * count for count in range(1, NUM_LENGTH_BUCKETS + 1))
