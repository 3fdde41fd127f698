"""Invalid adapters: the two files of a valid one with a defect, which a number selects.

There are a few kinds of defects, none of which a server may accept: some show in the header, some in the config, some
only in comparison with the model. The tests have a larger set in a module of their own.
"""

import json
import struct
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Files = Mapping[str, bytes]
Header = dict[str, Any]


def spoiled(files: Files, number: int) -> dict[str, bytes]:
    """Return the files with a defect; consecutive numbers cycle through the kinds."""
    name, kind = list(KINDS.items())[number % len(KINDS)]
    return {**files, **kind(files, Random(f"{name} {number}"))}


def take_apart(weights: bytes) -> tuple[Header, bytes]:
    end = 8 + int.from_bytes(weights[:8], "little")
    return json.loads(weights[8:end]), weights[end:]


def put_together(header: Header, numbers: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + numbers


def picked(header: Header, random: Random) -> str:
    return random.choice(sorted(header))


# ---------------------------------------------------------------------------------------------------------------------
# Detected in the header


def cut(files: Files, random: Random) -> Files:
    return {WEIGHTS: files[WEIGHTS][:random.randrange(len(files[WEIGHTS]))]}


def lengthen(files: Files, random: Random) -> Files:
    return {WEIGHTS: files[WEIGHTS] + random.randbytes(random.randint(1, 5000))}


def claim_another_length(files: Files, random: Random) -> Files:
    return {WEIGHTS: struct.pack("<Q", random.getrandbits(63)) + files[WEIGHTS][8:]}


def break_the_text(files: Files, random: Random) -> Files:
    """Replace a byte of the header by one that is invalid in UTF-8."""
    weights = files[WEIGHTS]
    place = random.randrange(8, 8 + int.from_bytes(weights[:8], "little"))
    return {WEIGHTS: weights[:place] + b"\xff" + weights[place + 1:]}


def change_an_entry(files: Files, random: Random, **changes: Any) -> Files:
    header, numbers = take_apart(files[WEIGHTS])
    name = picked(header, random)
    return {WEIGHTS: put_together(header | {name: header[name] | changes}, numbers)}


def call_the_type_otherwise(files: Files, random: Random) -> Files:
    return change_an_entry(files, random, dtype=f"F{random.randint(65, 999)}")


def claim_another_shape(files: Files, random: Random) -> Files:
    return change_an_entry(files, random, shape=[random.randint(2**20, 2**62), random.randint(1, 64)])


def point_elsewhere(files: Files, random: Random) -> Files:
    begin = random.randint(len(files[WEIGHTS]), 2**62)
    return change_an_entry(files, random, data_offsets=[begin, begin + 64])


# ---------------------------------------------------------------------------------------------------------------------
# Detected in the config


def break_the_config(files: Files, random: Random) -> Files:
    return {CONFIG: files[CONFIG][:random.randrange(len(files[CONFIG]))]}


def ask_for_another_method(files: Files, random: Random) -> Files:
    return {CONFIG: json.dumps(json.loads(files[CONFIG]) | {"peft_type": f"METHOD{random.random()}"}).encode()}


# ---------------------------------------------------------------------------------------------------------------------
# Detected by comparison with the model


def claim_another_rank(files: Files, random: Random) -> Files:
    config = json.loads(files[CONFIG])
    return {CONFIG: json.dumps(config | {"r": config["r"] + random.randint(1, 500)}).encode()}


def belong_to_nothing(files: Files, random: Random) -> Files:
    header, numbers = take_apart(files[WEIGHTS])
    other = f"other_{random.getrandbits(40)}"
    return {WEIGHTS: put_together({name.replace("q_proj", other): entry for name, entry in header.items()}, numbers)}


def turn_the_matrices(files: Files, random: Random) -> Files:
    """Transpose all shapes, as in a model of another width; random metadata makes each file different."""
    header, numbers = take_apart(files[WEIGHTS])
    turned = {name: entry | {"shape": entry["shape"][::-1]} for name, entry in header.items()}
    return {WEIGHTS: put_together({"__metadata__": {"number": str(random.random())}} | turned, numbers)}


KINDS: dict[str, Callable[[Files, Random], Files]] = {
    one.__name__: one for one in (
        cut, lengthen, claim_another_length, break_the_text, call_the_type_otherwise, claim_another_shape,
        point_elsewhere, break_the_config, ask_for_another_method, claim_another_rank, belong_to_nothing,
        turn_the_matrices)}
