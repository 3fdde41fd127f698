"""A real worker generates transformers' tokens: alone, in any batch, in chunks, and after a preemption."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.small_checkpoints import LLAMA3_ROPE, make_tiny_checkpoint
from support.shards.protocol_messages import SequenceRow, make_concat, make_decode, make_filter, make_prefill
from support.shards.scheduler_with_workers import ScheduledRequest, SchedulerWithWorkers
from transformers import AutoModelForCausalLM, PreTrainedModel

from router.request import Request
from shard.pb import shard_pb2 as pb

NUM_NEW_TOKENS = 22
MODEL_OPTIONS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "rope_parameters": LLAMA3_ROPE},
    "qwen2": {"family": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"family": "qwen3"},
    "gpt_neox": {"family": "gpt_neox"},
    "gpt2": {"family": "gpt2"},
    "starcoder2": {"family": "starcoder2", "sliding_window": 48},
    "falcon": {"family": "falcon", "num_kv_heads": 4},
    "mixtral": {"family": "mixtral"},
    "qwen3_moe": {"family": "qwen3_moe"},
    "mistral": {"family": "mistral"},
    "gemma": {"family": "gemma"},
    "gemma2": {"family": "gemma2"},
    "gemma3": {"family": "gemma3"},
    "phi3": {"family": "phi3"},
    "cohere": {"family": "cohere", "use_qk_norm": True},
    "olmo2": {"family": "olmo2"},
}
QUICK_MODELS = ("llama", "qwen2", "qwen3")  # tests/shard/test_families.py has quick tests of the others
# tests/shard/test_families.py has two ranks of these
MODELS_ON_TWO_RANKS_ELSEWHERE = ("falcon", "gpt2", "qwen3_moe", "gemma3", "phi3")
MODEL_PARAMETERS = [pytest.param(name, marks=[] if name in QUICK_MODELS else pytest.mark.long)
                    for name in MODEL_OPTIONS]
LOGIT_TOLERANCE, MIN_NEAR_SHARE = 1e-3, 0.75
HEAD_COUNTS = {"num_attention_heads": 8, "num_key_value_heads": 4}  # enough for four ranks


@pytest.fixture(scope="module", params=MODEL_PARAMETERS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), **MODEL_OPTIONS[request.param] | HEAD_COUNTS)


@pytest.fixture(scope="module")
def scheduler_with_workers(checkpoint: Path) -> Iterator[SchedulerWithWorkers]:
    with SchedulerWithWorkers(checkpoint) as harness:
        yield harness


@cache
def load_transformers_model(checkpoint: Path, dtype: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype)


@cache
def generate_with_transformers(checkpoint: Path, prompt: tuple[int, ...], num_tokens: int = NUM_NEW_TOKENS,
                               dtype: str = "float32") -> list[int]:
    ids = load_transformers_model(checkpoint, dtype).generate(torch.tensor([prompt]), do_sample=False,
                                                              max_new_tokens=num_tokens, pad_token_id=0)
    return [int(token) for token in ids[0, len(prompt):]]


def compute_transformers_logits(checkpoint: Path, tokens: tuple[int, ...], dtype: str = "float32") -> torch.Tensor:
    with torch.inference_mode():
        return load_transformers_model(checkpoint, dtype)(torch.tensor([tokens])).logits[0].float()


def make_prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return tuple(torch.randint(2, 512, (length,), generator=generator).tolist())


def make_request(prompt_length: int, seed: int = 0, **request_fields: Any) -> Request:
    return Request(f"{prompt_length}-{seed}", make_prompt(prompt_length, seed),
                   **{"max_new_tokens": NUM_NEW_TOKENS} | request_fields)


def make_requests() -> list[Request]:
    return [make_request(length, max_new_tokens=NUM_NEW_TOKENS - 3 * place)
            for place, length in enumerate((1, 5, 16, 17, 40, 64, 100))]


def check_tokens_match_transformers(checkpoint: Path, harness: SchedulerWithWorkers,
                                    scheduled_requests: list[ScheduledRequest], **settings: Any) -> None:
    for scheduled_request, output in zip(scheduled_requests, harness.run_together(scheduled_requests, **settings),
                                         strict=True):
        request = scheduled_request.request
        assert output.tokens == generate_with_transformers(checkpoint, request.prompt, request.max_new_tokens)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 130])
def test_single_request_matches_transformers(checkpoint: Path, scheduler_with_workers: SchedulerWithWorkers,
                                             length: int) -> None:
    check_tokens_match_transformers(checkpoint, scheduler_with_workers, [ScheduledRequest(make_request(length))])


@pytest.mark.slow
@pytest.mark.parametrize("look_ahead", [1, 2])
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_batched_requests_match_transformers(checkpoint: Path, scheduler_with_workers: SchedulerWithWorkers,
                                             policy: str, look_ahead: int) -> None:
    """Prompts are chunked, batches filtered and, with `pause`, joined."""
    scheduled_requests = [ScheduledRequest(request, arrival_step=2 * place)
                          for place, request in enumerate(make_requests())]
    check_tokens_match_transformers(checkpoint, scheduler_with_workers, scheduled_requests, prefill_policy=policy,
                                    look_ahead=look_ahead, max_batch_prefill_tokens=48)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {"batching": "none"}, {"batching": "static"}, {"recompute": True}, {"batching": "static", "recompute": True}],
    ids=lambda settings: "-".join(map(str, settings.values())))
def test_every_batching_policy_matches_transformers(checkpoint: Path, scheduler_with_workers: SchedulerWithWorkers,
                                                    settings: dict[str, Any]) -> None:
    """With `recompute`, one forward pass over sequences of different lengths equals a pass over each alone."""
    scheduled_requests = [ScheduledRequest(request, arrival_step=2 * place)
                          for place, request in enumerate(make_requests())]
    check_tokens_match_transformers(checkpoint, scheduler_with_workers, scheduled_requests, **settings)


@pytest.mark.slow
def test_preempted_requests_match_transformers(checkpoint: Path, scheduler_with_workers: SchedulerWithWorkers) -> None:
    with SchedulerWithWorkers(checkpoint, num_places=16 * 12, max_total_tokens=192) as harness:
        scheduled_requests = [ScheduledRequest(make_request(30, seed, max_new_tokens=40)) for seed in range(5)]
        check_tokens_match_transformers(checkpoint, harness, scheduled_requests)


def test_requests_match_transformers_after_a_loss(checkpoint: Path,
                                                  scheduler_with_workers: SchedulerWithWorkers) -> None:
    check_tokens_match_transformers(checkpoint, scheduler_with_workers,
                                    [ScheduledRequest(request) for request in make_requests()[3:]], loss_steps=(1, 9))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_several_ranks_match_transformers(checkpoint: Path, ranks: int) -> None:
    with SchedulerWithWorkers(checkpoint, ranks) as harness:
        check_tokens_match_transformers(checkpoint, harness, [ScheduledRequest(request, arrival_step=place)
                                                              for place, request in enumerate(make_requests())])


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.long if name in MODELS_ON_TWO_RANKS_ELSEWHERE else ())
    for name in sorted(MODEL_OPTIONS.keys() - QUICK_MODELS)])
def test_every_architecture_matches_transformers_on_two_ranks(tmp_path_factory: pytest.TempPathFactory,
                                                              name: str) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), **MODEL_OPTIONS[name] | HEAD_COUNTS)
    with SchedulerWithWorkers(checkpoint, 2) as harness:
        scheduled_requests = [ScheduledRequest(make_request(length, max_new_tokens=8), arrival_step=place)
                              for place, length in enumerate((17, 70))]
        check_tokens_match_transformers(checkpoint, harness, scheduled_requests, max_batch_prefill_tokens=48)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_prompt_logprobs_match_transformers_however_chunked(checkpoint: Path, ranks: int) -> None:
    request = make_request(40, max_new_tokens=1, prompt_logprobs=True)
    expected = compute_transformers_logits(checkpoint, request.prompt).log_softmax(-1)
    with SchedulerWithWorkers(checkpoint, ranks) as harness:
        outputs = [harness.run_together([ScheduledRequest(request)], max_batch_prefill_tokens=most)[0]
                   for most in (32, 33, 48, 256)]
    assert all(each.prompt_logprobs == outputs[0].prompt_logprobs for each in outputs)
    assert sorted(outputs[0].prompt_logprobs) == list(range(1, 40))
    for place, logprob in outputs[0].prompt_logprobs.items():
        assert logprob == pytest.approx(float(expected[place - 1, request.prompt[place]]), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "step"), [(1, 3), (2, 13), pytest.param(1, 1, marks=pytest.mark.long),
                                             pytest.param(2, 5, marks=pytest.mark.long)])
def test_result_does_not_depend_on_the_chunk_size(checkpoint: Path, ranks: int, step: int) -> None:
    """Tokens and logprobs of prompt and answer are bit-identical, and the tokens are transformers'."""
    tokens, expected = make_prompt(40), generate_with_transformers(checkpoint, make_prompt(40), 4)
    with SchedulerWithWorkers(checkpoint, ranks) as harness:
        results = [run_in_chunks(harness, tokens, size) for size in range(1, 41, step)]
    assert all(each == results[0] for each in results)
    assert results[0][0] == expected


def run_in_chunks(harness: SchedulerWithWorkers, tokens: tuple[int, ...],
                  chunk_size: int) -> tuple[list[int], list[float], list[float]]:
    harness.start_next_epoch()
    row = SequenceRow(7, tokens, [0, 1, 2], prompt_logprobs=True)
    cuts = [(7, start, min(chunk_size, 40 - start)) for start in range(0, 40, chunk_size)]
    messages = [make_prefill(1, row, chunk_rows=cuts[:1]), *(make_prefill(1, chunk_rows=[cut]) for cut in cuts[1:]),
                *[make_decode(1)] * 3]
    answers = [harness.send_message(message, order) for order, message in enumerate(messages, 1)]
    return ([token for each in answers for token in each.tokens], [x for each in answers for x in each.logprobs],
            [x for each in answers for x in each.prompt_logprobs])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_may_be_joined_while_prompts_are_incomplete(checkpoint: Path, ranks: int) -> None:
    first, second, third = make_prompt(40), make_prompt(33), make_prompt(20)
    with SchedulerWithWorkers(checkpoint, ranks) as harness:
        harness.start_next_epoch()
        tokens_by_sequence: dict[int, list[int]] = {7: [], 8: [], 9: []}
        messages = [
            make_prefill(1, SequenceRow(7, first, [0, 1, 2]), chunk_rows=[(7, 0, 17)]),
            make_prefill(2, SequenceRow(8, second, [3, 4, 5]), chunk_rows=[(8, 0, 30)]),
            make_prefill(3, SequenceRow(9, third, [6, 7])), make_concat(1, 2, 3),
            make_prefill(1, chunk_rows=[(7, 17, 1), (8, 30, 3)], alongside=True),
            make_prefill(1, chunk_rows=[(7, 18, 22)], alongside=True), make_decode(1), make_filter(1, 7, 9),
            make_decode(1)]
        for order, message in enumerate(messages, 1):
            answer = harness.send_message(message, order)
            if not isinstance(answer, pb.Acknowledgement):
                for number, token in zip(answer.sequences, answer.tokens, strict=True):
                    tokens_by_sequence[number].append(token)
    for number, tokens in ((7, first), (8, second), (9, third)):
        assert tokens_by_sequence[number] == generate_with_transformers(checkpoint, tokens,
                                                                        len(tokens_by_sequence[number]))
    assert [len(tokens) for tokens in tokens_by_sequence.values()] == [3, 3, 5]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_may_outnumber_kv_heads(tmp_path_factory: pytest.TempPathFactory, ranks: int) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", num_attention_heads=4,
                                      num_key_value_heads=1)
    with SchedulerWithWorkers(checkpoint, ranks) as harness:
        check_tokens_match_transformers(checkpoint, harness, [ScheduledRequest(make_request(17)),
                                                              ScheduledRequest(make_request(40), arrival_step=1)])


def test_failed_step_of_one_of_several_shards_ends_the_process(checkpoint: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks might wait for it for ever."""
    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    with SchedulerWithWorkers(checkpoint) as harness:
        worker, exits = harness.workers[0], []
        monkeypatch.setattr(worker, "_exit", lambda: exits.append(1))
        monkeypatch.setattr(worker._loaded_model.runner, "run", fail)
        for size in (1, 2):
            monkeypatch.setattr(worker._loaded_model.group, "size", size, raising=False)
            harness.start_next_epoch()
            with pytest.raises(RuntimeError):
                harness.send_message(make_prefill(1, SequenceRow(7, make_prompt(5), [0])), 1)
        assert len(exits) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MODEL_PARAMETERS)
def test_bfloat16_checkpoint_nearly_matches_transformers_in_auto_dtype(tmp_path: Path, name: str) -> None:
    check_tokens_nearly_match_transformers(make_tiny_checkpoint(tmp_path, dtype="bfloat16",
                                                                **MODEL_OPTIONS[name] | HEAD_COUNTS))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_requested_bfloat16_nearly_matches_transformers(tmp_path: Path, ranks: int) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path, dtype="bfloat16", **MODEL_OPTIONS["llama"] | HEAD_COUNTS)
    check_tokens_nearly_match_transformers(checkpoint, ranks, dtype="bfloat16")


def check_tokens_nearly_match_transformers(checkpoint: Path, ranks: int = 1, **settings: Any) -> None:
    """Assert that every token is the float32 oracle's best, or closer to it than rounding moves the oracle's logits.
    With experts, rounding may select another expert and change all later tokens: there, most tokens must pass."""
    requests = make_requests()[3:]
    with SchedulerWithWorkers(checkpoint, ranks, **settings) as harness:
        outputs = harness.run_together([ScheduledRequest(request) for request in requests])
        dtype = harness.infos[0].dtype
    for request, each in zip(requests, outputs, strict=True):
        near = find_near_tokens(checkpoint, request.prompt, each.tokens, dtype)
        assert near.float().mean() >= (MIN_NEAR_SHARE if has_experts(checkpoint) else 1.0)


def find_near_tokens(checkpoint: Path, prompt: tuple[int, ...], output_tokens: list[int], dtype: str) -> torch.Tensor:
    """Return, for each generated token, whether its logit is within rounding of the oracle's best."""
    exact, rounded = (compute_transformers_logits(checkpoint, (*prompt, *output_tokens), kind)[len(prompt) - 1:-1]
                      for kind in ("float32", dtype))
    logit_gap = exact.max(dim=-1).values - exact.gather(1, torch.tensor(output_tokens)[:, None])[:, 0]
    return logit_gap <= (rounded - exact).abs().max() + LOGIT_TOLERANCE


def has_experts(checkpoint: Path) -> bool:
    return "num_experts_per_tok" in (checkpoint / "config.json").read_text()
