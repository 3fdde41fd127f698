"""API keys: files of keys, errors in them, and the tenants and roles of keys."""

import json

import pytest

from router.api_keys import Entry, Keys, read_keys
from router.config import RouterConfig
from router.request import ANYONE, Tenant


@pytest.fixture
def written(tmp_path):
    """Function that writes a file of keys: a string as it is, anything else as JSON."""
    def write(content):
        file = tmp_path / "keys.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file
    return write


@pytest.fixture
def refusal(written):
    def read(content):
        with pytest.raises(ValueError, match=r"keys\.json") as refused:
            read_keys(written(content))
        return str(refused.value)
    return read


# -- files


def test_a_key_stands_for_a_tenant_with_weight_and_limits(written):
    limits = {"max_concurrent_requests": 8, "max_queue_requests": 4, "max_queue_tokens": 20_000}
    entries = read_keys(written({"sk-one": {"tenant": "a", "weight": 3, **limits}, "sk-two": {"tenant": "b"}}))
    assert {key: entry.as_tenant() for key, entry in entries.items()} == {
        "sk-one": Tenant("a", 3.0, 8, 4, 20_000), "sk-two": Tenant("b")}


def test_several_keys_may_belong_to_one_tenant(written):
    assert set(read_keys(written({"one": {"tenant": "a", "weight": 2}, "two": {"tenant": "a", "weight": 2.0}}))) == {
        "one", "two"}


@pytest.mark.parametrize(("entry", "fault"), [
    ({"weight": 1}, "`tenant` is missing"),
    ({"tenant": "a", "wieght": 3}, "`wieght` is no setting; there are tenant, weight, max_concurrent_requests, "
                                   "max_queue_requests, max_queue_tokens, role"),
    ({"tenant": "a", "role": "operator"}, "`role` must be 'user' or 'admin', got a string"),
    ({"tenant": "a", "role": None}, "`role` must be 'user' or 'admin', got null"),
    ({"tenant": "a", "weight": 0}, "`weight` must be greater than or equal to 0.001, got 0"),
    ({"tenant": "a", "weight": "3"}, "`weight` must be a valid number, got a string"),
    ({"tenant": "a", "weight": float("nan")}, "`weight` must be a finite number, got NaN"),
    ({"tenant": "a", "weight": True}, "`weight` must be a valid number, got true"),
    ({"tenant": "a", "max_queue_tokens": 0}, "`max_queue_tokens` must be greater than or equal to 1, got 0"),
    ({"tenant": "a", "max_queue_tokens": 1.5}, "`max_queue_tokens` must be a valid integer, got 1.5"),
    ({"tenant": "a", "max_queue_tokens": [1]}, "`max_queue_tokens` must be a valid integer, got a list"),
    ({"tenant": ""}, "`tenant` must have at least 1 character, got a string"),
    ({"tenant": "x" * 65}, "`tenant` must have at most 64 characters, got a string"),
    ({"tenant": 5}, "`tenant` must be a valid string, got 5"),
    ("a", "what it stands for must be an object, got a string"),
])
def test_a_fault_names_file_key_field_limit_and_value(refusal, entry, fault):
    told = refusal({"sk-secret": entry})
    assert told.split("keys.json: ", 1)[1] == f"key sk-s…: {fault}"


@pytest.mark.parametrize(("content", "fault"), [
    ("", "is not JSON: Expecting value, line 1, column 1"),
    ('{"sk-secret": {"tenant": "a"},\n "sk-secret": {"tenant": "b"}}', "sk-s… stands there twice"),
    ("[" * 200_000, "is nested too deeply"),
    ([], "what it holds must be an object, got a list; it should look like"),
    ({}, "holds no key"),
    ({"sk secret": {"tenant": "a"}}, "the key sk s… must be printable ASCII without blanks"),
    ({"sk-secret\n": {"tenant": "a"}}, "the key sk-s… must be printable ASCII"),
    ({"": {"tenant": "a"}}, "the key … must be"),
    ({"ключ": {"tenant": "a"}}, "must be printable ASCII"),
    ({"sk-secret": {"tenant": "a", "weight": 2}, "tk-secret": {"tenant": "a"}},
     "keys sk-s… and tk-s… are of tenant a, but `weight` is 2.0 for the one and 1.0 for the other"),
])
def test_what_no_file_of_keys_is_says_why(refusal, content, fault):
    assert fault in refusal(content)


def test_no_message_holds_a_whole_key(refusal):
    for content in ({"sk-1": {}}, {"sk-1": "sk-1"}, {"sk-1": {"tenant": "a", "weight": "sk-1"}},
                    '{"sk-1": {}, "sk-1": {}}', {"sk-1": {"tenant": "a", "weight": 2}, "sk-2": {"tenant": "a"}}):
        assert "sk-1" not in refusal(content)


def test_a_file_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*no.json \(--api-keys\): No such file"):
        read_keys(tmp_path / "no.json")
    (tmp_path / "latin").write_bytes(b'{"\xe9": {}}')
    with pytest.raises(ValueError, match="latin is not UTF-8"):
        read_keys(tmp_path / "latin")


# -- keys


def test_without_keys_everybody_may_ask():
    keys = Keys.of(RouterConfig())
    assert keys.tenant_of("") is ANYONE
    assert keys.tenant_of("whatever") is ANYONE


def test_a_single_key_is_that_of_anyone():
    keys = Keys.of(RouterConfig(api_key="sk-one"))
    assert keys.tenant_of("sk-one") is ANYONE
    assert keys.tenant_of("") is None


def test_the_single_key_and_those_of_the_file_are_all_good(written):
    keys = Keys.of(RouterConfig(api_key="sk-one", api_keys=str(written({"sk-two": {"tenant": "a"}}))))
    assert [keys.tenant_of(key) for key in ("sk-one", "sk-two", "sk-three")] == [ANYONE, Tenant("a"), None]


@pytest.mark.parametrize("key", ["SK-One", "sk-One ", "sk-On", "sk-One1", "sk-\udce9ne"])
def test_keys_are_compared_exactly(key):
    assert Keys({"sk-One": ANYONE}).tenant_of(key) is None


def test_a_key_that_stands_in_both_places_is_refused(written):
    with pytest.raises(ValueError, match=r"the key sk-… of --api-key stands in .*keys\.json as well"):
        Keys.of(RouterConfig(api_key="sk-one", api_keys=str(written({"sk-one": {"tenant": "a"}}))))


def test_a_single_key_that_no_header_can_carry_is_refused():
    with pytest.raises(ValueError, match="--api-key: the key sk-… must be printable ASCII"):
        Keys.of(RouterConfig(api_key="sk-one\n"))


def test_no_key_is_kept():
    keys = Keys({"sk-one": ANYONE}, ["sk-one"])
    assert b"sk-one" not in b"".join([*keys._tenants, *keys._admins])


# -- roles


def test_a_key_is_a_users_unless_the_file_says_admin(written):
    entries = read_keys(written({"sk-one": {"tenant": "a"}, "sk-two": {"tenant": "a", "role": "user"},
                                 "sk-three": {"tenant": "a", "role": "admin"}}))
    assert [entry.role for entry in entries.values()] == ["user", "user", "admin"]
    assert Entry(tenant="a").role == "user"


def test_admins_are_the_keys_of_that_role_and_the_single_key(written):
    file = written({"sk-two": {"tenant": "a"}, "sk-three": {"tenant": "a", "role": "admin"}})
    keys = Keys.of(RouterConfig(api_key="sk-one", api_keys=str(file)))
    assert [keys.is_admin(key) for key in ("sk-one", "sk-two", "sk-three", "sk-four", "")] == [
        True, False, True, False, False]


def test_in_a_file_without_roles_nobody_is_an_admin(written):
    keys = Keys.of(RouterConfig(api_keys=str(written({"sk-two": {"tenant": "a"}}))))
    assert not keys.is_admin("sk-two")


def test_without_keys_everybody_is_an_admin():
    assert Keys.of(RouterConfig()).is_admin("")
