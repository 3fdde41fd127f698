"""The worker with an encoder: warm-up, adapters, ranks, and a failing step on one of several ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from support.peft_adapters import SPREAD, unwarned
from support.small_checkpoints import tiny_encoder
from transformers import AutoModel

from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb
from shard.state.ledger import Malformed, Refused
from shard.workers.encoder import EncoderWorker
from tests.shard.encoders import TEXTS
from tests.shard.messages import WARMUP, embed, vectors_of
from tests.shard.side_by_side import side_by_side

LIMITS = pb.WarmupRequest(block_size=16, max_prefill_tokens=160, max_batch_size=4, max_total_tokens=100)


def made(folder: Path, *, adaptable: bool = False) -> EncoderWorker:
    return EncoderWorker(ShardConfig(model=str(folder), device="cpu", threads=1, adaptable=adaptable))


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.getbasetemp(), "bert")


def adapted(base: Path, target: Path, **more: Any) -> PeftModel:
    """Return the model with a random LoRA adapter, and save the adapter to `target`."""
    with unwarned():
        model = AutoModel.from_pretrained(base, **more)
        model = get_peft_model(model, LoraConfig(target_modules=["query", "value", "dense"])).eval()
        generator = torch.Generator().manual_seed(0)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_(0, SPREAD * min(parameter.shape) ** -0.5, generator=generator)
        model.save_pretrained(target)
    return model


def load(worker: EncoderWorker, adapter: Path) -> None:
    worker.load(pb.LoadRequest(epoch=1, kind=pb.KIND_ADAPTER, id=5, source=str(adapter)))


def test_its_blocks_take_no_memory(folder: Path) -> None:
    answer = made(folder).warmup(LIMITS)
    assert (answer.block_size, answer.num_blocks, answer.cache_bytes) == (16, 4 * 7, 0)
    assert answer.why == "an encoder keeps nothing, its cache takes no memory"
    assert max(answer.chunk_tokens) <= 160
    assert all(seconds > 0 for seconds in answer.seconds)


def test_no_more_blocks_than_were_asked_for(folder: Path) -> None:
    limits = pb.WarmupRequest(block_size=16, max_prefill_tokens=160, max_batch_size=4, max_cache_tokens=64)
    assert made(folder).warmup(limits).num_blocks == 4


def test_limits_beyond_the_model_are_refused(folder: Path) -> None:
    with pytest.raises(Malformed, match="--max-total-tokens must be at most 160"):
        made(folder).warmup(WARMUP)


@pytest.mark.slow
def test_an_adapter_is_pefts_for_whom_it_is_named(folder: Path, tmp_path: Path) -> None:
    model, tokens = adapted(folder, tmp_path / "adapter", add_pooling_layer=False), TEXTS[2].tokens
    worker = made(folder, adaptable=True)
    assert worker.warmup(LIMITS).adapter_bytes > 0
    load(worker, tmp_path / "adapter")
    plain, changed = vectors_of(worker.embed(embed(tokens, tokens, adapters=[0, 5])))
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).last_hidden_state[0].mean(0)
    torch.testing.assert_close(torch.tensor(changed), expected, rtol=1e-4, atol=1e-4)
    assert vectors_of(worker.embed(embed(tokens))) == [plain]
    assert plain != changed


@pytest.mark.slow
def test_an_adapter_of_what_is_not_computed_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    adapted(folder, tmp_path / "adapter")
    with pytest.raises(Refused, match=r"pooler\.dense"):
        load(made(folder, adaptable=True), tmp_path / "adapter")


def test_only_rank_0_tells(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shard.workers.load_decoder.join", lambda rank, *_: groups[rank])
    groups: dict[int, object] = {}

    def told(group: object) -> list[list[float]]:
        rank = group.rank  # type: ignore[attr-defined]
        groups[rank] = group
        worker = EncoderWorker(ShardConfig(model=str(folder), device="cpu", threads=1, rank=rank, world_size=2))
        worker.warmup(LIMITS)
        return vectors_of(worker.embed(embed(TEXTS[2].tokens)))

    first, second = side_by_side(2, told)
    assert (len(first), len(second)) == (1, 0)


def test_a_failed_step_of_one_of_several_shards_ends_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    worker = EncoderWorker(ShardConfig(model=str(folder), device="cpu", threads=1), exit=lambda: ended.append(1))
    worker.warmup(LIMITS)
    monkeypatch.setattr(worker._loaded.encoding, "_hidden", lambda _: 1 / 0)
    monkeypatch.setattr(worker._loaded.group, "size", 2, raising=False)
    with pytest.raises(ZeroDivisionError):
        worker.embed(embed(TEXTS[2].tokens))
    assert ended == [1]
