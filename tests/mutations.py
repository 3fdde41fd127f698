"""A safetensors file with something wrong in its header: where, and how, follows from a seed.

    mutation = mutate(path.read_bytes(), "shape", Random(5))

Says which tensors a complaint may name. Nothing here reads headers as our reader does: what a flipped byte changed is
seen by the standard library's JSON.
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
    names: set[str]  # of which a complaint names one; nothing where no entry in particular is wrong


class Parts(NamedTuple):
    """A file taken apart, and the tensor that something happens to."""

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
    """The text of the header, and the numbers."""
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
    """Names of the entries that only one of two headers has; none when it is not to be understood any more."""
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
    """One end, or both, by little or by much, backwards, or to where there is nothing."""
    offsets = list(parts.entry["data_offsets"])
    by = random.choice([1, -1, 4, -4, 1024, len(parts.numbers), -len(parts.numbers)])
    for end in random.choice([[0], [1], [0, 1]]):
        offsets[end] += by
    return parts.with_entry(data_offsets=random.choice([offsets, offsets, offsets, offsets[::-1]]))


def misplace(parts: Parts, random: Random) -> Mutation:
    """Offsets that are none."""
    offsets: list[Any] = list(parts.entry["data_offsets"])
    offsets[random.randrange(2)] = random.choice([*HUGE, *NOT_COUNTS])
    return parts.with_entry(data_offsets=random.choice([offsets, offsets, [], offsets * 2, offsets[0], None, "0, 4"]))


def resize(parts: Parts, random: Random) -> Mutation:
    shape: list[Any] = list(parts.entry["shape"])
    place = random.randrange(len(shape))
    shape[place] = random.choice([shape[place] + 1, shape[place] - 1, shape[place] * 2, 0, *HUGE, *NOT_COUNTS])
    return parts.with_entry(shape=shape)


def reshape(parts: Parts, random: Random) -> Mutation:
    """The same count of numbers, or one that overflows to the same."""
    shape = parts.entry["shape"]
    return parts.with_entry(shape=random.choice([
        shape[::-1] if shape != shape[::-1] else [*shape, 1], [1, *shape], [*shape, 2**32, 2**32], [2**33, 2**31],
        [0, 2**62, 2**62], [*shape, *[1] * 100], [*shape, 2**64 + 1], [-size for size in shape],
        [[size] for size in shape], [], {}, None, "4, 4"]))


def retype(parts: Parts, random: Random) -> Mutation:
    return parts.with_entry(dtype=random.choice(TYPES))


def overlap(parts: Parts, random: Random) -> Mutation:
    """It says that its numbers are where another's begin."""
    other = random.choice(sorted(parts.header.keys() - {"__metadata__", parts.victim}))
    begin, end = parts.entry["data_offsets"]
    place = min(parts.header[other]["data_offsets"][0], len(parts.numbers) - (end - begin))
    return Mutation(parts.with_entry(data_offsets=[place, place + end - begin]).content, set(parts.header))


def drop(parts: Parts, random: Random) -> Mutation:
    """Its numbers stay, and belong to nobody."""
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
    """An entry, or a field in an entry, stands there twice."""
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
    """To nothing, to what cannot be printed, to half a character, to something endless, to another name."""
    name = random.choice([
        "", "\n", "a\0b", "\x1b[2J", "\ud800", "x" * 1000, "ü", "a" + parts.victim, "__metadata__"])
    changed = parts.with_text(json.dumps(parts.victim), json.dumps(name))
    return changed._replace(names={parts.victim, name[:10]})


def add_empty(parts: Parts, random: Random) -> Mutation:
    """Nothing is wrong with a tensor without numbers; at the wrong place, or with the wrong shape, there is."""
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
