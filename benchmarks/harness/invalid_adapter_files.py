"""Invalid adapters: the two files of a valid one with a defect, which a number selects.

There are a few kinds of defects, none of which a server may accept: some show in the header, some in the config, some
only in comparison with the model. The tests have a larger set in a module of their own.
"""

import json
import struct
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
AdapterFiles = Mapping[str, bytes]
SafetensorsHeader = dict[str, Any]


def add_defect(files: AdapterFiles, defect_number: int) -> dict[str, bytes]:
    """Return the files with a defect; consecutive numbers cycle through the kinds."""
    name, make_defect = list(DEFECTS.items())[defect_number % len(DEFECTS)]
    return {**files, **make_defect(files, Random(f"{name} {defect_number}"))}


def split_safetensors(weights: bytes) -> tuple[SafetensorsHeader, bytes]:
    end = 8 + int.from_bytes(weights[:8], "little")
    return json.loads(weights[8:end]), weights[end:]


def join_safetensors(header: SafetensorsHeader, tensor_bytes: bytes) -> bytes:
    header_bytes = json.dumps(header).encode()
    return struct.pack("<Q", len(header_bytes)) + header_bytes + tensor_bytes


def choose_tensor_name(header: SafetensorsHeader, random: Random) -> str:
    return random.choice(sorted(header))


# ---------------------------------------------------------------------------------------------------------------------
# Detected in the header


def truncate_weights(files: AdapterFiles, random: Random) -> AdapterFiles:
    return {WEIGHTS_FILE: files[WEIGHTS_FILE][:random.randrange(len(files[WEIGHTS_FILE]))]}


def append_random_bytes(files: AdapterFiles, random: Random) -> AdapterFiles:
    return {WEIGHTS_FILE: files[WEIGHTS_FILE] + random.randbytes(random.randint(1, 5000))}


def corrupt_header_length(files: AdapterFiles, random: Random) -> AdapterFiles:
    return {WEIGHTS_FILE: struct.pack("<Q", random.getrandbits(63)) + files[WEIGHTS_FILE][8:]}


def corrupt_header_text(files: AdapterFiles, random: Random) -> AdapterFiles:
    """Replace a byte of the header by one that is invalid in UTF-8."""
    weights = files[WEIGHTS_FILE]
    offset = random.randrange(8, 8 + int.from_bytes(weights[:8], "little"))
    return {WEIGHTS_FILE: weights[:offset] + b"\xff" + weights[offset + 1:]}


def change_header_entry(files: AdapterFiles, random: Random, **changes: Any) -> AdapterFiles:
    header, tensor_bytes = split_safetensors(files[WEIGHTS_FILE])
    name = choose_tensor_name(header, random)
    return {WEIGHTS_FILE: join_safetensors(header | {name: header[name] | changes}, tensor_bytes)}


def set_unknown_dtype(files: AdapterFiles, random: Random) -> AdapterFiles:
    return change_header_entry(files, random, dtype=f"F{random.randint(65, 999)}")


def set_oversized_shape(files: AdapterFiles, random: Random) -> AdapterFiles:
    return change_header_entry(files, random, shape=[random.randint(2**20, 2**62), random.randint(1, 64)])


def set_offsets_beyond_file(files: AdapterFiles, random: Random) -> AdapterFiles:
    begin = random.randint(len(files[WEIGHTS_FILE]), 2**62)
    return change_header_entry(files, random, data_offsets=[begin, begin + 64])


# ---------------------------------------------------------------------------------------------------------------------
# Detected in the config


def truncate_config(files: AdapterFiles, random: Random) -> AdapterFiles:
    return {CONFIG_FILE: files[CONFIG_FILE][:random.randrange(len(files[CONFIG_FILE]))]}


def set_unknown_peft_type(files: AdapterFiles, random: Random) -> AdapterFiles:
    return {CONFIG_FILE: json.dumps(json.loads(files[CONFIG_FILE])
                                    | {"peft_type": f"METHOD{random.random()}"}).encode()}


# ---------------------------------------------------------------------------------------------------------------------
# Detected by comparison with the model


def set_wrong_rank(files: AdapterFiles, random: Random) -> AdapterFiles:
    config = json.loads(files[CONFIG_FILE])
    return {CONFIG_FILE: json.dumps(config | {"r": config["r"] + random.randint(1, 500)}).encode()}


def rename_targets_to_unknown(files: AdapterFiles, random: Random) -> AdapterFiles:
    header, tensor_bytes = split_safetensors(files[WEIGHTS_FILE])
    unknown_target = f"other_{random.getrandbits(40)}"
    return {WEIGHTS_FILE: join_safetensors({name.replace("q_proj", unknown_target): entry
                                            for name, entry in header.items()}, tensor_bytes)}


def transpose_shapes(files: AdapterFiles, random: Random) -> AdapterFiles:
    """Transpose all shapes, as in a model of another width; random metadata makes each file different."""
    header, tensor_bytes = split_safetensors(files[WEIGHTS_FILE])
    transposed = {name: entry | {"shape": entry["shape"][::-1]} for name, entry in header.items()}
    return {WEIGHTS_FILE: join_safetensors({"__metadata__": {"number": str(random.random())}} | transposed,
                                           tensor_bytes)}


DEFECTS: dict[str, Callable[[AdapterFiles, Random], AdapterFiles]] = {
    one.__name__: one for one in (
        truncate_weights, append_random_bytes, corrupt_header_length, corrupt_header_text, set_unknown_dtype,
        set_oversized_shape,
        set_offsets_beyond_file, truncate_config, set_unknown_peft_type, set_wrong_rank, rename_targets_to_unknown,
        transpose_shapes)}
