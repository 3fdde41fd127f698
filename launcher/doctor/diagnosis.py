"""Findings of `weft doctor` from a child's survey of machine and model (`shard/workers/survey.py`). Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.doctor.findings import Finding, fine, gib, unless
from router.config import RouterConfig

Survey = Mapping[str, Any]
ROUTER = RouterConfig()  # the defaults


def machine(found: Survey, driver: str) -> Iterator[Finding]:
    yield fine("torch", f"{found['torch']}, made for " + (f"CUDA {found['cuda']}" if found["cuda"] else "CPU only"))
    yield from gpus(found, driver)
    if not found["gpus"]:
        yield processor(found)
    fewer = found["cores"] < found["processors"]
    yield fine("cores", f"{found['cores']}" + (
        f" of the {found['processors']} that the system names: threads of one core, or limits" if fewer else ""))
    yield unless(found["memory"] >= 2**30, "memory", f"{gib(found['memory'])} {found['memory_source']}",
                 "free memory, or raise the limit of the container")


def gpus(found: Survey, driver: str) -> Iterator[Finding]:
    for number, gpu in enumerate(found["gpus"]):
        yield fine(f"gpu {number}", f"{gpu['name']}, {gib(gpu['free'])} of {gib(gpu['total'])} free, driver "
                                    f"{driver or 'unknown'}")
    if driver and not found["gpus"]:
        text = f"there is a driver ({driver}), but torch sees no GPU"
        if found["cuda"]:
            yield Finding("gpu", "problem", text, "install a newer driver, one for CUDA "
                          f"{found['cuda']} or above (nvidia-smi tells), or let the container see the GPU "
                          "(docker run --gpus all)")
        else:
            yield Finding("gpu", "problem", text, "this torch is for CPU only; install one for CUDA")
    elif not found["gpus"]:
        yield fine("gpu", "none; models run on the CPU")


def processor(found: Survey) -> Finding:
    names = ", ".join(found["instructions"]) or "none of those that matter"
    return unless(found["packs_bfloat16"], "instructions", names,
                  "bfloat16 is slow on this processor, so models run in float32 and take twice the memory")


def model(found: Survey, name: str) -> Iterator[Finding]:
    if "problem" in found:
        yield Finding("model", "problem", found["problem"])
        return
    about: Survey = found["model"]
    yield fine("model", f"{name}: {about['architecture']}, {gib(about['weights'])} of weights in {about['dtype']} on "
                        f"{about['device']}")
    yield cache(about)


def cache(about: Survey) -> Finding:
    if about["weights"] > about["free"]:
        more = "--num-shard with more GPUs" if about["device"] == "cuda" else "a machine with more memory"
        return Finding("fits", "problem",
                       f"no: the weights take {gib(about['weights'])}, and {gib(about['free'])} are free",
                       f"choose a smaller model, or {more}")
    useful = ROUTER.max_batch_size * about["max_positions"]
    room = f"a cache of about {min(about['tokens'], useful):,} tokens ({about['block']:,} bytes for every 16)"
    if not about["tokens"]:
        return Finding("fits", "problem", "no: beside the weights there is no room for a cache",
                       "raise --memory-fraction or choose a smaller model")
    if about["tokens"] < about["max_positions"]:
        return Finding("fits", "warning", f"{room}, less than the longest request of the model "
                       f"({about['max_positions']:,})", f"use --max-total-tokens {about['tokens']}")
    return fine("fits", f"{room}; the longest request of the model has {about['max_positions']:,}")
