"""Test that `--exact` gives a request the same bits in every batch on a GPU."""

from pathlib import Path
from random import Random

import pytest
from support.core_with_workers import Loom, Thread
from support.small_checkpoints import tiny_checkpoint

from router.request import Request, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]  # `--exact` applies to a whole process: this file has its own

BATCHES = {"cuda": 200, "cpu": 5}
# On a GPU, sizes whose sums are long enough for kernels to split them.
SIZES = {"cuda": {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8,
                  "head_dim": 64, "num_hidden_layers": 2}, "cpu": {}}


def drawn(rng: Random, name: str) -> Request:
    prompt = tuple(rng.randrange(2, 512) for _ in range(rng.choice([1, 16, 33, 100, 180])))
    return Request(name, prompt, rng.randrange(1, 40), key=rng.getrandbits(64),
                   sampling=SamplingParams(temperature=rng.choice([0.0, 0.7]), top_k=rng.choice([0, 20])))


def test_a_request_has_one_answer_in_two_hundred_batches(tmp_path: Path, device: str) -> None:
    folder = tiny_checkpoint(tmp_path, "llama", dtype="bfloat16", **SIZES[device])
    rng = Random(1)
    observed = [Request(str(length), tuple(range(2, 2 + length)), 24) for length in (7, 120)]
    with Loom(folder, device=device, exact=True, max_batch_size=64, num_places=64 * 256) as loom:
        assert loom.infos[0].exact
        for batch in range(BATCHES[device]):
            others = [drawn(rng, f"{batch}-{number}") for number in range(rng.choice([1, 3, 12, 40, 62]))]
            threads = [Thread(request, arrival=rng.randrange(12)) for request in observed + others]
            heard = loom.weave(threads, look_ahead=rng.choice([1, 2]), prefill_policy=rng.choice(["mixed", "pause"]))
            assert heard[:len(observed)] == [loom.alone(request) for request in observed]
