"""Findings of `weft doctor` from a child's survey of machine and model (`shard/workers/doctor_survey.py`). Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.doctor.findings import Finding, format_gib, make_finding_unless, make_ok_finding
from router.config import RouterConfig

SurveyResult = Mapping[str, Any]
DEFAULT_ROUTER_CONFIG = RouterConfig()  # the defaults


def diagnose_machine(survey: SurveyResult, driver_version: str) -> Iterator[Finding]:
    yield make_ok_finding("torch", f"{survey['torch']}, made for "
                          + (f"CUDA {survey['cuda']}" if survey["cuda"] else "CPU only"))
    yield from diagnose_gpus(survey, driver_version)
    if not survey["gpus"]:
        yield from diagnose_cpu_instructions(survey)
    has_fewer_cores = survey["cores"] < survey["processors"]
    yield make_ok_finding("cores", f"{survey['cores']}"
                          + (f" of the {survey['processors']} that the system names: threads of one core, or limits"
                             if has_fewer_cores else ""))
    yield make_finding_unless(survey["memory"] >= 2**30, "memory",
                              f"{format_gib(survey['memory'])} {survey['memory_source']}",
                              "free memory, or raise the limit of the container")


def diagnose_gpus(survey: SurveyResult, driver_version: str) -> Iterator[Finding]:
    for number, gpu in enumerate(survey["gpus"]):
        yield make_ok_finding(f"gpu {number}",
                              f"{gpu['name']}, {format_gib(gpu['free'])} of {format_gib(gpu['total'])} free, driver "
                              f"{driver_version or 'unknown'}")
    if driver_version and not survey["gpus"]:
        text = f"there is a driver ({driver_version}), but torch sees no GPU"
        if survey["cuda"]:
            yield Finding("gpu", "problem", text, "install a newer driver, one for CUDA "
                          f"{survey['cuda']} or above (nvidia-smi tells), or let the container see the GPU "
                          "(docker run --gpus all)")
        else:
            yield Finding("gpu", "problem", text, "this torch is for CPU only; install one for CUDA")
    elif not survey["gpus"]:
        yield make_ok_finding("gpu", "none; models run on the CPU")


def diagnose_cpu_instructions(survey: SurveyResult) -> Iterator[Finding]:
    names, missing_kernels = ", ".join(survey["instructions"]) or "none of those that matter", survey["missing_kernels"]
    yield make_finding_unless(survey["packs_bfloat16"] or not missing_kernels, "instructions", names,
                              "bfloat16 is slow on this processor, so models run in float32 and take twice the memory")
    if missing_kernels:
        yield Finding("kernels", "warning", f"not compiled, so models are slower: {missing_kernels}")
    else:
        yield make_ok_finding("kernels", "compiled, for products and attention")


def diagnose_model(survey: SurveyResult, model_name: str) -> Iterator[Finding]:
    if "problem" in survey:
        yield Finding("model", "problem", survey["problem"])
        return
    model_survey: SurveyResult = survey["model"]
    weights_type = (f"{model_survey['quantize']}, computed in {model_survey['dtype']}," if model_survey["quantize"]
                    else model_survey["dtype"])
    yield make_ok_finding("model", f"{model_name}: {model_survey['architecture']}, "
                          f"{format_gib(model_survey['weights'])} of weights in {weights_type} on "
                          f"{model_survey['device']}")
    yield diagnose_kv_cache(model_survey)


def diagnose_kv_cache(model_survey: SurveyResult) -> Finding:
    if model_survey["weights"] > model_survey["free"]:
        more = "--num-shard with more GPUs" if model_survey["device"] == "cuda" else "a machine with more memory"
        return Finding("fits", "problem", f"no: the weights take {format_gib(model_survey['weights'])}, and "
                       f"{format_gib(model_survey['free'])} are free", f"choose a smaller model, or {more}")
    max_useful_tokens = DEFAULT_ROUTER_CONFIG.max_batch_size * model_survey["max_positions"]
    cache_text = (f"a cache of about {min(model_survey['tokens'], max_useful_tokens):,} tokens "
                  f"({model_survey['block']:,} bytes for 16 tokens)")
    if not model_survey["tokens"]:
        return Finding("fits", "problem", "no: beside the weights there is no room for a cache",
                       "raise --memory-fraction or choose a smaller model")
    if model_survey["tokens"] < model_survey["max_positions"]:
        return Finding("fits", "warning", f"{cache_text}, less than the longest request of the model "
                       f"({model_survey['max_positions']:,})", f"use --max-total-tokens {model_survey['tokens']}")
    return make_ok_finding("fits",
                           f"{cache_text}; the longest request of the model has {model_survey['max_positions']:,}")
