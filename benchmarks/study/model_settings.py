"""Models of the study, as settings of a shard and a router.

These are shapes of published models with random weights, a model in a folder, or a simulation with the costs of the
study's GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.random_checkpoints import MODEL_CONFIGS, make_random_checkpoint

SIMULATED, DEMO = "simulated", "demo"
SHAPE_NAMES = (SIMULATED, "gpt2-medium", "qwen2.5-0.5b", DEMO, "tiny")

# Without a KV cache, a forward pass over n tokens takes a + c n. From the study's results, a single request takes 18 ms
# per token, and a pass with eight requests in flight takes 100 ms. Its requests for 5 to 145 tokens have a mean length
# of 59 over their passes, where a letter of a prompt is a token. So a + 59 c = 18 ms and a + 8 * 59 c = 100 ms.
MEAN_PASS_TOKENS, SOLO_PASS_SECONDS, EIGHT_REQUESTS_PASS_SECONDS = 59, 0.018, 0.100
SECONDS_PER_TOKEN = (EIGHT_REQUESTS_PASS_SECONDS - SOLO_PASS_SECONDS) / (7 * MEAN_PASS_TOKENS)
SECONDS_PER_PASS = SOLO_PASS_SECONDS - MEAN_PASS_TOKENS * SECONDS_PER_TOKEN
# seconds of a single request in the study: with eight in flight, each takes 8 times that
STUDY_MEAN_REQUEST_SECONDS = 11.02 / 8
# tokens per second in the study with eight requests in flight
STUDY_TOKENS_PER_SECOND = 8 / EIGHT_REQUESTS_PASS_SECONDS
DEMO_MODEL_FOLDER = Path(__file__).parents[2] / "launcher" / "demo" / "model"
CACHE_TOKENS = 16_384  # for 64 requests of 256: none is longer


@dataclass(frozen=True, slots=True)
class StudyModel:
    """A model of the study, real or simulated, with settings for its shard and router."""

    name: str
    model_folder: str = ""  # of a model
    shard_settings: Mapping[str, Any] = field(default_factory=dict)  # its settings
    router_settings: Mapping[str, Any] = field(default_factory=dict)


def make_simulated_model(speedup: float) -> StudyModel:
    """Return a simulated shape, `speedup` times faster than the study's GPU. A decode costs as much as a prompt
    token."""
    costs = {"seconds_per_step": SECONDS_PER_PASS / speedup, "seconds_per_row": SECONDS_PER_TOKEN / speedup,
             "seconds_per_chunk_token": SECONDS_PER_TOKEN / speedup, "seconds_per_place": 0.0,
             "mean_output_length": 0.0}
    return StudyModel(SIMULATED, shard_settings={"simulated": costs})


def make_real_model(name: str, model_folder: Path) -> StudyModel:
    """Return the shape of a model, with the same cache size on every machine, so that memory has no influence."""
    return StudyModel(name, str(model_folder.resolve()), router_settings={"max_batch_total_tokens": CACHE_TOKENS})


def resolve_study_model(name: str, models_folder: Path, demo_folder: Path, speedup: float) -> StudyModel:
    """Return the shape of this name; create its random weights if necessary."""
    if name == SIMULATED:
        return make_simulated_model(speedup)
    if name in MODEL_CONFIGS:
        return make_real_model(name, make_random_checkpoint(name, models_folder / name))
    if not (demo_folder / "config.json").exists():
        raise ValueError(
            f"--shapes {DEMO}: there is no model in {demo_folder} (no config.json); --demo says where one is")
    return make_real_model(DEMO, demo_folder)
