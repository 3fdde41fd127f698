"""Embeddings and labels of a text agree with transformers and are bit-identical in any batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints.small_checkpoints import ENCODER_FAMILIES, TOKEN_LABELS, make_tiny_encoder
from support.model_runs.encoder_reference import RANDOM_TEXTS, load_encoder_model, make_encoder_runner, make_random_text
from transformers import AutoModel, AutoModelForTokenClassification

from shard.ops.linear import can_pack
from shard.parallel.group import SingleRankGroup
from shard.runner.encoder_runner import EncoderRunner
from shard.state.sequence import PoolingText

DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.skipif(
    not can_pack(torch.bfloat16), reason="not packed on this processor"))]
POISON_TOKEN = 500  # a token whose embedding is NaN


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
