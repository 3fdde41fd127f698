"""The page for browsers: who gets it, its headers, its files, and what they may load."""

import asyncio
import gzip
import re
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from router.config import RouterConfig
from router.http.page.routes import (
    CONTENT_TYPES,
    PageFile,
    PageRoutes,
    StartupProgressPageRoutes,
    describe_progress,
    load_page_files,
)

BROWSER_ACCEPT = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"  # of Chromium
STATIC_FOLDER = Path(__file__).parents[4] / "router/http/page/static"
MAX_PAGE_BYTES = 200_000  # of its files as the wheel holds them: compressed


def get(serve, path, config=None, **headers):
    async def scenario(client, _):
        answer = await client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()},
                                  allow_redirects=False)
        return answer.status, answer.headers, await answer.text()
    return serve(scenario, config=config)


@pytest.mark.parametrize("config", [None, RouterConfig(api_key="sk-one")])
def test_browser_gets_the_page_at_the_root(serve, config):
    status, headers, text = get(serve, "/", config, Accept=BROWSER_ACCEPT)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert text == (STATIC_FOLDER / "index.html").read_text()


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/plain", ""])
def test_probes_and_programs_get_the_empty_answer_at_the_root(serve, accept):
    status, headers, text = get(serve, "/", Accept=accept)
    assert (status, text) == (200, "")
    assert "Content-Security-Policy" not in headers


def test_ui_is_the_page_for_everybody(serve):
    assert get(serve, "/ui", Accept="*/*")[2] == get(serve, "/", Accept=BROWSER_ACCEPT)[2]


@pytest.mark.parametrize("accept", ["text/html;q=0", "text/html; q=0.000, application/json"])
def test_program_that_refuses_html_does_not_get_the_page(serve, accept):
    assert get(serve, "/", Accept=accept)[2] == ""
    assert get(serve, "/", Accept=accept.replace("=0", "=0.1"))[2] != ""


@pytest.mark.parametrize("path", ["/ui/", "/ui/index.html"])
def test_page_is_at_one_address_under_any_prefix(serve, path):
    """Its links are relative: /ui/index.html would load /ui/ui/page.js."""
    status, headers, _ = get(serve, path)
    assert (status, headers["Location"]) == (308, "../ui")


@pytest.mark.parametrize("name", [name for name in CONTENT_TYPES if name != "index.html"])
def test_file_has_its_type_and_is_compressed_for_those_who_take_it(serve, name):
    content = (STATIC_FOLDER / name).read_bytes()

    async def scenario(client, _):
        plain = await client.get(f"/ui/{name}", headers={"Accept-Encoding": "identity"})
        assert (plain.status, plain.content_type) == (200, CONTENT_TYPES[name])
        assert await plain.read() == content
        compressed = await client.get(f"/ui/{name}", headers={"Accept-Encoding": "gzip"})
        assert compressed.headers["Content-Encoding"] == "gzip"
        assert await compressed.read() == content
    serve(scenario)


@pytest.mark.parametrize("encodings", ["gzip;q=0", "br, gzip; q=0.0", "identity", "xgzip", ""])
def test_file_is_plain_for_those_who_do_not_take_gzip(serve, encodings):
    assert "Content-Encoding" not in get(serve, "/ui/page.css", Accept_Encoding=encodings)[1]


def test_each_encoding_has_a_tag_of_its_own(serve):
    compressed = get(serve, "/ui/page.js", Accept_Encoding="br, gzip;q=0.5")[1]
    plain = get(serve, "/ui/page.js", Accept_Encoding="identity")[1]
    assert compressed["ETag"] != plain["ETag"]
    assert get(serve, "/ui/page.js", Accept_Encoding="identity", If_None_Match=compressed["ETag"])[0] == 200


@pytest.mark.parametrize("encodings", ["gzip", "identity"])
def test_page_that_is_known_is_not_sent_again(serve, encodings):
    etag = get(serve, "/ui/page.js", Accept_Encoding=encodings)[1]["ETag"]
    status, headers, text = get(serve, "/ui/page.js", Accept_Encoding=encodings,
                                If_None_Match=f'"other", {etag}')
    assert (status, text, headers["ETag"]) == (304, "", etag)
    assert get(serve, "/ui/page.js", If_None_Match='"other"')[0] == 200


@pytest.mark.parametrize("path", ["/ui", "/ui/page.js", "/ui/page.css"])
def test_policy_allows_nothing_from_elsewhere(serve, path):
    headers = get(serve, path)[1]
    assert headers["Content-Security-Policy"] == ("default-src 'self'; base-uri 'none'; form-action 'none'; "
                                                  "frame-ancestors 'none'")
    assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")


def test_page_has_neither_inline_code_nor_absolute_links():
    """The policy would block the first. Absolute links would leave the prefix under which a proxy serves weft."""
    page = (STATIC_FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\son\w+=|\sstyle=|<script(?![^>]*\ssrc=)", page)
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert links == ["ui/icon.svg", "ui/page.css", "ui/page.js", "docs"]


@pytest.mark.parametrize("path", ["/ui/main.tsx", "/ui/SHA256SUMS", "/ui/..%2froutes.py"])
def test_other_files_are_not_served(serve, path):
    status, _, text = get(serve, path)
    assert status == 404
    assert "the page has no file" in text


def test_without_the_page_browsers_get_what_probes_get():
    """With --no-ui."""
    async def answer_probe(_):
        return web.Response(text="probe")

    async def scenario():
        app = web.Application()
        app.add_routes(PageRoutes(answer_probe, is_enabled=False).routes())
        async with TestClient(TestServer(app)) as client:
            root = await client.get("/", headers={"Accept": BROWSER_ACCEPT})
            assert await root.text() == "probe"
            for path in ("/ui", "/ui/", "/ui/index.html", "/ui/page.js"):
                answer = await client.get(path)
                assert (answer.status, await answer.text()) == (404, "this server has no page for browsers (--no-ui)")
    asyncio.run(scenario())


def test_page_is_small():
    assert sum(len(file.compressed_content) for file in load_page_files().values()) < MAX_PAGE_BYTES


def test_licenses_of_bundled_parts_are_beside_them():
    text = (STATIC_FOLDER / "licenses.txt").read_text()
    assert {"preact", "uplot", "marked", "@preact/signals"} <= set(re.findall(r"^([@\w/-]+) [\d.]+ \(MIT\)$", text,
                                                                              re.MULTILINE))


def test_compressed_content_is_the_content():
    file = PageFile.from_content("text/plain", b"weft")
    assert gzip.decompress(file.compressed_content) == b"weft"


# -- while the server starts


@pytest.mark.parametrize(("progress", "words"), [
    ({}, "it is starting"), ({"phase": "load"}, "it is loading the model"),
    ({"phase": "load", "bytes": 4 * 10**8, "total": 10**9, "eta_seconds": 3.2},
     "it is loading the model, 40% of 1.0 GB, about 3 seconds left"),
    ({"phase": "warm-up", "eta_seconds": 0.6}, "it is warming up, about 1 seconds left")])
def test_progress_of_the_start_is_described(progress, words):
    assert describe_progress(progress) == words


def test_browser_is_told_how_far_the_start_is_and_asks_again():
    async def main():
        async def probe(_):
            return web.Response(status=503, text="unhealthy")
        app = web.Application()
        app.add_routes(StartupProgressPageRoutes(probe, lambda: {"phase": "check"}).routes())
        async with TestClient(TestServer(app)) as client:
            for path in ("/", "/ui"):
                answer = await client.get(path, headers={"Accept": BROWSER_ACCEPT})
                assert (answer.status, answer.headers["Refresh"]) == (503, "2")
                assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
                assert "The server is not ready yet, it is checking the model." in await answer.text()
            assert (await client.get("/ui/page.css")).status == 200
            assert await (await client.get("/")).text() == "unhealthy"
    asyncio.run(main())
