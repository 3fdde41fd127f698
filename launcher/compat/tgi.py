"""Translation of every flag and variable of text-generation-inference 3.3. Data only.

Flags for unsupported hardware, and flags that version 3.3 itself no longer used, have no effect, which is reported.
Flags are refused if they would change answers, or if ignoring them would matter.
"""

from launcher.compat.foreign_flag_table import (
    FALSE_VALUES,
    TRUE_VALUES,
    FlagAction,
    FlagEffect,
    ForeignFlag,
    ForeignFlagTable,
    environment_variable_effect,
    ignored_effect,
    make_setting_effect,
    make_switch_flag,
    refused_effect,
    unchanged_flag,
    unneeded_effect,
    variable_only_flag,
)

REASON_ROPE_FROM_CONFIG = (
    "weft takes the scaling of positions from the model's config.json; write it there (rope_scaling)")
REASON_NO_NGROK = "there is no tunnel in weft; run the ngrok program beside it"
REASON_RENDEZVOUS_FILE = "shards meet at a file of their own"
REASON_ATTENTION_BY_DEVICE = "weft chooses its attention by the device (--attention)"
REASON_CUDA_GRAPHS = "steps are replayed as CUDA graphs where they can be, of sizes that weft chooses"
REASON_LIBRARY_NOT_USED = "weft does without the library that it is meant for"
REASON_QUANTIZED_BY_CONFIG = (
    "the model's config.json says how its weights are quantized; weights that are not stay as they are "
                              "(--quantize int8 makes them a byte each)")
REASON_NO_LOAD_QUANTIZATION = (
    "weights cannot be quantized this way while they are loaded; --quantize int8 makes them a byte each")
REASON_UNREADABLE_FORMAT = "checkpoints of this kind cannot be read; take one in GPTQ, AWQ or compressed-tensors"
PREFIX_CACHE_EFFECTS = (make_setting_effect("cache_scope", *FALSE_VALUES, value_template="off"),
                        unneeded_effect("it is on by default", *TRUE_VALUES))
CHUNKED_PREFILL_EFFECTS = (make_setting_effect("prefill_policy", *FALSE_VALUES, value_template="pause"),
                           unneeded_effect("it is on by default", *TRUE_VALUES))

MODEL_FLAGS = (
    unchanged_flag("model-id"),
    unchanged_flag("revision"),
    make_switch_flag("trust-remote-code",
                     refused_effect("weft runs no code from a model's folder, and no model needs it; leave it out"),
                     "weft runs no code from a model's folder"),
    unchanged_flag("dtype"),
    ForeignFlag("quantize", (
        make_setting_effect("quantize", "int8", "int4"),
        ignored_effect(REASON_QUANTIZED_BY_CONFIG, "awq", "gptq", "marlin", "compressed-tensors", "fp8"),
        refused_effect(REASON_NO_LOAD_QUANTIZATION, "eetq", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4"),
        refused_effect(REASON_UNREADABLE_FORMAT, "exl2"))),
    ForeignFlag("kv-cache-dtype", (ignored_effect("the cache keeps the number type that the model computes with"),)),
    unchanged_flag("speculate"),
    ForeignFlag("lora-adapters", (FlagEffect(FlagAction.PRELOADED_ADAPTERS, "preloaded_adapter_ids"),)),
    ForeignFlag("rope-scaling", (refused_effect(REASON_ROPE_FROM_CONFIG),)),
    ForeignFlag("rope-factor", (refused_effect(REASON_ROPE_FROM_CONFIG),)),
    unchanged_flag("tokenizer-config-path"),
    make_switch_flag("disable-grammar-support", make_setting_effect("disable_grammar_support")),
    make_switch_flag("enable-prefill-logprobs",
                     unneeded_effect("logprobs of the prompt are there for whoever asks for them"),
                     "logprobs of the prompt are there for whoever asks for them"),
    ForeignFlag("watermark-gamma", (
        unneeded_effect("it is what weft has", "0.5"),
        refused_effect("the share of the vocabulary that a watermark favours is 0.5"))),
    ForeignFlag("watermark-delta", (
        unneeded_effect("it is what weft has", "2", "2.0"),
        refused_effect("what a watermark adds to a logit is 2.0"))),)

PROCESS_FLAGS = (
    ForeignFlag("sharded", (FlagEffect(FlagAction.NUM_SHARDS, matching_values=("true", "false")),)),
    ForeignFlag("num-shard", (FlagEffect(FlagAction.NUM_SHARDS),)),
    ForeignFlag("shard-uds-path", (ignored_effect("sockets are in a temporary folder of their own (TMPDIR)"),)),
    ForeignFlag("master-addr", (ignored_effect(REASON_RENDEZVOUS_FILE),)),
    ForeignFlag("master-port", (ignored_effect(REASON_RENDEZVOUS_FILE),)),
    ForeignFlag("cuda-graphs",
                (make_setting_effect("cuda_graphs", "0", value_template="false"), unneeded_effect(REASON_CUDA_GRAPHS))),
    ForeignFlag("cuda-memory-fraction", (
        unneeded_effect("the share of a GPU's memory is 0.9 by default", "1", "1.0"),
        make_setting_effect("memory_fraction"))),
    make_switch_flag("disable-custom-kernels", ignored_effect("there are no custom kernels")),)

LIMIT_FLAGS = (
    unchanged_flag("max-concurrent-requests"),
    unchanged_flag("max-best-of"),
    unchanged_flag("max-stop-sequences"),
    unchanged_flag("max-top-n-tokens"),
    unchanged_flag("max-client-batch-size"),
    unchanged_flag("max-input-tokens"),
    ForeignFlag("max-input-length", (make_setting_effect("max_input_tokens"),)),
    unchanged_flag("max-total-tokens"),
    unchanged_flag("payload-limit"),
    ForeignFlag("max-image-fetch-size", (unneeded_effect("images are not served"),)),
)

BATCHING_FLAGS = (
    unchanged_flag("max-batch-prefill-tokens"),
    unchanged_flag("max-batch-total-tokens"),
    unchanged_flag("max-batch-size"),
    unchanged_flag("waiting-served-ratio"),
    unchanged_flag("max-waiting-tokens"),
    unchanged_flag("validation-workers"),
)

OPERATION_FLAGS = (
    ForeignFlag("hostname", (FlagEffect(FlagAction.ADDRESS, "hostname"),), default="0.0.0.0"),  # noqa: S104 - the default of TGI
    unchanged_flag("port", short_name="p"),
    ForeignFlag("prometheus-port", (ignored_effect("metrics have no port of their own"),)),
    unchanged_flag("api-key"),
    unchanged_flag("cors-allow-origin", default="*", kind="list"),
    make_switch_flag("ngrok", refused_effect(REASON_NO_NGROK)),
    ForeignFlag("ngrok-authtoken", (ignored_effect(REASON_NO_NGROK),)),
    ForeignFlag("ngrok-edge", (ignored_effect(REASON_NO_NGROK),)),
    make_switch_flag("json-output", make_setting_effect("json_output")),
    unchanged_flag("otlp-endpoint"),
    unchanged_flag("otlp-service-name", default="text-generation-inference.router", default_requires="otlp-endpoint"),
    ForeignFlag("graceful-termination-timeout", (make_setting_effect("shutdown_timeout"),), short_name="g",
                default="90"),
    # Other programs use the variable ENV for other values, so any value except true is ignored.
    ForeignFlag("env", (FlagEffect(FlagAction.SHOW_ENVIRONMENT, matching_values=TRUE_VALUES),
                        unneeded_effect("it is not asked for")), "switch", "e"),
    ForeignFlag("usage-stats", (unneeded_effect("weft tells nobody anything"),)),
)

HUB_CACHE_FLAGS = (
    ForeignFlag("huggingface-hub-cache", (environment_variable_effect("HF_HUB_CACHE"),)),
    ForeignFlag("weights-cache-override",
                (refused_effect("give the folder itself, with config.json and tokenizer.json: "
                                "--model-id FOLDER"),)),)


VARIABLE_ONLY_FLAGS = (
    variable_only_flag("HF_API_TOKEN", environment_variable_effect("HF_TOKEN")),
    variable_only_flag("LOG_LEVEL", make_setting_effect("log_level", "debug", "trace", value_template="debug"),
                       make_setting_effect("log_level", "info", value_template="info"),
                       make_setting_effect("log_level", "warn", "warning", value_template="warning"),
                       make_setting_effect("log_level", "error", "off", value_template="error"),
                       ignored_effect("a level is for all modules at once")),
    variable_only_flag("LOG_COLORIZE", unneeded_effect("logs have no colours")),
    variable_only_flag("PREFIX_CACHING", *PREFIX_CACHE_EFFECTS),
    variable_only_flag("PREFILL_CHUNKING", *CHUNKED_PREFILL_EFFECTS),
    variable_only_flag("ATTENTION", ignored_effect(REASON_ATTENTION_BY_DEVICE)),
    variable_only_flag("USE_FLASH_ATTENTION", ignored_effect(REASON_ATTENTION_BY_DEVICE)),
    variable_only_flag("TGI_WIGGLE_ROOM", ignored_effect("--memory-fraction says how much memory is used")),
    variable_only_flag("REQUEST_LOGPROBS", unneeded_effect("logprobs are there for whoever asks for them")),
    variable_only_flag("COMPUTE_TYPE", unneeded_effect("the header x-compute-type says what computes")),
    variable_only_flag("HF_HUB_ENABLE_HF_TRANSFER", unneeded_effect("downloads are weft's own")),
    variable_only_flag("HF_HUB_USER_AGENT_ORIGIN", unneeded_effect("the Hub is told that weft asks")),
    variable_only_flag("EXLLAMA_VERSION", ignored_effect(REASON_LIBRARY_NOT_USED)),
    variable_only_flag("DISABLE_EXLLAMA", ignored_effect(REASON_LIBRARY_NOT_USED)),)

TGI_FLAG_TABLE = ForeignFlagTable("text-generation-launcher", (
    *MODEL_FLAGS, *PROCESS_FLAGS, *LIMIT_FLAGS, *BATCHING_FLAGS, *OPERATION_FLAGS, *HUB_CACHE_FLAGS,
    *VARIABLE_ONLY_FLAGS))
