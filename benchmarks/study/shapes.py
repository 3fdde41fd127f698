"""Models of the study, as settings of a shard and a router.

These are shapes of published models with random weights, a model in a folder, or a simulation with the costs of the
study's GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.checkpoints import SHAPES, make

SIMULATED, DEMO = "simulated", "demo"
NAMES = (SIMULATED, "gpt2-medium", "qwen2.5-0.5b", DEMO, "tiny")

# Without a KV cache, a forward pass over n tokens takes a + c n. From the study's results, a single request takes 18 ms
# per token, and a pass with eight requests in flight takes 100 ms. Its requests for 5 to 145 tokens have a mean length
# of 59 over their passes, where a letter of a prompt is a token. So a + 59 c = 18 ms and a + 8 * 59 c = 100 ms.
MEAN_LENGTH, SOLO_SECONDS, EIGHT_SECONDS = 59, 0.018, 0.100
TOKEN_SECONDS = (EIGHT_SECONDS - SOLO_SECONDS) / (7 * MEAN_LENGTH)
PASS_SECONDS = SOLO_SECONDS - MEAN_LENGTH * TOKEN_SECONDS
MEAN_SERVICE = 11.02 / 8  # seconds of a single request in the study: with eight in flight, each takes 8 times that
TOGETHER_THERE = 8 / EIGHT_SECONDS  # tokens per second in the study with eight requests in flight
COMES_WITH_WEFT = Path(__file__).parents[2] / "launcher" / "demo" / "model"
CACHE_TOKENS = 16_384  # for 64 requests of 256: none is longer


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    folder: str = ""  # of a model
    shard: Mapping[str, Any] = field(default_factory=dict)  # its settings
    router: Mapping[str, Any] = field(default_factory=dict)


def simulated(pace: float) -> Shape:
    """Return a simulated shape, `pace` times faster than the study's GPU. A decode costs as much as a prompt token."""
    costs = {"seconds_per_step": PASS_SECONDS / pace, "seconds_per_row": TOKEN_SECONDS / pace,
             "seconds_per_chunk_token": TOKEN_SECONDS / pace, "seconds_per_place": 0.0, "mean_output_length": 0.0}
    return Shape(SIMULATED, shard={"simulated": costs})


def real(name: str, folder: Path) -> Shape:
    """Return the shape of a model, with the same cache size on every machine, so that memory has no influence."""
    return Shape(name, str(folder.resolve()), router={"max_batch_total_tokens": CACHE_TOKENS})


def shape_of(name: str, models: Path, demo: Path, pace: float) -> Shape:
    """Return the shape of this name; create its random weights if necessary."""
    if name == SIMULATED:
        return simulated(pace)
    if name in SHAPES:
        return real(name, make(name, models / name))
    if not (demo / "config.json").exists():
        raise ValueError(f"--shapes {DEMO}: there is no model in {demo} (no config.json); --demo says where one is")
    return real(DEMO, demo)
