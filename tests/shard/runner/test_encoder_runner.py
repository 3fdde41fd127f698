"""Embeddings and labels of a text agree with transformers and are bit-identical in any batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_checkpoints import ENCODERS, LABELS, tiny_encoder
from transformers import AutoModel, AutoModelForTokenClassification

from shard.ops.linear import can_pack
from shard.parallel.group import Alone
from shard.runner.encoder_runner import Encoding
from shard.state.columns import Text
from tests.shard.encoders import TEXTS, encoding, read_model, text

DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.skipif(
    not can_pack(torch.bfloat16), reason="not packed on this processor"))]
POISON = 500  # a token whose embedding is NaN


@pytest.fixture(scope="module", params=ENCODERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.getbasetemp(), request.param)


@pytest.fixture(scope="module", params=ENCODERS)
def labelling(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.getbasetemp(), request.param, labels=True)


def made(folder: Path, dtype: torch.dtype = torch.float32, kind: str = "mean") -> Encoding:
    return encoding(read_model(folder, dtype, Alone()), kind)


def padded(texts: list[Text]) -> dict[str, torch.Tensor]:
    """Return the texts as one padded batch with an attention mask, as other servers run them."""
    longest = max(len(each.tokens) for each in texts)
    rows = [each.tokens + [1] * (longest - len(each.tokens)) for each in texts]
    masks = [[1] * len(each.tokens) + [0] * (longest - len(each.tokens)) for each in texts]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_are_the_same_alone_and_in_company_in_any_order(folder: Path, dtype: torch.dtype) -> None:
    runs = made(folder, dtype)
    alone = [runs.vectors([each])[0] for each in TEXTS]
    assert runs.vectors(TEXTS) == alone
    assert runs.vectors(TEXTS[::-1]) == alone[::-1]
    assert runs.vectors(TEXTS[2:] + TEXTS) == alone[2:] + alone


@pytest.mark.parametrize("dtype", DTYPES)
def test_labels_are_the_same_alone_and_in_company(labelling: Path, dtype: torch.dtype) -> None:
    runs = made(labelling, dtype)
    alone = [runs.labels([each])[0] for each in TEXTS]
    assert runs.labels(TEXTS) == alone
    assert runs.labels(TEXTS[::-1]) == alone[::-1]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 160), min_size=1, max_size=8), data=st.data())
def test_any_company_will_do(tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data: Any) -> None:
    """The model's sizes are no multiples of the processor's vector width."""
    folder = tiny_encoder(tmp_path_factory.getbasetemp(), "bert", hidden_size=60, intermediate_size=131)
    runs, texts = made(folder), [text(length) for length in lengths]
    place = data.draw(st.integers(0, len(texts) - 1))
    assert runs.vectors(texts)[place] == runs.vectors([texts[place]])[0]


def test_a_mean_is_that_of_transformers_with_padding_and_without(folder: Path) -> None:
    model, found = AutoModel.from_pretrained(folder), made(folder).vectors(TEXTS)
    batch = padded(TEXTS)
    with torch.inference_mode():
        hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
        together = (hidden * mask).sum(1) / mask.sum(1)
        alone = [model(torch.tensor([each.tokens])).last_hidden_state[0].mean(0) for each in TEXTS]
    torch.testing.assert_close(torch.tensor(found), together, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.tensor(found), torch.stack(alone), rtol=1e-4, atol=1e-4)


def test_labels_and_scores_are_those_of_transformers(labelling: Path) -> None:
    model = AutoModelForTokenClassification.from_pretrained(labelling)
    assert tuple(model.config.id2label[number] for number in range(len(LABELS))) == LABELS
    for each, found in zip(TEXTS, made(labelling).labels(TEXTS), strict=True):
        with torch.inference_mode():
            scores, labels = model(torch.tensor([each.tokens])).logits[0].softmax(-1).max(-1)
        assert found is not None
        assert found.labels == labels.tolist()
        assert found.scores == pytest.approx(scores.tolist(), abs=1e-4)


@pytest.mark.parametrize("place", [0, 3, 19])
@pytest.mark.parametrize("labels", [False, True])
def test_a_text_that_is_no_number_fails_alone(
        tmp_path_factory: pytest.TempPathFactory, place: int, labels: bool) -> None:
    model = read_model(tiny_encoder(tmp_path_factory.getbasetemp(), "bert", labels=labels), torch.float32, Alone())
    model.embedding._words.weight[POISON] = torch.nan  # type: ignore[attr-defined]  # tests know the concrete class
    runs = encoding(model)
    tell = runs.labels if labels else runs.vectors
    poisoned = text(20)
    poisoned.tokens[place] = POISON
    first, failed, second = tell([TEXTS[2], poisoned, TEXTS[4]])
    assert failed is None
    assert [first, second] == [tell([TEXTS[2]])[0], tell([TEXTS[4]])[0]]
