"""Every documented route exists, and every route that exists is documented."""

import pytest

from router.config import RouterConfig
from router.http.docs.route_catalog import ROUTE_SECTIONS, get_route_sections
from router.http.transport.auth import PUBLIC_PATHS

ROUTES_BY_METHOD_AND_PATH = {(entry.method, entry.path): entry for section in ROUTE_SECTIONS.values()
                             for entry in section}


def get_served_routes(client):
    routes = client.app.router.routes()
    return {(route.method, route.resource.canonical) for route in routes if route.method != "HEAD"}


@pytest.mark.parametrize("dialect", ["none", "batching"])
@pytest.mark.parametrize("compat", ["none", "tgi", "lorax"])
def test_catalog_lists_exactly_the_served_routes(serve, compat, dialect):
    async def scenario(client, _):
        assert get_served_routes(client) == {
            (entry.method, entry.path) for section in get_route_sections(compat, dialect).values() for entry in section}
    serve(scenario, config=RouterConfig(compat=compat, dialect=dialect))


def test_body_models_depend_on_the_dialect():
    [entry] = [entry for entry in get_route_sections("lorax")["Generate"] if entry.path == "/generate"]
    assert [body.__name__ for body in entry.body_models] == ["LoraxGenerateRequest"]
    assert ROUTES_BY_METHOD_AND_PATH["POST", "/generate"].body_models != entry.body_models


def test_get_routes_that_require_a_key_are_explain_and_adapters(serve):
    """A new route needs a key unless its path is added to PUBLIC_PATHS."""
    protected_routes = {(method, path) for method, path in ROUTES_BY_METHOD_AND_PATH
                        if method != "GET" or path not in PUBLIC_PATHS}
    assert ({path for method, path in protected_routes if method == "GET"}
            == {"/v1/requests/{id}/explain", "/v1/adapters"})
    assert {path for _, path in ROUTES_BY_METHOD_AND_PATH} >= PUBLIC_PATHS


def test_every_protected_route_requires_a_key(serve):
    async def scenario(client, engine):
        for method, path in get_served_routes(client):
            answer = await client.request(method, path.replace("{id}", "x"), json={"inputs": "x"})
            is_open = method == "GET" and path in PUBLIC_PATHS
            assert (answer.status == 401) != is_open, (method, path)
        assert not engine.requests
    serve(scenario, config=RouterConfig(api_key="sk-one"))
