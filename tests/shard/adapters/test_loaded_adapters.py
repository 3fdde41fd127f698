"""Rows with an adapter get the tokens that peft generates, in any batch."""

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.peft_adapters import load_with_adapter, make_tiny_adapter
from support.checkpoints.small_checkpoints import LLAMA3_ROPE, make_tiny_checkpoint
from support.shards.scheduler_with_workers import ReceivedOutput, ScheduledRequest, SchedulerWithWorkers

from router.request import LoadableResource, Request
from shard.errors import RejectedMessage
from shard.lora.lora_linear import TorchLoraStore
from shard.lora.native_lora_store import NativeLoraStore
from shard.native.library import load_library

NUM_NEW_TOKENS = 8
FAMILY_OPTIONS: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA3_ROPE},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "gpt_neox": {},
    "gpt2": {},
    "starcoder2": {},
    "falcon": {"num_kv_heads": 4},
    "mixtral": {},
    "qwen3_moe": {},
    "gemma": {},
    "gemma2": {},
    "gemma3": {},
    "phi3": {},
    "cohere": {},
    "olmo2": {},
}
FAMILIES_SPLIT_IN_TWO = ("gpt2", "falcon", "mixtral", "phi3")  # with linears of every kind, each on two ranks
FAMILY_PARAMETERS = [pytest.param(name, marks=pytest.mark.long if name in FAMILIES_SPLIT_IN_TWO else ())
                     for name in FAMILY_OPTIONS]
HEAD_COUNTS = {"num_attention_heads": 8, "num_key_value_heads": 4}  # enough for four ranks


def make_prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return tuple(torch.randint(2, 512, (length,), generator=generator).tolist())


@cache
def generate_with_peft(base_checkpoint: Path, adapter: Path | None, prompt: tuple[int, ...],
                       num_tokens: int) -> list[int]:
    model = load_with_adapter(base_checkpoint, adapter)
    ids = model.generate(input_ids=torch.tensor([prompt]), do_sample=False, max_new_tokens=num_tokens, pad_token_id=0)
    return [int(token) for token in ids[0, len(prompt):]]


def make_request(adapter_id: int, prompt_length: int, **request_fields: Any) -> Request:
    adapter = LoadableResource("adapter", adapter_id) if adapter_id else None
    return Request(f"{adapter_id}-{prompt_length}", make_prompt(prompt_length, adapter_id), adapter=adapter,
                   **{"max_new_tokens": NUM_NEW_TOKENS} | request_fields)


@pytest.fixture(scope="module", params=FAMILY_PARAMETERS)
def base_checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), request.param,
                                **FAMILY_OPTIONS[request.param] | HEAD_COUNTS)


def check_tokens_match_peft(base_checkpoint: Path, adapter: Path, **settings: Any) -> None:
    with SchedulerWithWorkers(base_checkpoint, **{"adaptable": True} | settings) as harness:
        harness.load_adapter(1, adapter)
        scheduled_requests = [ScheduledRequest(make_request(1, 30)), ScheduledRequest(make_request(0, 30), 2),
                              ScheduledRequest(make_request(1, 5), 3)]
        for scheduled_request, output in zip(scheduled_requests, harness.run_and_compare(scheduled_requests),
                                             strict=True):
            used_adapter, request = adapter if scheduled_request.request.adapter else None, scheduled_request.request
            assert output.tokens == generate_with_peft(base_checkpoint, used_adapter, request.prompt,
                                                       request.max_new_tokens)


@pytest.mark.slow
def test_tokens_match_peft(base_checkpoint: Path) -> None:
    check_tokens_match_peft(base_checkpoint, make_tiny_adapter(base_checkpoint, r=4))


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
def test_tokens_match_peft_on_several_ranks(base_checkpoint: Path, ranks: int) -> None:
    check_tokens_match_peft(base_checkpoint, make_tiny_adapter(base_checkpoint, r=4), ranks=ranks)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES_SPLIT_IN_TWO)
def test_two_ranks_split_linears_of_every_kind(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    base = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), family, **FAMILY_OPTIONS[family] | HEAD_COUNTS)
    check_tokens_match_peft(base, make_tiny_adapter(base, r=4), ranks=2)


@pytest.fixture(scope="module")
def llama_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", **FAMILY_OPTIONS["llama"] | HEAD_COUNTS)


ALL_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA_CONFIGS: dict[str, dict[str, Any]] = {
    "scaled": {"r": 4, "lora_alpha": 1},
    "rank-stabilised": {"r": 8, "lora_alpha": 5, "use_rslora": True},
    "only some products": {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "only one layer": {"r": 4, "target_modules": ALL_MODULES, "layers_to_transform": [1]},
    "a pattern": {"r": 4, "target_modules": r".*layers\.0\.(self_attn|mlp)\.(q_proj|up_proj)"},
    "ranks and scales by module": {
        "r": 4, "target_modules": ALL_MODULES,
        "rank_pattern": {"q_proj": 8, r"layers\.1\.mlp\.up_proj": 2, "layers.0.mlp.up_proj": 6},
        "alpha_pattern": {"mlp.down_proj": 3, r".*\.v_proj": 16}},
    "the embedding": {"r": 4, "target_modules": ["embed_tokens", "o_proj"]},
    "the head": {"r": 4, "target_modules": ["lm_head", "k_proj"]},
    "another head": {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "another embedding": {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "both": {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "stored in half": {"r": 4, "dtype": "bfloat16"},
}


@pytest.mark.parametrize("config", LORA_CONFIGS.values(), ids=list(LORA_CONFIGS))
def test_adapter_config_settings_are_applied(llama_checkpoint: Path, config: dict[str, Any]) -> None:
    check_tokens_match_peft(llama_checkpoint, make_tiny_adapter(llama_checkpoint, **config))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["only some products", "the embedding", "the head", "both"])
def test_two_ranks_apply_adapter_config_settings(llama_checkpoint: Path, name: str) -> None:
    check_tokens_match_peft(llama_checkpoint, make_tiny_adapter(llama_checkpoint, **LORA_CONFIGS[name]), ranks=2)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["target_modules", "modules_to_save"])
@pytest.mark.parametrize("module", ["embed_tokens", "lm_head"])
def test_tied_head_and_embedding_are_changed_separately(
        tmp_path_factory: pytest.TempPathFactory, name: str, module: str, ranks: int) -> None:
    base = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2", tie_word_embeddings=True, **HEAD_COUNTS)
    modules = {"target_modules": ["q_proj"]} | {name: [module]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft advises against it
        check_tokens_match_peft(base, make_tiny_adapter(base, r=4, **modules), ranks=ranks)


LORA_RANKS = (4, 8, 12, 16, 24, 32, 48, 64)


@pytest.fixture(scope="module")
def eight_adapters(llama_checkpoint: Path) -> list[Path]:
    """Adapters of all ranks, some of them for few modules."""
    targets = (ALL_MODULES, ALL_MODULES, ["q_proj", "v_proj"], ["o_proj", "down_proj"])
    return [make_tiny_adapter(llama_checkpoint, seed=number, r=rank, target_modules=targets[number % len(targets)])
            for number, rank in enumerate(LORA_RANKS, 1)]


def make_requests_of_all_adapters(max_new_tokens: int = NUM_NEW_TOKENS) -> list[ScheduledRequest]:
    """Return requests for the base model and for each adapter, several of them for two of the adapters."""
    numbers = [0, *range(1, 9), 3, 3, 7, 0]
    return [ScheduledRequest(make_request(number, 20 + 7 * place % 40, max_new_tokens=max_new_tokens), place // 4)
            for place, number in enumerate(numbers)]


def check_bits_and_peft_tokens(
        base_checkpoint: Path, adapters: list[Path], harness: SchedulerWithWorkers,
        max_new_tokens: int = NUM_NEW_TOKENS, **settings: Any) -> list[tuple[Request, ReceivedOutput]]:
    """Assert that every request gets the same bits as alone, and peft's tokens; return the requests and outputs."""
    for number, adapter in enumerate(adapters, 1):
        harness.load_adapter(number, adapter)
    scheduled_requests = make_requests_of_all_adapters(max_new_tokens)
    outputs = harness.run_and_compare(scheduled_requests, **settings)
    results = [(scheduled.request, output) for scheduled, output in zip(scheduled_requests, outputs, strict=True)]
    for request, output in results:
        used_adapter = adapters[request.adapter.id - 1] if request.adapter else None
        assert output.tokens == generate_with_peft(base_checkpoint, used_adapter, request.prompt,
                                                   request.max_new_tokens)
    return results


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("settings", [
    pytest.param({}, marks=pytest.mark.long), {"max_batch_prefill_tokens": 48},
    pytest.param({"prefill_policy": "pause", "look_ahead": 1}, marks=pytest.mark.long), {"loss_steps": (3, 9)},
], ids=["mixed", "chunked", "paused", "lost"])
def test_eight_adapters_and_the_base_model_match_peft_in_one_step(
        llama_checkpoint: Path, eight_adapters: list[Path], ranks: int, settings: dict[str, Any]) -> None:
    with SchedulerWithWorkers(llama_checkpoint, ranks, adaptable=True) as harness:
        check_bits_and_peft_tokens(llama_checkpoint, eight_adapters, harness, **settings)


@pytest.mark.slow
def test_eight_adapters_match_peft_on_two_ranks(llama_checkpoint: Path, eight_adapters: list[Path]) -> None:
    with SchedulerWithWorkers(llama_checkpoint, 2, adaptable=True) as harness:
        check_bits_and_peft_tokens(llama_checkpoint, eight_adapters, harness, max_batch_prefill_tokens=48,
                                   loss_steps=(9,))


@pytest.mark.slow
def test_preempted_request_resumes_with_its_adapter(llama_checkpoint: Path, eight_adapters: list[Path]) -> None:
    with SchedulerWithWorkers(llama_checkpoint, adaptable=True, num_places=16 * 12, max_total_tokens=192) as harness:
        results = check_bits_and_peft_tokens(llama_checkpoint, eight_adapters, harness, max_new_tokens=16)
    assert any(output.num_computed_tokens > len(request.prompt) for request, output in results)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {"dtype": "bfloat16"}, pytest.param({"dtype": "bfloat16", "ranks": 2}, marks=pytest.mark.long),
    {"quantize": "int8"},
], ids=["bfloat16", "bfloat16 on two ranks", "int8"])
def test_result_does_not_depend_on_other_requests(llama_checkpoint: Path, eight_adapters: list[Path],
                                                  settings: dict[str, Any]) -> None:
    with SchedulerWithWorkers(llama_checkpoint, adaptable=True, **settings) as harness:
        for number, adapter in enumerate(eight_adapters, 1):
            harness.load_adapter(number, adapter)
        harness.run_and_compare(make_requests_of_all_adapters())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "mixtral", "phi3", "gemma2"])
def test_result_does_not_depend_on_other_requests_in_other_models(family: str,
                                                                  tmp_path_factory: pytest.TempPathFactory) -> None:
    base = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), family, **FAMILY_OPTIONS[family] | HEAD_COUNTS)
    with SchedulerWithWorkers(base, adaptable=True) as harness:
        for number in (1, 2, 3):
            harness.load_adapter(number, make_tiny_adapter(base, seed=number, r=4 * number))
        harness.run_and_compare([ScheduledRequest(make_request(number, 10 + number), number)
                                 for number in (0, 1, 2, 3, 1, 0)])


def test_prompt_logprobs_are_computed_with_the_adapter(llama_checkpoint: Path) -> None:
    adapter = make_tiny_adapter(llama_checkpoint, r=4, target_modules=["lm_head", "q_proj"])
    with SchedulerWithWorkers(llama_checkpoint, adaptable=True) as harness:
        harness.load_adapter(1, adapter)
        request = make_request(1, 30, prompt_logprobs=True)
        output, _ = harness.run_together([ScheduledRequest(request), ScheduledRequest(make_request(0, 30))])
    with torch.inference_mode():
        logits = load_with_adapter(llama_checkpoint, adapter)(input_ids=torch.tensor([request.prompt])).logits[0]
    expected = logits.log_softmax(-1)[range(29), request.prompt[1:]]
    torch.testing.assert_close(torch.tensor([output.prompt_logprobs[place] for place in range(1, 30)]), expected,
                               atol=1e-3, rtol=1e-3)


def test_id_of_an_unloaded_adapter_can_be_reused(llama_checkpoint: Path, eight_adapters: list[Path]) -> None:
    with SchedulerWithWorkers(llama_checkpoint, adaptable=True) as harness:
        harness.load_adapter(1, eight_adapters[0])
        harness.unload_adapter(1)
        assert list(harness.call_all_ranks("info")[0].loaded_adapters) == []
        harness.load_adapter(1, eight_adapters[1])
        output = harness.run_together([ScheduledRequest(make_request(1, 20))])[0]
    assert output.tokens == generate_with_peft(llama_checkpoint, eight_adapters[1], make_prompt(20, 1), NUM_NEW_TOKENS)


def test_adapter_that_does_not_fit_in_memory_is_removed_completely(
        llama_checkpoint: Path, eight_adapters: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last part of the adapter does not fit."""
    store_type: Any = TorchLoraStore if load_library() is None else NativeLoraStore
    original_put, remaining_puts = store_type.store_adapter, iter(range(13, -1, -1))

    def put_until_out_of_memory(self: Any, *arguments: Any) -> int:
        if next(remaining_puts):
            return int(original_put(self, *arguments))
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes.\nMore")

    with SchedulerWithWorkers(llama_checkpoint, adaptable=True) as harness:
        with monkeypatch.context() as patch:
            patch.setattr(store_type, "store_adapter", put_until_out_of_memory)
            with pytest.raises(RejectedMessage,
                               match=r"there is no room for the adapter in .*tried to allocate 5 bytes"):
                harness.load_adapter(1, eight_adapters[0])
        assert list(harness.call_all_ranks("info")[0].loaded_adapters) == []
        harness.load_adapter(1, eight_adapters[1])
        assert harness.run_together([ScheduledRequest(make_request(1, 20))])[0].tokens == generate_with_peft(
            llama_checkpoint, eight_adapters[1], make_prompt(20, 1), NUM_NEW_TOKENS)


def test_adapters_are_rejected_when_disabled(llama_checkpoint: Path, eight_adapters: list[Path]) -> None:
    with SchedulerWithWorkers(llama_checkpoint) as harness:
        assert not harness.infos[0].adapters
        with pytest.raises(RejectedMessage, match="this shard takes no KIND_ADAPTER"):
            harness.load_adapter(1, eight_adapters[0])
