"""Translation of every flag and variable of text-generation-inference 3.3. Data only.

Flags for unsupported hardware, and flags that version 3.3 itself no longer used, have no effect, which is reported.
Flags are refused if they would change answers, or if ignoring them would matter.
"""

from launcher.compat.flag_table import (
    FALSE,
    TRUE,
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

ROPE = "weft takes the scaling of positions from the model's config.json; write it there (rope_scaling)"
NGROK = "there is no tunnel in weft; run the ngrok program beside it"
MEETING = "shards meet at a file of their own"
ATTENTION = "weft chooses its attention by the device (--attention)"
GRAPHS = "steps are replayed as CUDA graphs where they can be, of sizes that weft chooses"
GPU_LIBRARY = "weft does without the library that it is meant for"
BY_CONFIG = ("the model's config.json says how its weights are quantised; weights that are not stay as they are "
             "(--quantize int8 makes them a byte each)")
WHILE_LOADED = "weights cannot be quantised this way while they are loaded; --quantize int8 makes them a byte each"
UNREADABLE = "checkpoints of this kind cannot be read; take one in GPTQ, AWQ or compressed-tensors"
SPECULATED = (
    silent("nothing is speculated", "0"), unused("nothing is speculated yet; answers are the same without it"))
CACHED = (setting("cache_scope", *FALSE, gives="off"), silent("it is on by default", *TRUE))
CHUNKED = (setting("prefill_policy", *FALSE, gives="pause"), silent("it is on by default", *TRUE))

MODEL = (
    same("model-id"),
    same("revision"),
    switch("trust-remote-code", refused("weft runs no code from a model's folder, and no model needs it; leave it out"),
           "weft runs no code from a model's folder"),
    same("dtype"),
    Flag("quantize", (
        setting("quantize", "int8"),
        unused(BY_CONFIG, "awq", "gptq", "marlin", "compressed-tensors", "fp8"),
        refused(WHILE_LOADED, "eetq", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4"),
        refused(UNREADABLE, "exl2"))),
    Flag("kv-cache-dtype", (unused("the cache keeps the number type that the model computes with"),)),
    Flag("speculate", SPECULATED),
    Flag("lora-adapters", (Outcome(Fate.ADAPTERS, "preloaded_adapter_ids"),)),
    Flag("rope-scaling", (refused(ROPE),)),
    Flag("rope-factor", (refused(ROPE),)),
    same("tokenizer-config-path"),
    switch("disable-grammar-support", setting("disable_grammar_support")),
    switch("enable-prefill-logprobs", silent("logprobs of the prompt are there for whoever asks for them"),
           "logprobs of the prompt are there for whoever asks for them"),
    Flag("watermark-gamma", (
        silent("it is what weft has", "0.5"), refused("the share of the vocabulary that a watermark favours is 0.5"))),
    Flag("watermark-delta", (
        silent("it is what weft has", "2", "2.0"), refused("what a watermark adds to a logit is 2.0"))),
)

PROCESSES = (
    Flag("sharded", (Outcome(Fate.SHARDS, values=("true", "false")),)),
    Flag("num-shard", (Outcome(Fate.SHARDS),)),
    Flag("shard-uds-path", (unused("sockets are in a temporary folder of their own (TMPDIR)"),)),
    Flag("master-addr", (unused(MEETING),)),
    Flag("master-port", (unused(MEETING),)),
    Flag("cuda-graphs", (setting("cuda_graphs", "0", gives="false"), silent(GRAPHS))),
    Flag("cuda-memory-fraction", (
        silent("the share of a GPU's memory is 0.9 by default", "1", "1.0"), setting("memory_fraction"))),
    switch("disable-custom-kernels", unused("there are no custom kernels")),
)

LIMITS = (
    same("max-concurrent-requests"),
    same("max-best-of"),
    same("max-stop-sequences"),
    same("max-top-n-tokens"),
    same("max-client-batch-size"),
    same("max-input-tokens"),
    Flag("max-input-length", (setting("max_input_tokens"),)),
    same("max-total-tokens"),
    same("payload-limit"),
    Flag("max-image-fetch-size", (silent("images are not served"),)),
)

BATCHING = (
    same("max-batch-prefill-tokens"),
    same("max-batch-total-tokens"),
    same("max-batch-size"),
    same("waiting-served-ratio"),
    same("max-waiting-tokens"),
    same("validation-workers"),
)

OPERATION = (
    Flag("hostname", (Outcome(Fate.ADDRESS, "hostname"),), default="0.0.0.0"),  # noqa: S104 - the default of TGI
    same("port", short="p"),
    Flag("prometheus-port", (unused("metrics have no port of their own"),)),
    same("api-key"),
    same("cors-allow-origin", default="*", kind="list"),
    switch("ngrok", refused(NGROK)),
    Flag("ngrok-authtoken", (unused(NGROK),)),
    Flag("ngrok-edge", (unused(NGROK),)),
    switch("json-output", setting("json_output")),
    same("otlp-endpoint"),
    same("otlp-service-name", default="text-generation-inference.router", beside="otlp-endpoint"),
    Flag("graceful-termination-timeout", (setting("shutdown_timeout"),), short="g", default="90"),
    # Other programs use the variable ENV for other values, so any value except true is ignored.
    Flag("env", (Outcome(Fate.SHOWN, values=TRUE), silent("it is not asked for")), "switch", "e"),
    Flag("usage-stats", (silent("weft tells nobody anything"),)),
)

CACHE = (
    Flag("huggingface-hub-cache", (variable("HF_HUB_CACHE"),)),
    Flag("weights-cache-override", (refused("give the folder itself, with config.json and tokenizer.json: "
                                            "--model-id FOLDER"),)),
)


VARIABLES = (
    only_variable("HF_API_TOKEN", variable("HF_TOKEN")),
    only_variable("LOG_LEVEL", setting("log_level", "debug", "trace", gives="debug"),
                  setting("log_level", "info", gives="info"), setting("log_level", "warn", "warning", gives="warning"),
                  setting("log_level", "error", "off", gives="error"),
                  unused("a level is for all modules at once")),
    only_variable("LOG_COLORIZE", silent("logs have no colours")),
    only_variable("PREFIX_CACHING", *CACHED),
    only_variable("PREFILL_CHUNKING", *CHUNKED),
    only_variable("ATTENTION", unused(ATTENTION)),
    only_variable("USE_FLASH_ATTENTION", unused(ATTENTION)),
    only_variable("TGI_WIGGLE_ROOM", unused("--memory-fraction says how much memory is used")),
    only_variable("REQUEST_LOGPROBS", silent("logprobs are there for whoever asks for them")),
    only_variable("COMPUTE_TYPE", silent("the header x-compute-type says what computes")),
    only_variable("HF_HUB_ENABLE_HF_TRANSFER", silent("downloads are weft's own")),
    only_variable("HF_HUB_USER_AGENT_ORIGIN", silent("the Hub is told that weft asks")),
    only_variable("EXLLAMA_VERSION", unused(GPU_LIBRARY)),
    only_variable("DISABLE_EXLLAMA", unused(GPU_LIBRARY)),
)

TGI = Table("text-generation-launcher", (*MODEL, *PROCESSES, *LIMITS, *BATCHING, *OPERATION, *CACHE, *VARIABLES))
