"""A decoder embeds a text as the last token's hidden state, the same in any batch, and keeps no state."""

from functools import partial
from pathlib import Path

import pytest
import torch
from support.checkpoints.peft_adapters import load_with_adapter, make_tiny_adapter
from support.checkpoints.small_checkpoints import MODEL_FAMILIES, make_tiny_checkpoint
from support.model_runs.decoder_reference import CPU, load_decoder_model
from support.model_runs.encoder_reference import RANDOM_TEXTS, make_random_text
from support.model_runs.ranks_in_threads import run_on_ranks
from support.shards.protocol_messages import WARMUP_REQUEST, get_embeddings, make_embed
from transformers import AutoModel

from shard.attention.backend import make_attention_backend
from shard.attention.config import AttentionConfig
from shard.attention.kv_cache import TransientKVCache
from shard.config import ShardConfig
from shard.lora.routing import AdapterRouting, AdapterSlots
from shard.parallel.group import RankGroup
from shard.pb import shard_pb2 as pb
from shard.runner.decoder_embedder import DecoderEmbedder
from shard.runner.pooling import Pooling
from shard.state.sequence import PoolingText
from shard.workers.decoder import DecoderWorker
from shard.workers.load_decoder import make_cache

POISON_TOKEN = 500  # a token whose embedding is NaN
QUICK_FAMILIES = ("llama", "gemma3")  # full attention, and sliding windows
FAMILY_PARAMETERS = [pytest.param(name, marks=() if name in QUICK_FAMILIES else pytest.mark.long)
                     for name in MODEL_FAMILIES]


def make_embedder(checkpoint: Path, group: RankGroup, *, width: int = 64, poison: bool = False) -> DecoderEmbedder:
    model = load_decoder_model(checkpoint, torch.float32, group)
    if poison:
        model.embedding.weight[POISON_TOKEN] = torch.nan  # type: ignore[attr-defined]  # tests know the concrete class
    config = model.config
    attention = make_attention_backend("cpu", config.num_heads // group.size, model.num_kv_heads, config.head_dim,
                                       AttentionConfig(config.attention_scale, config.attention_softcap,
                                                       config.sliding_windows))
    cache = partial(make_cache, model, 16, dtype=torch.float32, device=CPU, cache_type=TransientKVCache)
    return DecoderEmbedder(model, attention, Pooling("last", width), AdapterRouting(CPU, AdapterSlots()),
                           make_cache=cache, device=CPU)


def make_single_rank_embedder(checkpoint: Path, **options: object) -> DecoderEmbedder:
    (embedder,) = run_on_ranks(1, lambda group: make_embedder(checkpoint, group, **options))  # type: ignore[arg-type]
    return embedder


@pytest.fixture(scope="module", params=FAMILY_PARAMETERS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), request.param)


def test_embedding_is_the_last_hidden_state_of_transformers(checkpoint: Path) -> None:
    model = AutoModel.from_pretrained(checkpoint)
    with torch.inference_mode():
        expected = [model(torch.tensor([each.tokens])).last_hidden_state[0, -1] for each in RANDOM_TEXTS]
    embeddings = make_single_rank_embedder(checkpoint).embed(RANDOM_TEXTS)
    torch.testing.assert_close(torch.tensor(embeddings), torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_embedding_does_not_depend_on_other_texts_or_their_order(checkpoint: Path) -> None:
    embedder = make_single_rank_embedder(checkpoint)
    expected = [embedder.embed([each])[0] for each in RANDOM_TEXTS]
    assert embedder.embed(RANDOM_TEXTS) == expected
    assert embedder.embed(RANDOM_TEXTS[::-1]) == expected[::-1]


@pytest.mark.slow
def test_two_ranks_give_the_same_embeddings(checkpoint: Path) -> None:
    first, second = run_on_ranks(2, lambda group: make_embedder(checkpoint, group).embed(RANDOM_TEXTS))
    assert first == second
    torch.testing.assert_close(torch.tensor(first),
                               torch.tensor(make_single_rank_embedder(checkpoint).embed(RANDOM_TEXTS)), rtol=1e-4,
                               atol=1e-4)


def test_embeddings_may_be_truncated(checkpoint: Path) -> None:
    expected = make_single_rank_embedder(checkpoint).embed([make_random_text(9)])[0]
    assert expected is not None
    assert make_single_rank_embedder(checkpoint, width=10).embed([make_random_text(9)]) == [expected[:10]]


def test_text_with_nan_fails_alone_and_leaves_nothing_behind(tmp_path_factory: pytest.TempPathFactory) -> None:
    embedder = make_single_rank_embedder(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama"), poison=True)
    expected = embedder.embed([make_random_text(70)])
    poisoned = PoolingText([*make_random_text(90).tokens[:40], POISON_TOKEN, *make_random_text(90).tokens[41:]])
    assert embedder.embed([poisoned, make_random_text(70), poisoned]) == [None, *expected, None]
    assert embedder.embed([make_random_text(70)]) == expected


@pytest.mark.slow
def test_embedding_with_an_adapter_matches_peft(tmp_path_factory: pytest.TempPathFactory) -> None:
    base_checkpoint = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    adapter, tokens = make_tiny_adapter(base_checkpoint, r=4), RANDOM_TEXTS[2].tokens
    worker = DecoderWorker(ShardConfig(model=str(base_checkpoint), device="cpu", threads=1, adaptable=True,
                                       embedding_dim=16))
    worker.warmup(WARMUP_REQUEST)
    worker.load_resource(pb.LoadRequest(epoch=1, kind=pb.KIND_ADAPTER, id=5, source=str(adapter)))
    plain, changed = get_embeddings(worker.embed(make_embed(tokens, tokens, adapters=[0, 5])))
    with torch.inference_mode():
        peft_output = load_with_adapter(base_checkpoint, adapter)(torch.tensor([tokens]), output_hidden_states=True)
    torch.testing.assert_close(torch.tensor(changed), peft_output.hidden_states[-1][0, -1, :16], rtol=1e-4, atol=1e-4)
    assert get_embeddings(worker.embed(make_embed(tokens))) == [plain]
    assert plain != changed
