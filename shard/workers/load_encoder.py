"""Loading of an encoder from settings, as `load_decoder.py` does for models that generate.

Every user error is a ValueError.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from shard.adapters.registry import Wardrobe
from shard.config import ShardConfig
from shard.host.device import kind_of
from shard.host.probe_cache import fingerprint
from shard.models.encoder import EncoderConfig
from shard.models.read_config import read_config
from shard.models.registry import load_encoder
from shard.parallel.group import Group
from shard.runner.encoder_exactness import verdict
from shard.runner.encoder_runner import Encoding
from shard.runner.pooling import read_pooling
from shard.telemetry.startup_progress import CHECK, OnProgress, untold
from shard.workers.load_decoder import examine, prepare, read_weights


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    name: str
    config: EncoderConfig
    encoding: Encoding
    group: Group
    device: torch.device
    dtype: torch.dtype
    inexact: str  # why answers may depend on the rest of the batch, or empty
    wardrobe: Wardrobe
    adapter_room: Callable[[], int]  # bytes for adapters


def load(config: ShardConfig, on_progress: OnProgress = untold) -> LoadedEncoder:
    folder = Path(config.model)
    described = read_config(folder)
    assert isinstance(described, EncoderConfig)
    pooling = read_pooling(folder, "mean", described.hidden_size, config.embedding_dim)
    footing = prepare(config, described)
    device, group, wardrobe = footing.device, footing.group, footing.wardrobe
    model = read_weights(config, footing, described, load_encoder, on_progress)
    shape = asdict(described) | {"dtype": footing.dtype, "ranks": group.size, "device": kind_of(device),
                                 "quantize": config.quantize, "adaptable": config.adaptable, "exact": config.exact}
    on_progress(CHECK, 0, 0)
    look = partial(verdict, model.cut(1), device)
    inexact = examine(lambda: look() or wardrobe.verdict(), group, footing.memory, fingerprint(shape),
                      demanded=config.exact)
    encoding = Encoding(model, pooling, wardrobe.bearers, device)
    return LoadedEncoder(config.model, described, encoding, group, device, footing.dtype, inexact, wardrobe,
                         partial(footing.adapter_room, config.adapter_memory_fraction))
