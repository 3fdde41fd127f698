"""The worker with an encoder: warm-up, adapters, ranks, and a failing step on one of several ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from support.checkpoints.peft_adapters import ADAPTER_WEIGHT_SCALE, suppress_peft_warnings
from support.checkpoints.small_checkpoints import make_tiny_encoder
from support.model_runs.encoder_reference import RANDOM_TEXTS
from support.model_runs.ranks_in_threads import run_on_ranks
from support.shards.protocol_messages import WARMUP_REQUEST, get_embeddings, make_embed
from transformers import AutoModel

from shard.config import ShardConfig
from shard.errors import MalformedMessage, RejectedMessage
from shard.pb import shard_pb2 as pb
from shard.workers.encoder import EncoderWorker

SMALL_WARMUP_REQUEST = pb.WarmupRequest(block_size=16, max_prefill_tokens=160, max_batch_size=4, max_total_tokens=100)


def make_worker(folder: Path, *, adaptable: bool = False) -> EncoderWorker:
    return EncoderWorker(ShardConfig(model=str(folder), device="cpu", threads=1, adaptable=adaptable))


@pytest.fixture
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert")


def make_adapted_model(base_checkpoint: Path, adapter_folder: Path, **model_options: Any) -> PeftModel:
    """Return the model with a random LoRA adapter, and save the adapter to `adapter_folder`."""
    with suppress_peft_warnings():
        model = AutoModel.from_pretrained(base_checkpoint, **model_options)
        model = get_peft_model(model, LoraConfig(target_modules=["query", "value", "dense"])).eval()
        generator = torch.Generator().manual_seed(0)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_(0, ADAPTER_WEIGHT_SCALE * min(parameter.shape) ** -0.5, generator=generator)
        model.save_pretrained(adapter_folder)
    return model


def load_adapter(worker: EncoderWorker, adapter: Path) -> None:
    worker.load_resource(pb.LoadRequest(epoch=1, kind=pb.KIND_ADAPTER, id=5, source=str(adapter)))


def test_encoder_blocks_take_no_memory(checkpoint: Path) -> None:
    answer = make_worker(checkpoint).warmup(SMALL_WARMUP_REQUEST)
    assert (answer.block_size, answer.num_blocks, answer.cache_bytes) == (16, 4 * 7, 0)
    assert answer.why == "an encoder keeps nothing, its cache takes no memory"
    assert max(answer.chunk_tokens) <= 160
    assert all(seconds > 0 for seconds in answer.seconds)


def test_number_of_blocks_is_limited_by_the_request(checkpoint: Path) -> None:
    limits = pb.WarmupRequest(block_size=16, max_prefill_tokens=160, max_batch_size=4, max_cache_tokens=64)
    assert make_worker(checkpoint).warmup(limits).num_blocks == 4


def test_limits_beyond_the_model_are_rejected(checkpoint: Path) -> None:
    with pytest.raises(MalformedMessage, match="--max-total-tokens must be at most 160"):
        make_worker(checkpoint).warmup(WARMUP_REQUEST)


@pytest.mark.slow
def test_embedding_with_an_adapter_matches_peft(checkpoint: Path, tmp_path: Path) -> None:
    model, tokens = make_adapted_model(checkpoint, tmp_path / "adapter",
                                       add_pooling_layer=False), RANDOM_TEXTS[2].tokens
    worker = make_worker(checkpoint, adaptable=True)
    assert worker.warmup(SMALL_WARMUP_REQUEST).adapter_bytes > 0
    load_adapter(worker, tmp_path / "adapter")
    plain, changed = get_embeddings(worker.embed(make_embed(tokens, tokens, adapters=[0, 5])))
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).last_hidden_state[0].mean(0)
    torch.testing.assert_close(torch.tensor(changed), expected, rtol=1e-4, atol=1e-4)
    assert get_embeddings(worker.embed(make_embed(tokens))) == [plain]
    assert plain != changed


@pytest.mark.slow
def test_adapter_of_an_unused_module_is_rejected_by_name(checkpoint: Path, tmp_path: Path) -> None:
    make_adapted_model(checkpoint, tmp_path / "adapter")
    with pytest.raises(RejectedMessage, match=r"pooler\.dense"):
        load_adapter(make_worker(checkpoint, adaptable=True), tmp_path / "adapter")


def test_only_rank_0_returns_embeddings(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shard.workers.model_loading.join_group", lambda rank, *_: groups[rank])
    groups: dict[int, object] = {}

    def embed_on_rank(group: object) -> list[list[float]]:
        rank = group.rank  # type: ignore[attr-defined]
        groups[rank] = group
        worker = EncoderWorker(ShardConfig(model=str(checkpoint), device="cpu", threads=1, rank=rank, world_size=2))
        worker.warmup(SMALL_WARMUP_REQUEST)
        return get_embeddings(worker.embed(make_embed(RANDOM_TEXTS[2].tokens)))

    first, second = run_on_ranks(2, embed_on_rank)
    assert (len(first), len(second)) == (1, 0)


def test_failed_step_of_one_of_several_shards_ends_the_process(checkpoint: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[int] = []
    worker = EncoderWorker(ShardConfig(model=str(checkpoint), device="cpu", threads=1), exit=lambda: exits.append(1))
    worker.warmup(SMALL_WARMUP_REQUEST)
    monkeypatch.setattr(worker._loaded_model.runner, "_compute_hidden_states", lambda _: 1 / 0)
    monkeypatch.setattr(worker._loaded_model.group, "size", 2, raising=False)
    with pytest.raises(ZeroDivisionError):
        worker.embed(make_embed(RANDOM_TEXTS[2].tokens))
    assert exits == [1]
