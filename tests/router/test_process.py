"""The order that a router gets from its parent, written and read as JSON."""

import json
from dataclasses import asdict

from router.config import RouterConfig
from router.process import RouterProcessArgs
from shard.telemetry.logs import LogSettings
from shard.telemetry.traces import TraceSettings


def test_arguments_need_no_descriptors() -> None:
    text = json.dumps({"config": {"look_ahead": 1}, "shards": ["unix:/a", "unix:/b"]})
    assert RouterProcessArgs.from_json(text) == RouterProcessArgs(RouterConfig(look_ahead=1), ("unix:/a", "unix:/b"),
                                                                  "", "", "", -1, -1, -1)


def test_arguments_name_the_progress_files_of_the_shards() -> None:
    text = json.dumps({"config": {}, "shards": [], "progress": ["/a", "/b"]})
    assert RouterProcessArgs.from_json(text).progress == ("/a", "/b")


def test_arguments_written_by_the_launcher_are_read_back() -> None:
    config = RouterConfig(cors_allow_origin=("https://a", "https://b"))
    order = RouterProcessArgs(config, ("unix:/a",), logs=LogSettings("debug", as_json=True),
                              traces=TraceSettings("http://a:4317", "loom"))
    assert RouterProcessArgs.from_json(json.dumps(asdict(order))) == order


def test_api_key_is_passed_separately_and_not_shown() -> None:
    text = json.dumps({"config": {}, "shards": []})
    assert RouterProcessArgs.from_json(text, "sk-loom").config.api_key == "sk-loom"
    assert "sk-loom" not in repr(RouterProcessArgs.from_json(text, "sk-loom"))
