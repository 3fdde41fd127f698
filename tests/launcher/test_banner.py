"""Tests of the banner of a server that is ready."""

import pytest

from launcher.banner import banner
from launcher.hub.resolve import BOX, Model
from launcher.supervisor.supervisor import bind

MODEL = Model("org/name", "/cache/name")
SERVED = {"dtype": "bfloat16", "device": "cpu", "tokens": 32768, "bytes": 3 * 2**29, "why": "50% of what there is"}


def lines(model: Model = MODEL, host: str = "127.0.0.1", num_shard: int = 2, **known: bool) -> list[str]:
    with bind(host, 0) as listener:
        text = banner(listener, num_shard, model, SERVED, **{"keyed": False} | known)
        return text.replace(str(listener.getsockname()[1]), "PORT").split("\n")


def test_it_names_model_shards_and_address() -> None:
    assert lines()[0] == "weft serves org/name on 2 shards at http://127.0.0.1:PORT"


@pytest.mark.parametrize("model", BOX.values(), ids=list(BOX))
def test_what_users_should_know_of_a_model_stands_below_its_name(model: Model) -> None:
    told = lines(model, num_shard=1)
    assert told[:2] == [f"weft serves {model.name} on 1 shard at http://127.0.0.1:PORT", f"  note     {model.notice}"]
    assert [line.split()[0] for line in told[2:]] == ["runs", "cache", "clients", "try", "stop"]


def test_it_says_how_the_model_runs_and_why_the_cache_has_its_size() -> None:
    assert lines()[1:3] == ["  runs     bfloat16 on cpu", "  cache    32,768 tokens, 1.50 GiB: 50% of what there is"]


def test_all_its_rows_begin_in_one_column() -> None:
    assert {line[:11].rstrip() for line in lines()[1:]} == {"  runs", "  cache", "  clients", "  try", "  stop"}
    assert {line[11] for line in lines()[1:]}.isdisjoint(" ")


def test_it_shows_a_command_to_try() -> None:
    assert lines()[4].startswith("  try      curl -N http://127.0.0.1:PORT/generate_stream ")


def test_where_keys_are_asked_for_the_command_has_one() -> None:
    assert '-H "Authorization: Bearer $WEFT_API_KEY"' in lines(keyed=True)[4]


def test_an_address_of_version_six_is_written_as_urls_have_it() -> None:
    assert lines(host="::1")[0].endswith("http://[::1]:PORT")


@pytest.mark.parametrize(("host", "keyed", "told"), [
    ("127.0.0.1", False, "on this machine only; --hostname 0.0.0.0 --api-key KEY lets others in"),
    ("::1", False, "on this machine only; --hostname 0.0.0.0 --api-key KEY lets others in"),
    ("0.0.0.0", False, "whoever reaches this machine, without a key; --api-key KEY asks for one"),
    ("0.0.0.0", True, "whoever reaches this machine and has a key"),
])
def test_it_says_who_may_ask_and_how_that_is_changed(host: str, keyed: bool, told: str) -> None:
    assert lines(host=host, keyed=keyed)[3] == f"  clients  {told}"


@pytest.mark.parametrize(("instead", "path"), [("vector", "/embed"), ("labels", "/classify")])
def test_of_an_encoder_it_shows_what_that_does_and_no_cache(instead: str, path: str) -> None:
    with bind("127.0.0.1", 0) as listener:
        told = banner(listener, 1, MODEL, SERVED | {"instead_of_text": instead}, keyed=False).split("\n")
    assert [line.split()[0] for line in told[1:]] == ["runs", "clients", "try", "stop"]
    assert f"{path} " in told[3]
