"""Test that `--exact` gives a request the same bits in every batch on a GPU."""

from pathlib import Path
from random import Random

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.shards.scheduler_with_workers import ScheduledRequest, SchedulerWithWorkers

from router.request import Request, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]  # `--exact` applies to a whole process: this file has its own

NUM_BATCHES = {"cuda": 200, "cpu": 5}
# On a GPU, sizes whose sums are long enough for kernels to split them.
MODEL_SIZES = {"cuda": {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
                        "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 2}, "cpu": {}}


def make_random_request(rng: Random, name: str) -> Request:
    prompt = tuple(rng.randrange(2, 512) for _ in range(rng.choice([1, 16, 33, 100, 180])))
    return Request(name, prompt, rng.randrange(1, 40), sampling_key=rng.getrandbits(64),
                   sampling=SamplingParams(temperature=rng.choice([0.0, 0.7]), top_k=rng.choice([0, 20])))


def test_a_request_has_the_same_answer_in_every_batch(tmp_path: Path, device: str) -> None:
    folder = make_tiny_checkpoint(tmp_path, "llama", dtype="bfloat16", **MODEL_SIZES[device])
    rng = Random(1)
    observed_requests = [Request(str(length), tuple(range(2, 2 + length)), 24) for length in (7, 120)]
    with SchedulerWithWorkers(folder, device=device, exact=True, max_batch_size=64, num_places=64 * 256) as harness:
        assert harness.infos[0].exact
        for batch in range(NUM_BATCHES[device]):
            other_requests = [make_random_request(rng, f"{batch}-{number}")
                              for number in range(rng.choice([1, 3, 12, 40, 62]))]
            scheduled_requests = [ScheduledRequest(request, arrival_step=rng.randrange(12))
                                  for request in observed_requests + other_requests]
            outputs = harness.run_together(scheduled_requests, look_ahead=rng.choice([1, 2]),
                                           prefill_policy=rng.choice(["mixed", "pause"]))
            assert outputs[:len(observed_requests)] == [harness.run_alone(request) for request in observed_requests]
