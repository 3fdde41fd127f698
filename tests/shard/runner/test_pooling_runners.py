"""Embeddings and labels of a text agree with transformers and are bit-identical in any batch."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints.peft_adapters import load_with_adapter, make_tiny_adapter
from support.checkpoints.small_checkpoints import (
    ENCODER_FAMILIES,
    MODEL_FAMILIES,
    TOKEN_LABELS,
    make_tiny_checkpoint,
    make_tiny_encoder,
)
from support.model_runs.decoder_reference import CPU, load_decoder_model
from support.model_runs.encoder_reference import RANDOM_TEXTS, load_encoder_model, make_encoder_runner, make_random_text
from support.model_runs.ranks_in_threads import run_on_ranks
from support.shards.protocol_messages import WARMUP_REQUEST, get_embeddings, make_embed
from transformers import AutoModel, AutoModelForTokenClassification

from shard.attention.backend import AttentionOptions, make_attention_backend
from shard.attention.kv_cache import TransientKVCache
from shard.config import ShardConfig
from shard.lora.routing import AdapterRouting, AdapterSlots
from shard.ops.unquantized_linear import can_pack
from shard.parallel.group import RankGroup, SingleRankGroup
from shard.pb import shard_pb2 as pb
from shard.runner.model_runner import ModelRunner
from shard.runner.pooling import Pooling
from shard.runner.pooling_runners import DecoderEmbedder, EncoderRunner
from shard.sampling.sampler import Sampler
from shard.state.sequence import PoolingText
from shard.workers.decoder import DecoderWorker
from shard.workers.model_loading import make_cache

DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.skipif(
    not can_pack(torch.bfloat16), reason="not packed on this processor"))]
POISON_TOKEN = 500  # a token whose embedding is NaN
QUICK_FAMILIES = ("llama", "gemma3")  # full attention, and sliding windows
FAMILY_PARAMETERS = [pytest.param(name, marks=() if name in QUICK_FAMILIES else pytest.mark.long)
                     for name in MODEL_FAMILIES]


@pytest.fixture(scope="module", params=ENCODER_FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_encoder(tmp_path_factory.getbasetemp(), request.param)


@pytest.fixture(scope="module", params=ENCODER_FAMILIES)
def classifier_checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_encoder(tmp_path_factory.getbasetemp(), request.param, labels=True)


def make_runner(checkpoint: Path, dtype: torch.dtype = torch.float32, reduction: str = "mean") -> EncoderRunner:
    return make_encoder_runner(load_encoder_model(checkpoint, dtype, SingleRankGroup()), reduction)


def make_padded_batch(texts: list[PoolingText]) -> dict[str, torch.Tensor]:
    """Return the texts as one padded batch with an attention mask, as other servers run them."""
    longest = max(len(each.tokens) for each in texts)
    rows = [each.tokens + [1] * (longest - len(each.tokens)) for each in texts]
    masks = [[1] * len(each.tokens) + [0] * (longest - len(each.tokens)) for each in texts]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_embeddings_do_not_depend_on_other_texts_or_their_order(checkpoint: Path, dtype: torch.dtype) -> None:
    runner = make_runner(checkpoint, dtype)
    alone = [runner.embed([each])[0] for each in RANDOM_TEXTS]
    assert runner.embed(RANDOM_TEXTS) == alone
    assert runner.embed(RANDOM_TEXTS[::-1]) == alone[::-1]
    assert runner.embed(RANDOM_TEXTS[2:] + RANDOM_TEXTS) == alone[2:] + alone


@pytest.mark.parametrize("dtype", DTYPES)
def test_labels_do_not_depend_on_other_texts(classifier_checkpoint: Path, dtype: torch.dtype) -> None:
    runner = make_runner(classifier_checkpoint, dtype)
    alone = [runner.label_tokens([each])[0] for each in RANDOM_TEXTS]
    assert runner.label_tokens(RANDOM_TEXTS) == alone
    assert runner.label_tokens(RANDOM_TEXTS[::-1]) == alone[::-1]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 160), min_size=1, max_size=8), data=st.data())
def test_embedding_does_not_depend_on_random_other_texts(tmp_path_factory: pytest.TempPathFactory, lengths: list[int],
                                                         data: Any) -> None:
    """The model's sizes are no multiples of the processor's vector width."""
    folder = make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert", hidden_size=60, intermediate_size=131)
    runner, texts = make_runner(folder), [make_random_text(length) for length in lengths]
    place = data.draw(st.integers(0, len(texts) - 1))
    assert runner.embed(texts)[place] == runner.embed([texts[place]])[0]


def test_mean_embeddings_match_transformers_with_and_without_padding(checkpoint: Path) -> None:
    model, embeddings = AutoModel.from_pretrained(checkpoint), make_runner(checkpoint).embed(RANDOM_TEXTS)
    batch = make_padded_batch(RANDOM_TEXTS)
    with torch.inference_mode():
        hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
        batched = (hidden * mask).sum(1) / mask.sum(1)
        alone = [model(torch.tensor([each.tokens])).last_hidden_state[0].mean(0) for each in RANDOM_TEXTS]
    torch.testing.assert_close(torch.tensor(embeddings), batched, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.tensor(embeddings), torch.stack(alone), rtol=1e-4, atol=1e-4)


def test_labels_and_scores_match_transformers(classifier_checkpoint: Path) -> None:
    model = AutoModelForTokenClassification.from_pretrained(classifier_checkpoint)
    assert tuple(model.config.id2label[number] for number in range(len(TOKEN_LABELS))) == TOKEN_LABELS
    labels_by_text = make_runner(classifier_checkpoint).label_tokens(RANDOM_TEXTS)
    for text, token_labels in zip(RANDOM_TEXTS, labels_by_text, strict=True):
        with torch.inference_mode():
            scores, labels = model(torch.tensor([text.tokens])).logits[0].softmax(-1).max(-1)
        assert token_labels is not None
        assert token_labels.labels == labels.tolist()
        assert token_labels.scores == pytest.approx(scores.tolist(), abs=1e-4)


@pytest.mark.parametrize("place", [0, 3, 19])
@pytest.mark.parametrize("labels", [False, True])
def test_text_with_nan_fails_alone(
        tmp_path_factory: pytest.TempPathFactory, place: int, labels: bool) -> None:
    model = load_encoder_model(make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert", labels=labels), torch.float32,
                               SingleRankGroup())
    model.embedding._word_embedding.weight[POISON_TOKEN] = torch.nan  # type: ignore[attr-defined]  # tests know the concrete class
    runner = make_encoder_runner(model)
    run_texts = runner.label_tokens if labels else runner.embed
    poisoned = make_random_text(20)
    poisoned.tokens[place] = POISON_TOKEN
    first, failed, second = run_texts([RANDOM_TEXTS[2], poisoned, RANDOM_TEXTS[4]])
    assert failed is None
    assert [first, second] == [run_texts([RANDOM_TEXTS[2]])[0], run_texts([RANDOM_TEXTS[4]])[0]]


# -- texts that a decoder embeds: as the last token's hidden state, the same in any batch, and without keeping state


def make_embedder(checkpoint: Path, group: RankGroup, *, width: int = 64, poison: bool = False) -> DecoderEmbedder:
    model = load_decoder_model(checkpoint, torch.float32, group)
    if poison:
        model.embedding.weight[POISON_TOKEN] = torch.nan  # type: ignore[attr-defined]  # tests know the concrete class
    config = model.config
    attention = make_attention_backend("cpu", config.num_heads // group.size, model.num_kv_heads, config.head_dim,
                                       AttentionOptions(config.attention_scale, config.attention_softcap,
                                                        config.sliding_windows))
    cache = partial(make_cache, model, 16, dtype=torch.float32, device=CPU, cache_type=TransientKVCache)
    runner = ModelRunner(model, attention, Sampler(config.vocabulary_size, CPU), group,
                         AdapterRouting(CPU, AdapterSlots()), device=CPU)
    return DecoderEmbedder(runner, Pooling("last", width), cache)


def make_single_rank_embedder(checkpoint: Path, **options: object) -> DecoderEmbedder:
    (embedder,) = run_on_ranks(1, lambda group: make_embedder(checkpoint, group, **options))  # type: ignore[arg-type]
    return embedder


@pytest.fixture(scope="module", params=FAMILY_PARAMETERS)
def decoder_checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), request.param)


def test_embedding_is_the_last_hidden_state_of_transformers(decoder_checkpoint: Path) -> None:
    model = AutoModel.from_pretrained(decoder_checkpoint)
    with torch.inference_mode():
        expected = [model(torch.tensor([each.tokens])).last_hidden_state[0, -1] for each in RANDOM_TEXTS]
    embeddings = make_single_rank_embedder(decoder_checkpoint).embed(RANDOM_TEXTS)
    torch.testing.assert_close(torch.tensor(embeddings), torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_embedding_does_not_depend_on_other_texts_or_their_order(decoder_checkpoint: Path) -> None:
    embedder = make_single_rank_embedder(decoder_checkpoint)
    expected = [embedder.embed([each])[0] for each in RANDOM_TEXTS]
    assert embedder.embed(RANDOM_TEXTS) == expected
    assert embedder.embed(RANDOM_TEXTS[::-1]) == expected[::-1]


@pytest.mark.slow
def test_two_ranks_give_the_same_embeddings(decoder_checkpoint: Path) -> None:
    first, second = run_on_ranks(2, lambda group: make_embedder(decoder_checkpoint, group).embed(RANDOM_TEXTS))
    assert first == second
    alone = make_single_rank_embedder(decoder_checkpoint).embed(RANDOM_TEXTS)
    torch.testing.assert_close(torch.tensor(first), torch.tensor(alone), rtol=1e-4, atol=1e-4)


def test_embeddings_may_be_truncated(decoder_checkpoint: Path) -> None:
    expected = make_single_rank_embedder(decoder_checkpoint).embed([make_random_text(9)])[0]
    assert expected is not None
    assert make_single_rank_embedder(decoder_checkpoint, width=10).embed([make_random_text(9)]) == [expected[:10]]


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
