"""Everything in proto/shard.proto has a comment; the parser that checks this finds all that the generated code has."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

from shard.pb import shard_pb2 as pb

CONTRACT = Path(__file__).parents[1] / "proto" / "shard.proto"
BLOCK = re.compile(r"(message|enum|service|oneof) (\w+) {")
METHOD = re.compile(r"rpc (\w+)\(")
VALUE = re.compile(r"(?:repeated |optional )?(?:[\w.]+ |map<.+> )?(\w+) = \d+")  # an enum's value, or a field
COMMENT = re.compile(r"//.*\w")  # a line of dashes between sections is no comment
TRANSPARENT = "oneof"  # the fields in it are fields of the message


def things(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the full name of every message, enum, enum value, field, oneof and method, and whether it has a comment.

    The comment is on the line above or at the end of the line. The service is left out, since the head of the file
    describes it.
    """
    around: list[tuple[str, str]] = []
    above = ""
    for line in map(str.strip, text.splitlines()):
        code = line.partition("//")[0].strip()
        documented = COMMENT.match(above) is not None or COMMENT.search(line) is not None
        names = [name for kind, name in around if kind != TRANSPARENT]
        if found := BLOCK.match(code):
            if found[1] != "service":
                yield ".".join([*names, found[2]]), documented
            around += [(found[1], found[2])] * ("}" not in code)
        elif found := METHOD.match(code) or VALUE.match(code):
            yield ".".join([*names, found[1]]), documented
        elif code == "}":
            around.pop()
        above = line


def undocumented(text: str) -> list[str]:
    return [name for name, documented in things(text) if not documented]


def known() -> Iterator[str]:
    """Yield the full names of everything in the generated code but the service."""
    contract = pb.DESCRIPTOR
    for message in contract.message_types_by_name.values():
        yield from inside(message)
    for enum in contract.enum_types_by_name.values():
        yield from [enum.name, *(f"{enum.name}.{name}" for name in enum.values_by_name)]
    for service in contract.services_by_name.values():
        yield from [f"{service.name}.{method.name}" for method in service.methods]


def inside(message: Descriptor) -> Iterator[str]:
    """Yield the full names of a message, its fields and oneofs; messages and enums must not be nested."""
    assert not [*message.nested_types, *message.enum_types]
    names = [*message.fields_by_name, *message.oneofs_by_name]
    yield from [message.name, *(f"{message.name}.{name}" for name in names)]


def test_nothing_is_without_a_comment_of_its_own() -> None:
    assert undocumented(CONTRACT.read_text()) == []


def test_the_walk_finds_all_that_the_generated_code_knows() -> None:
    assert sorted(name for name, _ in things(CONTRACT.read_text())) == sorted(known())


@pytest.mark.parametrize(("text", "missing"), [
    ("// Said.\nmessage A {\n  // Said.\n  uint32 one = 1;\n  repeated B two = 2;\n}\n", ["A.two"]),
    ("// Said.\nmessage A {\n  uint32 one = 1;  // Said.\n  uint32 two = 2;  //\n}\n", ["A.two"]),
    ("// Said.\n\nmessage A {}\n", ["A"]),
    ("// -----\nmessage A {}\n", ["A"]),
    ("// Said.\nenum A {\n  ONE = 0;\n  // Said.\n  TWO = 1;\n}\n", ["A.ONE"]),
    ("// Said.\nmessage A {\n  // Said.\n  oneof b {\n    C c = 1;\n  }\n  C d = 2;\n}\n", ["A.c", "A.d"]),
    ("// Said.\nservice A {\n  rpc Do(B) returns (C);\n}\n", ["A.Do"]),
])
def test_what_lacks_one_is_named(text: str, missing: list[str]) -> None:
    assert undocumented(text) == missing
