"""Safetensors files with a defect in the header that is drawn from a seed.

    mutated = mutate_file(path.read_bytes(), "reshape", Random(5))

A mutated file has the names of the tensors that an error message may name. Our own reader of headers is not used here:
the effect of a flipped byte is found by the standard library's JSON parser.
"""

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

HUGE_NUMBERS = [2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]
INVALID_COUNTS = [-1, 4.0, True, None, "4", [4], {}, float("nan"), 1e300]
WRONG_DTYPES = ["F33", "f32", "", "F16", "BF16", "F64", "I8", "U64", "I32", "F4", "F8_E8M0", "C64", None, 32,
                ["F32"], True]


class MutatedFile(NamedTuple):
    content: bytes
    names: set[str]  # an error message names one of these; empty where no particular entry is wrong


class ParsedFile(NamedTuple):
    """A parsed file and the name of the tensor whose entry is mutated."""

    header: dict[str, Any]
    tensor_bytes: bytes
    target_name: str

    @property
    def target_entry(self) -> dict[str, Any]:
        return dict(self.header[self.target_name])

    def change_target_entry(self, **changes: Any) -> MutatedFile:
        return MutatedFile(join_safetensors(self.header | {self.target_name: self.target_entry | changes},
                                            self.tensor_bytes), {self.target_name})

    def replace_header_text(self, old: str, new: str) -> MutatedFile:
        text = json.dumps(self.header)
        assert old in text
        return MutatedFile(join_safetensors(text.replace(old, new, 1), self.tensor_bytes), {self.target_name})


def join_safetensors(header: dict[str, Any] | str, tensor_bytes: bytes) -> bytes:
    header_bytes = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(header_bytes)) + header_bytes + tensor_bytes


def split_safetensors(content: bytes) -> tuple[bytes, bytes]:
    """Split a file into the text of its header and the data of its tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    return content[8:end], content[end:]


def mutate_file(content: bytes, mutation_kind: str, random: Random) -> MutatedFile:
    if mutation_kind in BYTE_MUTATIONS:
        return BYTE_MUTATIONS[mutation_kind](content, random)
    text, tensor_bytes = split_safetensors(content)
    header = json.loads(text)
    target_name = random.choice(sorted(header.keys() - {"__metadata__"}))
    return ENTRY_MUTATIONS[mutation_kind](ParsedFile(header, tensor_bytes, target_name), random)


# ---------------------------------------------------------------------------------------------------------------------
# Bytes


def flip_header_bytes(content: bytes, random: Random) -> MutatedFile:
    text, tensor_bytes = split_safetensors(content)
    flipped = bytearray(text)
    for _ in range(random.randint(1, 3)):
        flipped[random.randrange(len(text))] ^= random.randint(1, 255)
    return MutatedFile(content[:8] + flipped + tensor_bytes, find_differing_names(text, bytes(flipped)))


def find_differing_names(before: bytes, after: bytes) -> set[str]:
    """Return the names of entries that only one of two headers has; empty if one header is not valid JSON."""
    try:
        old, new = (json.loads(str(text, "utf-8"), object_pairs_hook=list) for text in (before, after))
    except ValueError:
        return set()
    return {pair[0] for one, other in ((old, new), (new, old)) for pair in one if pair not in other}


def change_header_length(content: bytes, random: Random) -> MutatedFile:
    length = int.from_bytes(content[:8], "little")
    similar_length = length + random.choice([-1, 1]) * random.randint(1, 200)
    new_length = random.choice([similar_length, random.getrandbits(64), random.randrange(len(content)), 0, 1,
                                *HUGE_NUMBERS[:6]])
    return MutatedFile(struct.pack("<Q", new_length) + content[8:], set())


def truncate_file(content: bytes, random: Random) -> MutatedFile:
    return MutatedFile(content[:random.randrange(len(content))], set())


def extend_file(content: bytes, random: Random) -> MutatedFile:
    return MutatedFile(content + random.randbytes(random.randint(1, 5000)), set())


# ---------------------------------------------------------------------------------------------------------------------
# Entries


def shift_offsets(parsed: ParsedFile, random: Random) -> MutatedFile:
    """Shift one or both data offsets by a few or many bytes, also beyond the file, and sometimes swap them."""
    offsets = list(parsed.target_entry["data_offsets"])
    shift = random.choice([1, -1, 4, -4, 1024, len(parsed.tensor_bytes), -len(parsed.tensor_bytes)])
    for end in random.choice([[0], [1], [0, 1]]):
        offsets[end] += shift
    return parsed.change_target_entry(data_offsets=random.choice([offsets, offsets, offsets, offsets[::-1]]))


def set_invalid_offsets(parsed: ParsedFile, random: Random) -> MutatedFile:
    """Replace data offsets by values that are not valid offsets."""
    offsets: list[Any] = list(parsed.target_entry["data_offsets"])
    offsets[random.randrange(2)] = random.choice([*HUGE_NUMBERS, *INVALID_COUNTS])
    return parsed.change_target_entry(data_offsets=random.choice([offsets, offsets, [], offsets * 2, offsets[0], None,
                                                                  "0, 4"]))


def change_one_dimension(parsed: ParsedFile, random: Random) -> MutatedFile:
    shape: list[Any] = list(parsed.target_entry["shape"])
    dimension = random.randrange(len(shape))
    shape[dimension] = random.choice([shape[dimension] + 1, shape[dimension] - 1, shape[dimension] * 2, 0,
                                      *HUGE_NUMBERS, *INVALID_COUNTS])
    return parsed.change_target_entry(shape=shape)


def change_shape(parsed: ParsedFile, random: Random) -> MutatedFile:
    """Change the shape: same number of elements, a number that overflows, or no shape at all."""
    shape = parsed.target_entry["shape"]
    return parsed.change_target_entry(shape=random.choice([
        shape[::-1] if shape != shape[::-1] else [*shape, 1], [1, *shape], [*shape, 2**32, 2**32], [2**33, 2**31],
        [0, 2**62, 2**62], [*shape, *[1] * 100], [*shape, 2**64 + 1], [-size for size in shape],
        [[size] for size in shape], [], {}, None, "4, 4"]))


def change_dtype(parsed: ParsedFile, random: Random) -> MutatedFile:
    return parsed.change_target_entry(dtype=random.choice(WRONG_DTYPES))


def overlap_other_tensor(parsed: ParsedFile, random: Random) -> MutatedFile:
    """Point the entry to the start of another tensor's data."""
    other_name = random.choice(sorted(parsed.header.keys() - {"__metadata__", parsed.target_name}))
    start, end = parsed.target_entry["data_offsets"]
    new_start = min(parsed.header[other_name]["data_offsets"][0], len(parsed.tensor_bytes) - (end - start))
    return MutatedFile(parsed.change_target_entry(data_offsets=[new_start, new_start + end - start]).content,
                       set(parsed.header))


def remove_entry(parsed: ParsedFile, random: Random) -> MutatedFile:
    """Remove the entry but keep its data, which then belongs to no tensor."""
    header = {name: entry for name, entry in parsed.header.items() if name != parsed.target_name}
    return MutatedFile(join_safetensors(header, parsed.tensor_bytes), set(parsed.header))


def change_entry_fields(parsed: ParsedFile, random: Random) -> MutatedFile:
    entry = parsed.target_entry
    name = random.choice(sorted(entry))
    without = {key: value for key, value in entry.items() if key != name}
    changed = random.choice([
        without, without | {name.upper(): entry[name]}, entry | {"strides": [1]}, entry | {"": 0}, {}, [], list(entry),
        None, 5, "F32", {"a": entry}, [entry]])
    return MutatedFile(join_safetensors(parsed.header | {parsed.target_name: changed}, parsed.tensor_bytes),
                       {parsed.target_name})


def repeat_entry(parsed: ParsedFile, random: Random) -> MutatedFile:
    """Write an entry, or a field of an entry, twice."""
    entry, name = parsed.target_entry, json.dumps(parsed.target_name)
    field = random.choice(sorted(entry))
    other_entry = random.choice([entry, parsed.header[random.choice(sorted(parsed.header))]])
    text, escaped = f"{name}: {json.dumps(entry)}", f'"\\u00{ord(parsed.target_name[0]):x}{name[2:]}'
    return parsed.replace_header_text(text, random.choice([
        f"{text}, {name}: {json.dumps(other_entry)}", f"{text}, {escaped}: {json.dumps(other_entry)}",
        f'{text[:-1]}, "{field}": {json.dumps(entry[field])}}}']))


def nest_values_deeply(parsed: ParsedFile, random: Random) -> MutatedFile:
    depth = random.choice([2, 50, 500, 1500, 100_000])
    opened, closed = random.choice([("[", "]"), ('{"a": ', "}")])
    value = opened * depth + random.choice(["", "1"]) + closed * random.choice([depth, depth - 1])
    entry = parsed.target_entry
    field = random.choice(["dtype", "shape", "data_offsets", ""])
    text = f"{json.dumps(parsed.target_name)}: "
    return parsed.replace_header_text(text + json.dumps(entry), text + (
        json.dumps(entry | {field: "HERE"}).replace('"HERE"', value) if field else value))


def rename_entry(parsed: ParsedFile, random: Random) -> MutatedFile:
    """Rename the entry to an empty, unprintable, very long or other name, or to half a surrogate pair."""
    name = random.choice([
        "", "\n", "a\0b", "\x1b[2J", "\ud800", "x" * 1000, "ü", "a" + parsed.target_name, "__metadata__"])
    changed = parsed.replace_header_text(json.dumps(parsed.target_name), json.dumps(name))
    return changed._replace(names={parsed.target_name, name[:10]})


def add_empty_entry(parsed: ParsedFile, random: Random) -> MutatedFile:
    """Add an entry without data, which is valid unless its offset or its shape is wrong."""
    entry = {"dtype": random.choice(["F32", "F4", "U64"]), "shape": random.choice([[0], [3, 0], [0, 2**62], [2]]),
             "data_offsets": [random.choice([0, len(parsed.tensor_bytes), 2])] * 2}
    return MutatedFile(join_safetensors(parsed.header | {"added": entry}, parsed.tensor_bytes), {"added"})


EntryMutation = Callable[[ParsedFile, Random], MutatedFile]
BYTE_MUTATIONS: dict[str, Callable[[bytes, Random], MutatedFile]] = {
    "flip": flip_header_bytes, "length": change_header_length, "truncate": truncate_file, "extend": extend_file}
ENTRY_MUTATIONS: dict[str, EntryMutation] = {
    "move": shift_offsets, "misplace": set_invalid_offsets, "resize": change_one_dimension, "reshape": change_shape,
    "retype": change_dtype, "overlap": overlap_other_tensor, "drop": remove_entry, "fields": change_entry_fields,
    "repeat": repeat_entry, "nest": nest_values_deeply, "rename": rename_entry, "add": add_empty_entry}
MUTATION_KINDS = [*BYTE_MUTATIONS, *ENTRY_MUTATIONS]
