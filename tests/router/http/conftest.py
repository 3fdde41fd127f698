"""Fixtures: the application over a scripted engine, and HTTP clients for it."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
import uvloop
from aiohttp.test_utils import TestClient, TestServer
from support.expected_streams import lived, said
from support.scripted_adapters import lent

from router.api_keys import Keys
from router.config import RouterConfig
from router.engine.stream import Event, Stream, ToldEvent
from router.http.app import create_app
from router.http.transport.generate import About
from router.http.transport.server import PROTOCOL
from router.request import Request, Resource, Tenant, Wish
from router.scheduler.plan import Labelling, ModelFacts
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy
from router.scheduler.timeline import Story
from router.telemetry.counters import Tally
from router.telemetry.request_log import Account, Accounts
from router.text.chat_template import plain_template
from router.text.prompts import Limits
from router.text.tokenizer import byte_tokenizer
from router.validation.validator import Validator

TEMPLATE = plain_template()


class ScriptedEngine:
    """Double of the engine that answers each request with the next script."""

    def __init__(self, *scripts: list[Event]) -> None:
        self.facts = ModelFacts("loom", "cpu", "float32", vocabulary_size=512, max_positions=2048, block_size=16,
                                num_blocks=100, exact=True)
        self.tally = Tally(Scheduler(Policy(), self.facts), Limits(1599, 1600), 1)
        self.scripts = [*scripts]
        self.refusals: list[Exception] = []
        self.ailing = ""
        self.streams: list[Stream] = []
        self.accounts = Accounts()
        self.left: list[Request] = []
        self.asked = asyncio.Event()  # set by the first request
        self.left_alone = asyncio.Event()  # set when a client disconnects

    @property
    def requests(self) -> list[Request]:
        return [stream.request for stream in self.streams]

    def submit(self, request: Request, came: float | None = None, traceparent: str = "") -> Stream:
        if self.refusals:
            raise self.refusals.pop()
        story = Story(time.monotonic())
        self.accounts.open(Account(request.id, request.tenant.name, len(request.prompt), came or story.began, story,
                                   traceparent=traceparent))
        stream = Stream(request, 262_144, lambda: None, lambda: None, lambda: self._leave(request))
        self.streams.append(stream)
        self.asked.set()
        for event in self.scripts.pop(0) if self.scripts else told(request):
            stream.put(event)
        return stream

    def account(self, request_id: str) -> Account | None:
        return self.accounts.get(request_id)

    def may_use(self, request_id: str, tenant: Tenant) -> bool:
        return self.accounts.may_use(request_id, tenant)

    def ailment(self) -> str:
        return self.ailing

    def metrics(self) -> str:
        return self.tally.page(is_ready=not self.ailing, has_shards=True)

    def _leave(self, request: Request) -> None:
        self.left.append(request)
        self.left_alone.set()


def told(request: Request) -> list[Event]:
    """Return default events: a text, a vector whose first value is the prompt's length, or one label for all tokens."""
    if request.wish is Wish.TEXT:
        return said("weft")
    num_tokens = len(request.prompt)
    of_text = ([float(num_tokens), *[0.0] * 15] if request.wish is Wish.VECTOR
               else Labelling([0] * num_tokens, [0.5] * num_tokens))
    return [ToldEvent(of_text, lived(queue=0.25, prefill=0.125))]


def numbered(kind: str, _: str) -> Resource:
    """Give every grammar the same number."""
    return Resource(kind, 1)


UNNAMED = About()
Scenario = Callable[[TestClient, ScriptedEngine], object]


@pytest.fixture
def serve():
    """Run a scenario with a client of the application; `facts` override fields of the model's facts."""
    def run(scenario, *scripts, config=None, template=TEMPLATE, about=UNNAMED, sender=None, store=None, grammars=False,
            **facts):
        async def main():
            config_ = config or RouterConfig()
            engine = ScriptedEngine(*scripts)
            engine.facts = replace(engine.facts, grammars=grammars, **facts)
            adapters = None if store is None else await lent(config_, store)
            with closing(Validator(config_, engine.facts, byte_tokenizer(), template, numbered if grammars else None,
                                   adapters=adapters)) as validator:
                app = create_app(engine, validator, config_, Keys.of(config_), about, sender=sender)
                server = TestServer(app)
                await server.start_server(**PROTOCOL)
                async with TestClient(server) as client:
                    return await scenario(client, engine)
        return uvloop.run(main())  # the router's event loop
    return run


@pytest.fixture
def post(serve):
    """Post a body, or the fields of a JSON body, and return status, headers and text of the answer."""
    def run(path, *scripts, data=None, headers=None, config=None, template=TEMPLATE, store=None, **body):
        async def scenario(client, engine):
            content = json.dumps(body) if data is None else data
            answer = await client.post(path, data=content,
                                       headers={"Content-Type": "application/json"} | (headers or {}))
            return answer.status, answer.headers, await answer.text()
        return serve(scenario, *scripts, config=config, template=template, store=store)
    return run


def events_of(text: str) -> list[dict]:
    assert text.endswith("\n\n")
    lines = text.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]
