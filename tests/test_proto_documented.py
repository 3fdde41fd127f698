"""Everything in proto/shard.proto has a comment; the parser that checks this finds all that the generated code has."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

from shard.pb import shard_pb2 as pb

PROTO_PATH = Path(__file__).parents[1] / "proto" / "shard.proto"
BLOCK_PATTERN = re.compile(r"(message|enum|service|oneof) (\w+) {")
METHOD_PATTERN = re.compile(r"rpc (\w+)\(")
VALUE_PATTERN = re.compile(r"(?:repeated |optional )?(?:[\w.]+ |map<.+> )?(\w+) = \d+")  # an enum's value, or a field
COMMENT_PATTERN = re.compile(r"//.*\w")  # a line of dashes between sections is no comment
NAMELESS_BLOCK_KIND = "oneof"  # the fields in it are fields of the message


def iter_definitions(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the full name of every message, enum, enum value, field, oneof and method, and whether it has a comment.

    The comment is on the line above or at the end of the line. The service is left out, since the head of the file
    describes it.
    """
    open_blocks: list[tuple[str, str]] = []
    above = ""
    for line in map(str.strip, text.splitlines()):
        code = line.partition("//")[0].strip()
        documented = COMMENT_PATTERN.match(above) is not None or COMMENT_PATTERN.search(line) is not None
        names = [name for kind, name in open_blocks if kind != NAMELESS_BLOCK_KIND]
        if match := BLOCK_PATTERN.match(code):
            if match[1] != "service":
                yield ".".join([*names, match[2]]), documented
            open_blocks += [(match[1], match[2])] * ("}" not in code)
        elif match := METHOD_PATTERN.match(code) or VALUE_PATTERN.match(code):
            yield ".".join([*names, match[1]]), documented
        elif code == "}":
            open_blocks.pop()
        above = line


def find_undocumented(text: str) -> list[str]:
    return [name for name, documented in iter_definitions(text) if not documented]


def iter_generated_names() -> Iterator[str]:
    """Yield the full names of everything in the generated code but the service."""
    contract = pb.DESCRIPTOR
    for message in contract.message_types_by_name.values():
        yield from iter_message_names(message)
    for enum in contract.enum_types_by_name.values():
        yield from [enum.name, *(f"{enum.name}.{name}" for name in enum.values_by_name)]
    for service in contract.services_by_name.values():
        yield from [f"{service.name}.{method.name}" for method in service.methods]


def iter_message_names(message: Descriptor) -> Iterator[str]:
    """Yield the full names of a message, its fields and oneofs; messages and enums must not be nested."""
    assert not [*message.nested_types, *message.enum_types]
    names = [*message.fields_by_name, *message.oneofs_by_name]
    yield from [message.name, *(f"{message.name}.{name}" for name in names)]


def test_every_proto_definition_has_a_comment() -> None:
    assert find_undocumented(PROTO_PATH.read_text()) == []


def test_parser_finds_every_generated_name() -> None:
    assert sorted(name for name, _ in iter_definitions(PROTO_PATH.read_text())) == sorted(iter_generated_names())


@pytest.mark.parametrize(("text", "missing"), [
    ("// Said.\nmessage A {\n  // Said.\n  uint32 one = 1;\n  repeated B two = 2;\n}\n", ["A.two"]),
    ("// Said.\nmessage A {\n  uint32 one = 1;  // Said.\n  uint32 two = 2;  //\n}\n", ["A.two"]),
    ("// Said.\n\nmessage A {}\n", ["A"]),
    ("// -----\nmessage A {}\n", ["A"]),
    ("// Said.\nenum A {\n  ONE = 0;\n  // Said.\n  TWO = 1;\n}\n", ["A.ONE"]),
    ("// Said.\nmessage A {\n  // Said.\n  oneof b {\n    C c = 1;\n  }\n  C d = 2;\n}\n", ["A.c", "A.d"]),
    ("// Said.\nservice A {\n  rpc Do(B) returns (C);\n}\n", ["A.Do"]),
])
def test_undocumented_definitions_are_found(text: str, missing: list[str]) -> None:
    assert find_undocumented(text) == missing
