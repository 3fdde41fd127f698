"""The page at /docs."""

from html.parser import HTMLParser

from router.config import RouterConfig
from router.http.docs.openapi import build_openapi_document
from router.http.docs.page import render_docs_page


class HtmlTextCollector(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = set(), ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert all(not (value or "").startswith(("http:", "https:", "//")) for _, value in attrs)

    def handle_data(self, data):
        self.text += data


def test_docs_page_describes_the_configured_dialect(serve):
    async def scenario(client, _):
        page, document = await client.get("/docs"), await client.get("/api-doc/openapi.json")
        assert "return_k_alternatives" in await page.text()
        assert "LoraxParameters" in (await document.json())["components"]["schemas"]
    serve(scenario, config=RouterConfig(compat="lorax"))


def test_docs_page_lists_every_route_and_loads_no_external_resources():
    described, reader = build_openapi_document(), HtmlTextCollector()
    reader.feed(render_docs_page(described))
    assert not reader.tags & {"script", "link", "img", "iframe"}
    for path in described["paths"]:
        assert path in reader.text
    for field in ("max_new_tokens", "return_full_text", "max_completion_tokens", "suffix", "instances"):
        assert field in reader.text


def test_docs_page_and_openapi_document_are_served(serve):
    async def scenario(client, _):
        page, document = await client.get("/docs"), await client.get("/api-doc/openapi.json")
        assert (page.status, page.content_type) == (200, "text/html")
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert (await document.json())["openapi"].startswith("3.1")
    serve(scenario)
