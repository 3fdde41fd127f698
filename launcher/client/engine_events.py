"""Events of a server's engine (`/v1/engine/events`): the stream, and the state that follows from it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from launcher.client.chat_client import ChatRequestFailed, check_status, translate_connection_errors

# A watched server sends a frame at least every second.
CLIENT_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
MAX_EVENT_BYTES = 64 * 2**20  # of a line, which has the frame or state
STATE_EVENT, FRAME_EVENT = "state", "frame"

EngineEvent = tuple[str, dict[str, Any]]  # name and data


@asynccontextmanager
async def open_engine_events(url: str, api_key: str) -> AsyncIterator[AsyncIterator[EngineEvent]]:
    """Open the stream and yield its events; the first one is a state. `url` may end with /v1, as the base URL of other
    clients does. Raises ChatRequestFailed."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with translate_connection_errors(url):
        async with (aiohttp.ClientSession(timeout=CLIENT_TIMEOUT, headers=headers,
                                          read_bufsize=MAX_EVENT_BYTES) as session,
                    session.get(f"{url.rstrip('/').removesuffix('/v1')}/v1/engine/events") as response):
            await check_status(response)
            if response.content_type != "text/event-stream":
                raise ChatRequestFailed(f"{url} has no events of an engine; is it weft, and of this version?")
            yield read_events(response)


async def read_events(response: aiohttp.ClientResponse) -> AsyncIterator[EngineEvent]:
    """Yield the events until the server ends the stream. Raises ChatRequestFailed for an error in it."""
    name = ""
    async for line in response.content:
        if line.startswith(b"event:"):
            name = line[6:].strip().decode(errors="replace")
        elif line.startswith(b"data:"):
            data = json.loads(line[5:])
            if name not in {STATE_EVENT, FRAME_EVENT}:
                raise ChatRequestFailed(f"the server reports: {str(data)[:200]}")
            yield name, data


@dataclass(slots=True)
class RunningSequence:
    """A running sequence as its rows tell."""

    facts: dict[str, Any]
    lane: int | None = None
    state: str = "prefill"
    num_prefilled: int = 0
    num_generated: int = 0


@dataclass(slots=True)
class EngineView:
    """State of the engine, kept by its events."""

    state: dict[str, Any] = field(default_factory=dict)  # the latest one, with the queue, rates and blocks of frames
    running: dict[int, RunningSequence] = field(default_factory=dict)
    _known: dict[int, dict[str, Any]] = field(default_factory=dict)  # facts by sequence id

    def apply(self, event: EngineEvent) -> None:
        name, data = event
        if name == STATE_EVENT:
            self._apply_state(data)
        else:
            self._apply_frame(data)

    def _apply_state(self, state: dict[str, Any]) -> None:
        self.state = state
        self._known = {entry["id"]: entry for entry in (*state["running"], *state["queue"]["waiting"])}
        self.running = {entry["id"]: RunningSequence(entry, entry["lane"], entry["state"], entry["prefilled_tokens"],
                                                     entry["generated_tokens"]) for entry in state["running"]}

    def _apply_frame(self, frame: dict[str, Any]) -> None:
        self.state |= {name: frame[name] for name in ("t", "step", "queue", "rates") if name in frame}
        for name in ("blocks", "server"):  # these come in parts
            self.state[name] = self.state.get(name, {}) | frame.get(name, {})
        self._known |= {entry["id"]: self._known.get(entry["id"], {}) | entry for entry in frame["sequences"]}
        for step in frame["steps"]:
            self._apply_step(step)
        self._known = {number: facts for number, facts in self._known.items()
                       if number in self.running or any(number == entry["id"]
                                                        for entry in self.state["queue"]["waiting"])}

    def _apply_step(self, step: dict[str, Any]) -> None:
        for _, number in (*step["preempted"], *step["cancelled"]):
            self.running.pop(number, None)
        for lane, number in step["admitted"]:
            facts = self._known.get(number, {"id": number})
            self.running[number] = RunningSequence(facts, lane, num_prefilled=facts.get("cached_tokens", 0))
        for lane, number, num_tokens, kind in step["rows"]:
            if (sequence := self.running.get(number)) is None:
                continue
            sequence.lane = lane
            if kind == "d":
                sequence.state = "decode"
                sequence.num_generated += num_tokens
            else:
                sequence.num_prefilled += num_tokens
            if kind == "f":
                sequence.state = "decode"
                sequence.num_generated += 1
        for _, number, _ in step["finished"]:
            self.running.pop(number, None)
