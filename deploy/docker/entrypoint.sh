#!/bin/sh
# What the container runs. SageMaker names the model by HF_MODEL_ID, calls the container with the word "serve" and asks at
# port 8080; everybody else gives flags and variables of text-generation-launcher, or of the launcher that WEFT_LAUNCHER names.
set -eu
if [ -n "${HF_MODEL_ID:-}" ]; then
    export MODEL_ID="$HF_MODEL_ID"
    [ -z "${HF_MODEL_REVISION:-}" ] || export REVISION="$HF_MODEL_REVISION"
    [ -z "${HF_MODEL_QUANTIZE:-}" ] || export QUANTIZE="$HF_MODEL_QUANTIZE"
    [ -z "${HF_MODEL_TRUST_REMOTE_CODE:-}" ] || export TRUST_REMOTE_CODE="$HF_MODEL_TRUST_REMOTE_CODE"
    # A machine without GPUs says 0 and has one shard.
    case ${SM_NUM_GPUS:-0} in 0) ;; *) export NUM_SHARD="$SM_NUM_GPUS" ;; esac
    export PORT=8080
    [ "${1:-}" != serve ] || shift
fi
exec "${WEFT_LAUNCHER:-text-generation-launcher}" "$@"
