"""API keys: files of keys, errors in them, and the tenants and roles of keys."""

import json

import pytest

from router.api_keys import ApiKeyEntry, ApiKeys, load_key_file
from router.config import RouterConfig
from router.request import DEFAULT_TENANT, Tenant


@pytest.fixture
def write_key_file(tmp_path):
    """Function that writes a file of keys: a string as it is, anything else as JSON."""
    def write(content):
        file = tmp_path / "keys.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file
    return write


@pytest.fixture
def get_key_file_error(write_key_file):
    def read(content):
        with pytest.raises(ValueError, match=r"keys\.json") as refused:
            load_key_file(write_key_file(content))
        return str(refused.value)
    return read


# -- files


def test_key_belongs_to_a_tenant_with_weight_and_limits(write_key_file):
    limits = {"max_concurrent_requests": 8, "max_queue_requests": 4, "max_queue_tokens": 20_000}
    entries = load_key_file(write_key_file({"sk-one": {"tenant": "a", "weight": 3, **limits},
                                            "sk-two": {"tenant": "b"}}))
    assert {key: entry.as_tenant() for key, entry in entries.items()} == {
        "sk-one": Tenant("a", 3.0, 8, 4, 20_000), "sk-two": Tenant("b")}


def test_several_keys_may_belong_to_one_tenant(write_key_file):
    assert set(load_key_file(write_key_file({"one": {"tenant": "a", "weight": 2},
                                             "two": {"tenant": "a", "weight": 2.0}}))) == {"one", "two"}


@pytest.mark.parametrize(("entry", "fault"), [
    ({"weight": 1}, "`tenant` is missing"),
    ({"tenant": "a", "wieght": 3}, "`wieght` is no setting; there are tenant, weight, max_concurrent_requests, "
     "max_queue_requests, max_queue_tokens, role"),
    ({"tenant": "a", "role": "operator"}, "`role` must be 'user' or 'admin', got 'operator'"),
    ({"tenant": "a", "role": None}, "`role` must be 'user' or 'admin', got null"),
    ({"tenant": "a", "weight": 0}, "`weight` must be at least 0.001, got 0"),
    ({"tenant": "a", "weight": "3"}, "`weight` must be a number, got a string"),
    ({"tenant": "a", "weight": float("nan")}, "`weight` must be a finite number, got NaN"),
    ({"tenant": "a", "weight": True}, "`weight` must be a number, got true"),
    ({"tenant": "a", "max_queue_tokens": 0}, "`max_queue_tokens` must be at least 1, got 0"),
    ({"tenant": "a", "max_queue_tokens": 1.5}, "`max_queue_tokens` must be an integer, got 1.5"),
    ({"tenant": "a", "max_queue_tokens": [1]}, "`max_queue_tokens` must be an integer, got an array"),
    ({"tenant": ""}, "`tenant` must have at least 1 character, got 0"),
    ({"tenant": "x" * 65}, "`tenant` must have at most 64 characters, got 65"),
    ({"tenant": 5}, "`tenant` must be a string, got 5"),
    ("a", 'its value must be an object such as {"tenant": "a"}, got a string'),
])
def test_invalid_entry_error_names_file_key_field_limit_and_value(get_key_file_error, entry, fault):
    message = get_key_file_error({"sk-secret": entry})
    assert message.split("keys.json: ", 1)[1] == f"key sk-s…: {fault}"


def test_key_among_others_is_named_by_its_position(get_key_file_error):
    message = get_key_file_error({"sk-one": {"tenant": "a"}, "sk-two": {}})
    assert message.split("keys.json: ", 1)[1] == "key sk-…, number 2 of 2: `tenant` is missing"


@pytest.mark.parametrize(("content", "fault"), [
    ("", "is not JSON: Expecting value, line 1, column 1"),
    ('{"sk-secret": {"tenant": "a"},\n "sk-secret": {"tenant": "b"}}', "sk-s… stands there twice"),
    ("[" * 200_000, "is nested too deeply"),
    ([], "what it holds must be an object, got an array; it should look like"),
    ({}, "holds no key"),
    ({"sk secret": {"tenant": "a"}}, "the key sk s… must be printable ASCII without blanks"),
    ({"sk-secret\n": {"tenant": "a"}}, "the key sk-s… must be printable ASCII"),
    ({"": {"tenant": "a"}}, "the key … must be"),
    ({"ключ": {"tenant": "a"}}, "must be printable ASCII"),
    ({"sk-secret": {"tenant": "a", "weight": 2}, "tk-secret": {"tenant": "a"}},
     "keys sk-s… and tk-s… are of tenant a, but `weight` is 2.0 for the one and 1.0 for the other"),
])
def test_invalid_key_file_is_rejected_with_a_reason(get_key_file_error, content, fault):
    assert fault in get_key_file_error(content)


def test_error_messages_never_contain_a_whole_key(get_key_file_error):
    for content in ({"sk-1": {}}, {"sk-1": "sk-1"}, {"sk-1": {"tenant": "a", "weight": "sk-1"}},
                    '{"sk-1": {}, "sk-1": {}}', {"sk-1": {"tenant": "a", "weight": 2}, "sk-2": {"tenant": "a"}}):
        assert "sk-1" not in get_key_file_error(content)


def test_unreadable_key_file_is_rejected_with_a_reason(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*no.json \(--api-keys\): No such file"):
        load_key_file(tmp_path / "no.json")
    (tmp_path / "latin").write_bytes(b'{"\xe9": {}}')
    with pytest.raises(ValueError, match="latin is not UTF-8"):
        load_key_file(tmp_path / "latin")


# -- keys


def test_without_keys_every_request_belongs_to_the_default_tenant():
    keys = ApiKeys.from_config(RouterConfig())
    assert keys.find_tenant("") is DEFAULT_TENANT
    assert keys.find_tenant("whatever") is DEFAULT_TENANT


def test_single_key_belongs_to_the_default_tenant():
    keys = ApiKeys.from_config(RouterConfig(api_key="sk-one"))
    assert keys.find_tenant("sk-one") is DEFAULT_TENANT
    assert keys.find_tenant("") is None


def test_single_key_and_file_keys_are_all_accepted(write_key_file):
    keys = ApiKeys.from_config(RouterConfig(api_key="sk-one",
                                            api_keys=str(write_key_file({"sk-two": {"tenant": "a"}}))))
    assert [keys.find_tenant(key) for key in ("sk-one", "sk-two", "sk-three")] == [DEFAULT_TENANT, Tenant("a"), None]


@pytest.mark.parametrize("key", ["SK-One", "sk-One ", "sk-On", "sk-One1", "sk-\udce9ne"])
def test_keys_are_compared_exactly(key):
    assert ApiKeys({"sk-One": DEFAULT_TENANT}).find_tenant(key) is None


def test_key_in_both_places_is_rejected(write_key_file):
    with pytest.raises(ValueError, match=r"the key sk-… of --api-key stands in .*keys\.json as well"):
        ApiKeys.from_config(RouterConfig(api_key="sk-one", api_keys=str(write_key_file({"sk-one": {"tenant": "a"}}))))


def test_single_key_that_no_header_can_carry_is_rejected():
    with pytest.raises(ValueError, match="--api-key: the key sk-… must be printable ASCII"):
        ApiKeys.from_config(RouterConfig(api_key="sk-one\n"))


def test_keys_are_not_stored_in_clear_text():
    keys = ApiKeys({"sk-one": DEFAULT_TENANT}, ["sk-one"])
    assert b"sk-one" not in b"".join([*keys._tenant_by_digest, *keys._admin_digests])


# -- roles


def test_key_is_a_user_key_unless_the_file_says_admin(write_key_file):
    entries = load_key_file(write_key_file({"sk-one": {"tenant": "a"}, "sk-two": {"tenant": "a", "role": "user"},
                                            "sk-three": {"tenant": "a", "role": "admin"}}))
    assert [entry.role for entry in entries.values()] == ["user", "user", "admin"]
    assert ApiKeyEntry(tenant="a").role == "user"


def test_admin_keys_are_those_with_the_role_and_the_single_key(write_key_file):
    file = write_key_file({"sk-two": {"tenant": "a"}, "sk-three": {"tenant": "a", "role": "admin"}})
    keys = ApiKeys.from_config(RouterConfig(api_key="sk-one", api_keys=str(file)))
    assert [keys.is_admin(key) for key in ("sk-one", "sk-two", "sk-three", "sk-four", "")] == [
        True, False, True, False, False]


def test_key_file_without_roles_has_no_admins(write_key_file):
    keys = ApiKeys.from_config(RouterConfig(api_keys=str(write_key_file({"sk-two": {"tenant": "a"}}))))
    assert not keys.is_admin("sk-two")


def test_without_keys_everyone_is_an_admin():
    assert ApiKeys.from_config(RouterConfig()).is_admin("")
