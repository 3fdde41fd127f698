"""Headers of responses: request id, model, adapter and timings."""

import math
from collections.abc import Mapping, Sequence
from time import monotonic as clock

from aiohttp import web

from router.adapters.reference import AdapterReference, ResolvedAdapter
from router.http.transport.outputs import GenerationOutput, PoolingRequestOutput
from router.http.transport.request_context import REQUEST_ID
from router.model_info import ModelInfo
from router.scheduler.sequence import RUNNING_PHASES, RequestPhase

MAX_ADAPTER_HEADER_CHARS = 2048  # characters of adapter names: clients limit the size of headers
COMPUTE_TYPE = "gpu+optimized"  # what every LoRAX server sends, whatever its hardware
MIN_REPORTED_WAIT_SECONDS = 0.001  # a shorter wait gets no `x-wait-reason`


def request_id_header(request: web.Request) -> dict[str, str]:
    """Return the header with the request's id, if it has one already."""
    request_id = request.get(REQUEST_ID)
    return {} if request_id is None else {"x-request-id": request_id}


def model_and_prompt_headers(model_info: ModelInfo, num_characters: int) -> dict[str, str]:
    """Return the headers with the number and type of devices, the length of the prompt in characters, and whether
    results are exact (independent of the batch)."""
    return {
        "x-compute-type": f"{model_info.world_size}-{model_info.device}",
        "x-compute-characters": str(num_characters),
        "x-weft-exact": str(int(model_info.exact)),
    }


def adapter_headers(adapter: AdapterReference | ResolvedAdapter | None) -> dict[str, str]:
    """Return the headers that name the adapter in use; names of merged adapters are joined by commas."""
    return {} if adapter is None else {"x-adapter-id": adapter.name[:MAX_ADAPTER_HEADER_CHARS],
                                       "x-adapter-source": (adapter.source or "")[:MAX_ADAPTER_HEADER_CHARS]}


def timing_headers(outputs: Sequence[GenerationOutput | PoolingRequestOutput], validation_seconds: float,
                   total_seconds: float) -> dict[str, str]:
    """Return the timing headers; with several outputs, the sums over all of them."""
    seconds_by_phase = sum_seconds_by_phase(outputs)
    num_tokens = sum(output.final_event.num_tokens for output in outputs)
    waiting_seconds = {phase: seconds for phase, seconds in seconds_by_phase.items() if phase not in RUNNING_PHASES}
    prefill, decode = seconds_by_phase.get(RequestPhase.PREFILL, 0.0), seconds_by_phase.get(RequestPhase.DECODE, 0.0)
    queue, inference = math.fsum(waiting_seconds.values()), prefill + decode
    return {
        "x-compute-time": str(total_seconds),
        "x-total-time": format_milliseconds(total_seconds),
        "x-validation-time": format_milliseconds(validation_seconds),
        "x-queue-time": format_milliseconds(queue),
        "x-inference-time": format_milliseconds(inference),
        "x-time-per-token": format_milliseconds(inference / max(num_tokens, 1)),
        "x-prompt-tokens": str(sum(len(output.validated_request.request.prompt) for output in outputs)),
        "x-generated-tokens": str(num_tokens),
        "x-queue-ms": f"{queue * 1000:.1f}",
        "x-prefill-ms": f"{prefill * 1000:.1f}",
        "x-decode-ms": f"{decode * 1000:.1f}",
        "x-cached-tokens": str(sum(output.final_event.timeline.num_prefix_hit_tokens for output in outputs)),
        **wait_reason_header(waiting_seconds),
    }


def sum_seconds_by_phase(outputs: Sequence[GenerationOutput | PoolingRequestOutput]) -> Mapping[RequestPhase, float]:
    now, sums = clock(), dict[RequestPhase, float]()
    for output in outputs:
        for phase, seconds in output.final_event.timeline.seconds_by_phase(now).items():
            sums[phase] = sums.get(phase, 0.0) + seconds
    return sums


def wait_reason_header(waiting_seconds: Mapping[RequestPhase, float]) -> dict[str, str]:
    """Return the header with the phase of most of the waiting time, if there was any."""
    longest = max(waiting_seconds, key=waiting_seconds.__getitem__, default=None)
    return ({} if longest is None or waiting_seconds[longest] < MIN_REPORTED_WAIT_SECONDS
            else {"x-wait-reason": str(longest)})


def format_milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
