"""The order that a router gets from its parent, written and read as JSON."""

import json
from dataclasses import asdict

from router.config import RouterConfig
from router.process import Order
from shard.telemetry.logs import Logs
from shard.telemetry.traces import Traces


def test_an_order_needs_no_descriptors() -> None:
    text = json.dumps({"config": {"look_ahead": 1}, "shards": ["unix:/a", "unix:/b"]})
    assert Order.from_json(text) == Order(RouterConfig(look_ahead=1), ("unix:/a", "unix:/b"), "", "", "", -1, -1, -1)


def test_an_order_names_the_files_in_which_shards_write_how_far_they_are() -> None:
    text = json.dumps({"config": {}, "shards": [], "progress": ["/a", "/b"]})
    assert Order.from_json(text).progress == ("/a", "/b")


def test_an_order_is_read_as_the_launcher_wrote_it() -> None:
    config = RouterConfig(cors_allow_origin=("https://a", "https://b"))
    order = Order(config, ("unix:/a",), logs=Logs("debug", as_json=True), traces=Traces("http://a:4317", "loom"))
    assert Order.from_json(json.dumps(asdict(order))) == order


def test_the_key_of_clients_comes_beside_the_order() -> None:
    text = json.dumps({"config": {}, "shards": []})
    assert Order.from_json(text, "sk-loom").config.api_key == "sk-loom"
    assert "sk-loom" not in repr(Order.from_json(text, "sk-loom"))
