"""OpenAI's completions by OpenVINO GenAI's pipeline with continuous batching; it runs in the environment of OpenVINO.

`python openvino_server.py MODEL HOST PORT CACHE_GB`. Answers are streamed, always of the length asked for, and greedy.
It imports nothing of ours.
"""

import asyncio
import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from aiohttp import web
from tokenizers import Tokenizer

MAX_BATCHED_TOKENS = 512  # of a step
NUM_LOOP_TURNS = 10  # between two steps: more than a request needs until the pipeline has it
PROPERTIES = {"INFERENCE_PRECISION_HINT": "bf16"}
TokenQueue = asyncio.Queue[list[int]]


class PipelineLoop:
    """Steps of the pipeline while it has requests.

    A step holds the interpreter's lock, so no thread could answer meanwhile: the event loop has turns between steps.
    """

    def __init__(self, model: Path, cache_gb: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = MAX_BATCHED_TOKENS
        scheduler.cache_size = cache_gb
        scheduler.enable_prefix_caching = False
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU", PROPERTIES)
        self._numbers = count()
        self._running = list[tuple[Any, TokenQueue]]()  # handles of requests, and where their tokens go
        self._has_requests = asyncio.Event()

    def add_request(self, prompt: str, num_tokens: int) -> TokenQueue:
        """Return the queue of the answer's tokens, in lists of those that came at once."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        prompt_ids = np.array([self.tokenizer.encode(prompt).ids], np.int64)
        handle = self._pipeline.add_request(next(self._numbers), openvino.Tensor(prompt_ids), config)
        self._running.append((handle, queue := TokenQueue()))
        self._has_requests.set()
        return queue

    async def run(self) -> None:
        while await self._has_requests.wait():
            while self._pipeline.has_non_finished_requests():
                self._pipeline.step()
                self._deliver_tokens()
                for _ in range(NUM_LOOP_TURNS):
                    await asyncio.sleep(0)
            self._has_requests.clear()

    def _deliver_tokens(self) -> None:
        for handle, queue in self._running:
            if handle.can_read():
                for output in handle.read().values():
                    queue.put_nowait(list(output.generated_ids))
        self._running = [(handle, queue) for handle, queue in self._running
                         if handle.get_status() == openvino_genai.GenerationStatus.RUNNING or handle.can_read()]


PIPELINE_KEY = web.AppKey("pipeline", PipelineLoop)


async def complete(request: web.Request) -> web.StreamResponse:
    body, pipeline = await request.json(), request.app[PIPELINE_KEY]
    queue = pipeline.add_request(body["prompt"], body["max_tokens"])
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    num_tokens = 0
    while num_tokens < body["max_tokens"]:
        token_ids = await queue.get()
        num_tokens += len(token_ids)
        await send_event(response, {"choices": [{"index": 0, "text": pipeline.tokenizer.decode(token_ids)}]})
    await send_event(response, {"choices": [{"index": 0, "text": "", "finish_reason": "length"}],
                                "usage": {"completion_tokens": num_tokens}})
    await response.write(b"data: [DONE]\n\n")
    return response


async def send_event(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(event)}\n\n".encode())


async def serve(model: Path, host: str, port: int, cache_gb: int) -> None:
    app = web.Application()
    app[PIPELINE_KEY] = PipelineLoop(model, cache_gb)
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    await app[PIPELINE_KEY].run()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
