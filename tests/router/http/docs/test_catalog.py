"""Every documented route exists, and every route that exists is documented."""

import pytest

from router.config import RouterConfig
from router.http.docs.catalog import SECTIONS, sections
from router.http.transport.auth import OPEN_TO_ALL

ENTRIES = {(entry.method, entry.path): entry for section in SECTIONS.values() for entry in section}


def routes_of(client):
    routes = client.app.router.routes()
    return {(route.method, route.resource.canonical) for route in routes if route.method != "HEAD"}


@pytest.mark.parametrize("dialect", ["none", "batching"])
@pytest.mark.parametrize("compat", ["none", "tgi", "lorax"])
def test_the_catalog_has_the_routes_there_are(serve, compat, dialect):
    async def scenario(client, _):
        assert routes_of(client) == {
            (entry.method, entry.path) for section in sections(compat, dialect).values() for entry in section}
    serve(scenario, config=RouterConfig(compat=compat, dialect=dialect))


def test_bodies_are_those_of_the_dialect():
    [entry] = [entry for entry in sections("lorax")["Generate"] if entry.path == "/generate"]
    assert [body.__name__ for body in entry.bodies] == ["LoraxGenerate"]
    assert ENTRIES["POST", "/generate"].bodies != entry.bodies


def test_without_a_key_nothing_is_generated_nor_told_of_anybody(serve):
    """A new route needs a key unless its path is added to OPEN_TO_ALL."""
    shut = {(method, path) for method, path in ENTRIES if method != "GET" or path not in OPEN_TO_ALL}
    assert {path for method, path in shut if method == "GET"} == {"/v1/requests/{id}/explain", "/v1/adapters"}
    assert {path for _, path in ENTRIES} >= OPEN_TO_ALL


def test_every_closed_route_asks_for_a_key(serve):
    async def scenario(client, engine):
        for method, path in routes_of(client):
            answer = await client.request(method, path.replace("{id}", "x"), json={"inputs": "x"})
            is_open = method == "GET" and path in OPEN_TO_ALL
            assert (answer.status == 401) != is_open, (method, path)
        assert not engine.requests
    serve(scenario, config=RouterConfig(api_key="sk-one"))
