"""Safetensors files with a defect in the header that is drawn from a seed.

    mutation = mutate(path.read_bytes(), "shape", Random(5))

A mutation has the names of the tensors that an error message may name. Our own reader of headers is not used here: the
effect of a flipped byte is found by the standard library's JSON parser.
"""

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

HUGE = [2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]
NOT_COUNTS = [-1, 4.0, True, None, "4", [4], {}, float("nan"), 1e300]
TYPES = ["F33", "f32", "", "F16", "BF16", "F64", "I8", "U64", "I32", "F4", "F8_E8M0", "C64", None, 32, ["F32"], True]


class Mutation(NamedTuple):
    content: bytes
    names: set[str]  # an error message names one of these; empty where no particular entry is wrong


class Parts(NamedTuple):
    """A parsed file and the name of the tensor whose entry is mutated."""

    header: dict[str, Any]
    numbers: bytes
    victim: str

    @property
    def entry(self) -> dict[str, Any]:
        return dict(self.header[self.victim])

    def with_entry(self, **changes: Any) -> Mutation:
        return Mutation(put_together(self.header | {self.victim: self.entry | changes}, self.numbers), {self.victim})

    def with_text(self, old: str, new: str) -> Mutation:
        text = json.dumps(self.header)
        assert old in text
        return Mutation(put_together(text.replace(old, new, 1), self.numbers), {self.victim})


def put_together(header: dict[str, Any] | str, numbers: bytes) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text)) + text + numbers


def take_apart(content: bytes) -> tuple[bytes, bytes]:
    """Split a file into the text of its header and the data of its tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    return content[8:end], content[end:]


def mutate(content: bytes, kind: str, random: Random) -> Mutation:
    if kind in OF_BYTES:
        return OF_BYTES[kind](content, random)
    text, numbers = take_apart(content)
    header = json.loads(text)
    victim = random.choice(sorted(header.keys() - {"__metadata__"}))
    return OF_ENTRIES[kind](Parts(header, numbers, victim), random)


# ---------------------------------------------------------------------------------------------------------------------
# Bytes


def flip(content: bytes, random: Random) -> Mutation:
    text, numbers = take_apart(content)
    flipped = bytearray(text)
    for _ in range(random.randint(1, 3)):
        flipped[random.randrange(len(text))] ^= random.randint(1, 255)
    return Mutation(content[:8] + flipped + numbers, different(text, bytes(flipped)))


def different(before: bytes, after: bytes) -> set[str]:
    """Return the names of entries that only one of two headers has; empty if one header is not valid JSON."""
    try:
        old, new = (json.loads(str(text, "utf-8"), object_pairs_hook=list) for text in (before, after))
    except ValueError:
        return set()
    return {pair[0] for one, other in ((old, new), (new, old)) for pair in one if pair not in other}


def claim_another_length(content: bytes, random: Random) -> Mutation:
    length = int.from_bytes(content[:8], "little")
    near = length + random.choice([-1, 1]) * random.randint(1, 200)
    claimed = random.choice([near, random.getrandbits(64), random.randrange(len(content)), 0, 1, *HUGE[:6]])
    return Mutation(struct.pack("<Q", claimed) + content[8:], set())


def truncate(content: bytes, random: Random) -> Mutation:
    return Mutation(content[:random.randrange(len(content))], set())


def extend(content: bytes, random: Random) -> Mutation:
    return Mutation(content + random.randbytes(random.randint(1, 5000)), set())


# ---------------------------------------------------------------------------------------------------------------------
# Entries


def move(parts: Parts, random: Random) -> Mutation:
    """Shift one or both data offsets by a few or many bytes, also beyond the file, and sometimes swap them."""
    offsets = list(parts.entry["data_offsets"])
    by = random.choice([1, -1, 4, -4, 1024, len(parts.numbers), -len(parts.numbers)])
    for end in random.choice([[0], [1], [0, 1]]):
        offsets[end] += by
    return parts.with_entry(data_offsets=random.choice([offsets, offsets, offsets, offsets[::-1]]))


def misplace(parts: Parts, random: Random) -> Mutation:
    """Replace data offsets by values that are not valid offsets."""
    offsets: list[Any] = list(parts.entry["data_offsets"])
    offsets[random.randrange(2)] = random.choice([*HUGE, *NOT_COUNTS])
    return parts.with_entry(data_offsets=random.choice([offsets, offsets, [], offsets * 2, offsets[0], None, "0, 4"]))


def resize(parts: Parts, random: Random) -> Mutation:
    shape: list[Any] = list(parts.entry["shape"])
    place = random.randrange(len(shape))
    shape[place] = random.choice([shape[place] + 1, shape[place] - 1, shape[place] * 2, 0, *HUGE, *NOT_COUNTS])
    return parts.with_entry(shape=shape)


def reshape(parts: Parts, random: Random) -> Mutation:
    """Change the shape: same number of elements, a number that overflows, or no shape at all."""
    shape = parts.entry["shape"]
    return parts.with_entry(shape=random.choice([
        shape[::-1] if shape != shape[::-1] else [*shape, 1], [1, *shape], [*shape, 2**32, 2**32], [2**33, 2**31],
        [0, 2**62, 2**62], [*shape, *[1] * 100], [*shape, 2**64 + 1], [-size for size in shape],
        [[size] for size in shape], [], {}, None, "4, 4"]))


def retype(parts: Parts, random: Random) -> Mutation:
    return parts.with_entry(dtype=random.choice(TYPES))


def overlap(parts: Parts, random: Random) -> Mutation:
    """Point the entry to the start of another tensor's data."""
    other = random.choice(sorted(parts.header.keys() - {"__metadata__", parts.victim}))
    begin, end = parts.entry["data_offsets"]
    place = min(parts.header[other]["data_offsets"][0], len(parts.numbers) - (end - begin))
    return Mutation(parts.with_entry(data_offsets=[place, place + end - begin]).content, set(parts.header))


def drop(parts: Parts, random: Random) -> Mutation:
    """Remove the entry but keep its data, which then belongs to no tensor."""
    header = {name: entry for name, entry in parts.header.items() if name != parts.victim}
    return Mutation(put_together(header, parts.numbers), set(parts.header))


def rewrite_fields(parts: Parts, random: Random) -> Mutation:
    entry = parts.entry
    name = random.choice(sorted(entry))
    without = {key: value for key, value in entry.items() if key != name}
    changed = random.choice([
        without, without | {name.upper(): entry[name]}, entry | {"strides": [1]}, entry | {"": 0}, {}, [], list(entry),
        None, 5, "F32", {"a": entry}, [entry]])
    return Mutation(put_together(parts.header | {parts.victim: changed}, parts.numbers), {parts.victim})


def repeat(parts: Parts, random: Random) -> Mutation:
    """Write an entry, or a field of an entry, twice."""
    entry, name = parts.entry, json.dumps(parts.victim)
    field = random.choice(sorted(entry))
    other = random.choice([entry, parts.header[random.choice(sorted(parts.header))]])
    text, escaped = f"{name}: {json.dumps(entry)}", f'"\\u00{ord(parts.victim[0]):x}{name[2:]}'
    return parts.with_text(text, random.choice([
        f"{text}, {name}: {json.dumps(other)}", f"{text}, {escaped}: {json.dumps(other)}",
        f'{text[:-1]}, "{field}": {json.dumps(entry[field])}}}']))


def nest(parts: Parts, random: Random) -> Mutation:
    depth = random.choice([2, 50, 500, 1500, 100_000])
    opened, closed = random.choice([("[", "]"), ('{"a": ', "}")])
    value = opened * depth + random.choice(["", "1"]) + closed * random.choice([depth, depth - 1])
    entry = parts.entry
    field = random.choice(["dtype", "shape", "data_offsets", ""])
    text = f"{json.dumps(parts.victim)}: "
    return parts.with_text(text + json.dumps(entry), text + (
        json.dumps(entry | {field: "HERE"}).replace('"HERE"', value) if field else value))


def rename(parts: Parts, random: Random) -> Mutation:
    """Rename the entry to an empty, unprintable, very long or other name, or to half a surrogate pair."""
    name = random.choice([
        "", "\n", "a\0b", "\x1b[2J", "\ud800", "x" * 1000, "ü", "a" + parts.victim, "__metadata__"])
    changed = parts.with_text(json.dumps(parts.victim), json.dumps(name))
    return changed._replace(names={parts.victim, name[:10]})


def add_empty(parts: Parts, random: Random) -> Mutation:
    """Add an entry without data, which is valid unless its offset or its shape is wrong."""
    entry = {"dtype": random.choice(["F32", "F4", "U64"]), "shape": random.choice([[0], [3, 0], [0, 2**62], [2]]),
             "data_offsets": [random.choice([0, len(parts.numbers), 2])] * 2}
    return Mutation(put_together(parts.header | {"added": entry}, parts.numbers), {"added"})


Change = Callable[[Parts, Random], Mutation]
OF_BYTES: dict[str, Callable[[bytes, Random], Mutation]] = {
    "flip": flip, "length": claim_another_length, "truncate": truncate, "extend": extend}
OF_ENTRIES: dict[str, Change] = {
    "move": move, "misplace": misplace, "resize": resize, "reshape": reshape, "retype": retype, "overlap": overlap,
    "drop": drop, "fields": rewrite_fields, "repeat": repeat, "nest": nest, "rename": rename, "add": add_empty}
KINDS = [*OF_BYTES, *OF_ENTRIES]
