"""Translation of every flag and variable of LoRAX 0.12. Data only.

LoRAX is a fork of text-generation-inference, so flags that both have are taken from its table. In addition to what that
table leaves out, flags for Predibase's own registry are refused or have no effect.
"""

from launcher.compat.flag_table import (
    FALSE,
    TRUE,
    Always,
    Fate,
    Flag,
    Outcome,
    Table,
    only_variable,
    refused,
    same,
    setting,
    silent,
    switch,
    unused,
    variable,
)
from launcher.compat.tgi import (
    ATTENTION,
    BY_CONFIG,
    CACHED,
    CHUNKED,
    GRAPHS,
    ROPE,
    SPECULATED,
    TGI,
    UNREADABLE,
    WHILE_LOADED,
)

REGISTRY = "Predibase's registry is not served; take adapters from the Hub, from a folder (local) or from a bucket (s3)"
KERNELS = "there are no custom kernels"
PROMPTS = "prompts run beside the running sequences, as much at a time as --max-decode-stall-ms allows"


def source(name: str) -> tuple[Outcome, ...]:
    """Return the outcomes of a flag that names the source of adapters."""
    return setting(name, "hub", "s3"), setting(name, "local", needs="adapter_root"), refused(REGISTRY, "pbase")


MODEL = (
    Flag("model-id", (Outcome(Fate.REVISED, "model_id"),), default="mistralai/Mistral-7B-Instruct-v0.1"),
    same("revision"),
    Flag("source", (
        silent("a folder is found by its name, anything else at the Hub", "hub", "local"),
        refused("models come from the Hub or from a folder; copy this one to a folder: --model-id FOLDER",
                "s3", "pbase"))),
    *TGI.taken("trust-remote-code"),
    same("dtype"),
    Flag("quantize", (
        setting("quantize", "int8"),
        unused(BY_CONFIG, "awq", "gptq", "fp8"),
        unused(f"{BY_CONFIG}; the cache keeps the number type that the model computes with", "fp8-kv"),
        refused(WHILE_LOADED, "eetq", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4", "hqq-4bit", "hqq-3bit",
                "hqq-2bit"),
        refused(UNREADABLE, "exl2"))),
    Flag("speculative-tokens", SPECULATED),
    Flag("speculation-max-batch-size", (silent("nothing is speculated"),)),
    same("tokenizer-config-path"),
    same("embedding-dim"),
    *TGI.taken("watermark-gamma", "watermark-delta"),
)

ADAPTERS = (
    same("adapter-id"),
    Flag("adapter-source", source("adapter_source")),
    Flag("default-adapter-source", source("adapter_source"), over="adapter-source"),
    same("preloaded-adapter-ids", kind="list"),
    Flag("preloaded-adapter-source", source("preloaded_adapter_source")),
    Flag("predibase-api-token", (unused(REGISTRY),)),
    switch("merge-adapter-weights", unused("adapters are computed beside the model; answers are the same, and requests "
                                           "may name others")),
    same("max-active-adapters"),
    same("adapter-cycle-time-s"),
    Flag("adapter-memory-fraction", (
        unused("requests may name adapters even if some are loaded at start, so there is memory for them",
               "0", "0.0"), setting("adapter_memory_fraction"))),
)

PROCESSES = (
    *TGI.taken("sharded", "num-shard", "shard-uds-path", "master-addr", "master-port"),
    switch("compile", silent(GRAPHS), GRAPHS),
    switch("eager", setting("cuda_graphs", gives="false"), GRAPHS, against="compile"),
    Flag("compile-max-batch-size", (unused(GRAPHS),)),
    Flag("compile-max-rank", (unused(GRAPHS),)),
    Flag("compile-batch-size", (unused(GRAPHS),)),
    Flag("backend", (unused(ATTENTION, "fa2", "flashinfer"),)),
    *TGI.taken("disable-custom-kernels"),
    switch("disable-sgmv", unused(KERNELS)),
    *TGI.taken("cuda-memory-fraction"),
    Flag("memory-wiggle-room", (unused("--memory-fraction says how much memory is used"),)),
)

LIMITS = (
    same("max-concurrent-requests", default="1024"),
    same("max-best-of"),
    same("max-stop-sequences"),
    *TGI.taken("max-input-length"),
    same("max-total-tokens"),
    same("max-batch-prefill-tokens"),
    same("max-batch-total-tokens"),
    same("waiting-served-ratio", default="1.2"),
    same("max-waiting-tokens"),
    Flag("eager-prefill", (silent(PROMPTS, *TRUE), unused(PROMPTS, *FALSE))),
    Flag("chunked-prefill", CHUNKED),
    Flag("prefix-caching", CACHED),
    same("validation-workers"),
)

OPERATION = (
    *TGI.taken("hostname", "port", "cors-allow-origin"),
    Flag("cors-allow-header", (silent("pages may send any header"),)),
    Flag("cors-expose-header", (silent("pages may read every header"),)),
    Flag("cors-allow-method", (silent("pages may use GET and POST, which is all there is"),)),
    Flag("cors-allow-credentials", (
        unused("there are no cookies; a page sends its key as `Authorization`", *TRUE), silent("none are", *FALSE))),
    *TGI.taken("ngrok", "ngrok-authtoken", "ngrok-edge", "json-output", "otlp-endpoint", "env"),
    switch("download-only", Outcome(Fate.DOWNLOADED)),
    *TGI.taken("huggingface-hub-cache", "weights-cache-override"),
)

VARIABLES = (
    *TGI.taken("HF_API_TOKEN", "LOG_LEVEL", "HF_HUB_ENABLE_HF_TRANSFER"),
    only_variable("LORAX_USE_GLOBAL_HF_TOKEN", unused(
        "the server's token fetches what its flags name, and the token of a request what the request names", *TRUE),
        silent("the server's token fetches only what its flags name")),
    only_variable("PREDIBASE_GATEWAY_ENDPOINT", unused(REGISTRY)),
    only_variable("PREDIBASE_MODEL_BUCKET", variable("PREDIBASE_MODEL_BUCKET")),
    only_variable("PREDIBASE_MODEL_FOLDER", variable("PREDIBASE_MODEL_FOLDER")),
    only_variable("S3_ENDPOINT_URL", variable("S3_ENDPOINT_URL")),
    only_variable("R2_ACCOUNT_ID", variable("S3_ENDPOINT_URL", gives="https://{}.r2.cloudflarestorage.com")),
    only_variable("ROPE_SCALING", refused(ROPE)),
    only_variable("ROPE_FACTOR", refused(ROPE)),
    only_variable("LORAX_PUNICA_TRITON_DISABLED", unused(KERNELS)),
    only_variable("LORAX_PROFILER_DIR", unused("steps are not profiled")),
    only_variable("REQUEST_LOGGER_URL", unused("weft tells nobody what is asked")),
)

LORAX = Table("lorax-launcher", (*MODEL, *ADAPTERS, *PROCESSES, *LIMITS, *OPERATION, *VARIABLES), (
    Always("adapters", "true"),
    Always("compat", "lorax"),
    Always("shutdown_timeout", "90"),
    Always("otlp_service_name", "lorax.router", beside="otlp-endpoint"),
))
