"""Translation of every flag and variable of LoRAX 0.12. Data only.

LoRAX is a fork of text-generation-inference, so flags that both have are taken from its table. In addition to what that
table leaves out, flags for Predibase's own registry are refused or have no effect.
"""

from launcher.compat import tgi
from launcher.compat.foreign_flag_table import (
    FALSE_VALUES,
    TRUE_VALUES,
    FlagAction,
    FlagEffect,
    ForeignFlag,
    ForeignFlagTable,
    ImplicitDefault,
    environment_variable_effect,
    ignored_effect,
    make_setting_effect,
    make_switch_flag,
    refused_effect,
    unchanged_flag,
    unneeded_effect,
    variable_only_flag,
)

REASON_NO_PREDIBASE_REGISTRY = (
    "Predibase's registry is not served; take adapters from the Hub, from a folder (local) or from a bucket (s3)")
REASON_NO_CUSTOM_KERNELS = "there are no custom kernels"
REASON_MIXED_PREFILL = "prompts run beside the running sequences, as much at a time as --max-decode-stall-ms allows"


def make_adapter_source_effects(name: str) -> tuple[FlagEffect, ...]:
    """Return the outcomes of a flag that names the source of adapters."""
    return make_setting_effect(name, "hub", "s3"), make_setting_effect(
        name, "local", required_setting="adapter_root"), refused_effect(REASON_NO_PREDIBASE_REGISTRY, "pbase")


MODEL_FLAGS = (
    ForeignFlag("model-id", (FlagEffect(FlagAction.MODEL_AND_REVISION, "model_id"),),
                default="mistralai/Mistral-7B-Instruct-v0.1"),
    unchanged_flag("revision"),
    ForeignFlag("source", (
        unneeded_effect("a folder is found by its name, anything else at the Hub", "hub", "local"),
        refused_effect("models come from the Hub or from a folder; copy this one to a folder: --model-id FOLDER",
                       "s3", "pbase"))),
    *tgi.TGI_FLAG_TABLE.select_flags("trust-remote-code"),
    unchanged_flag("dtype"),
    ForeignFlag("quantize", (
        make_setting_effect("quantize", "int8", "int4"),
        ignored_effect(tgi.REASON_QUANTIZED_BY_CONFIG, "awq", "gptq", "fp8"),
        ignored_effect(
            f"{tgi.REASON_QUANTIZED_BY_CONFIG}; the cache keeps the number type that the model computes with",
            "fp8-kv"),
        refused_effect(tgi.REASON_NO_LOAD_QUANTIZATION, "eetq", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4",
                       "hqq-4bit", "hqq-3bit", "hqq-2bit"),
        refused_effect(tgi.REASON_UNREADABLE_FORMAT, "exl2"))),
    ForeignFlag("speculative-tokens", (make_setting_effect("speculate"),)),
    ForeignFlag("speculation-max-batch-size", (
        unneeded_effect("a step verifies as many guesses as make it faster, whatever its size"),)),
    unchanged_flag("tokenizer-config-path"),
    unchanged_flag("embedding-dim"),
    *tgi.TGI_FLAG_TABLE.select_flags("watermark-gamma", "watermark-delta"),)

ADAPTER_FLAGS = (
    unchanged_flag("adapter-id"),
    ForeignFlag("adapter-source", make_adapter_source_effects("adapter_source")),
    ForeignFlag("default-adapter-source", make_adapter_source_effects("adapter_source"), overrides="adapter-source"),
    unchanged_flag("preloaded-adapter-ids", kind="list"),
    ForeignFlag("preloaded-adapter-source", make_adapter_source_effects("preloaded_adapter_source")),
    ForeignFlag("predibase-api-token", (ignored_effect(REASON_NO_PREDIBASE_REGISTRY),)),
    make_switch_flag("merge-adapter-weights",
                     ignored_effect("adapters are computed beside the model; answers are the same, and requests "
                                    "may name others")),
    unchanged_flag("max-active-adapters"),
    unchanged_flag("adapter-cycle-time-s"),
    ForeignFlag("adapter-memory-fraction", (
        ignored_effect("requests may name adapters even if some are loaded at start, so there is memory for them",
                       "0", "0.0"), make_setting_effect("adapter_memory_fraction"))),)

PROCESS_FLAGS = (
    *tgi.TGI_FLAG_TABLE.select_flags("sharded", "num-shard", "shard-uds-path", "master-addr", "master-port"),
    make_switch_flag("compile", unneeded_effect(tgi.REASON_CUDA_GRAPHS), tgi.REASON_CUDA_GRAPHS),
    make_switch_flag("eager", make_setting_effect("cuda_graphs", value_template="false"), tgi.REASON_CUDA_GRAPHS,
                     conflicts_with="compile"),
    ForeignFlag("compile-max-batch-size", (ignored_effect(tgi.REASON_CUDA_GRAPHS),)),
    ForeignFlag("compile-max-rank", (ignored_effect(tgi.REASON_CUDA_GRAPHS),)),
    ForeignFlag("compile-batch-size", (ignored_effect(tgi.REASON_CUDA_GRAPHS),)),
    ForeignFlag("backend", (ignored_effect(tgi.REASON_ATTENTION_BY_DEVICE, "fa2", "flashinfer"),)),
    *tgi.TGI_FLAG_TABLE.select_flags("disable-custom-kernels"),
    make_switch_flag("disable-sgmv", ignored_effect(REASON_NO_CUSTOM_KERNELS)),
    *tgi.TGI_FLAG_TABLE.select_flags("cuda-memory-fraction"),
    ForeignFlag("memory-wiggle-room", (ignored_effect("--memory-fraction says how much memory is used"),)),)

LIMIT_FLAGS = (
    unchanged_flag("max-concurrent-requests", default="1024"),
    unchanged_flag("max-best-of"),
    unchanged_flag("max-stop-sequences"),
    *tgi.TGI_FLAG_TABLE.select_flags("max-input-length"),
    unchanged_flag("max-total-tokens"),
    unchanged_flag("max-batch-prefill-tokens"),
    unchanged_flag("max-batch-total-tokens"),
    unchanged_flag("waiting-served-ratio"),
    unchanged_flag("max-waiting-tokens"),
    ForeignFlag("eager-prefill", (unneeded_effect(REASON_MIXED_PREFILL, *TRUE_VALUES),
                                  ignored_effect(REASON_MIXED_PREFILL, *FALSE_VALUES))),
    ForeignFlag("chunked-prefill", tgi.CHUNKED_PREFILL_EFFECTS),
    ForeignFlag("prefix-caching", tgi.PREFIX_CACHE_EFFECTS),
    unchanged_flag("validation-workers"),)

OPERATION_FLAGS = (
    *tgi.TGI_FLAG_TABLE.select_flags("hostname", "port", "cors-allow-origin"),
    ForeignFlag("cors-allow-header", (unneeded_effect("pages may send any header"),)),
    ForeignFlag("cors-expose-header", (unneeded_effect("pages may read every header"),)),
    ForeignFlag("cors-allow-method", (unneeded_effect("pages may use GET and POST, which is all there is"),)),
    ForeignFlag("cors-allow-credentials", (
        ignored_effect("there are no cookies; a page sends its key as `Authorization`", *TRUE_VALUES),
        unneeded_effect("none are", *FALSE_VALUES))),
    *tgi.TGI_FLAG_TABLE.select_flags("ngrok", "ngrok-authtoken", "ngrok-edge", "json-output", "otlp-endpoint", "env"),
    make_switch_flag("download-only", FlagEffect(FlagAction.DOWNLOAD_ONLY)),
    *tgi.TGI_FLAG_TABLE.select_flags("huggingface-hub-cache", "weights-cache-override"),)

VARIABLE_ONLY_FLAGS = (
    *tgi.TGI_FLAG_TABLE.select_flags("HF_API_TOKEN", "LOG_LEVEL", "HF_HUB_ENABLE_HF_TRANSFER"),
    variable_only_flag("LORAX_USE_GLOBAL_HF_TOKEN", ignored_effect(
        "the server's token fetches what its flags name, and the token of a request what the request names",
        *TRUE_VALUES),
                       unneeded_effect("the server's token fetches only what its flags name")),
    variable_only_flag("PREDIBASE_GATEWAY_ENDPOINT", ignored_effect(REASON_NO_PREDIBASE_REGISTRY)),
    variable_only_flag("PREDIBASE_MODEL_BUCKET", environment_variable_effect("PREDIBASE_MODEL_BUCKET")),
    variable_only_flag("PREDIBASE_MODEL_FOLDER", environment_variable_effect("PREDIBASE_MODEL_FOLDER")),
    variable_only_flag("S3_ENDPOINT_URL", environment_variable_effect("S3_ENDPOINT_URL")),
    variable_only_flag("R2_ACCOUNT_ID",
                       environment_variable_effect("S3_ENDPOINT_URL",
                                                   value_template="https://{}.r2.cloudflarestorage.com")),
    variable_only_flag("ROPE_SCALING", refused_effect(tgi.REASON_ROPE_FROM_CONFIG)),
    variable_only_flag("ROPE_FACTOR", refused_effect(tgi.REASON_ROPE_FROM_CONFIG)),
    variable_only_flag("LORAX_PUNICA_TRITON_DISABLED", ignored_effect(REASON_NO_CUSTOM_KERNELS)),
    variable_only_flag("LORAX_PROFILER_DIR", ignored_effect("steps are not profiled")),
    variable_only_flag("REQUEST_LOGGER_URL", ignored_effect("weft tells nobody what is asked")),)

LORAX_FLAG_TABLE = ForeignFlagTable("lorax-launcher", (*MODEL_FLAGS, *ADAPTER_FLAGS, *PROCESS_FLAGS, *LIMIT_FLAGS,
                                                       *OPERATION_FLAGS, *VARIABLE_ONLY_FLAGS),
                             (
                                 ImplicitDefault("adapters", "true"),
                                 ImplicitDefault("compat", "lorax"),
                                 ImplicitDefault("shutdown_timeout", "90"),
                                 ImplicitDefault("otlp_service_name", "lorax.router", required_flag="otlp-endpoint"),))
