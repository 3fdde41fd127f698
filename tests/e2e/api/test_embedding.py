"""Tests of `weft serve` with a small encoder: its results are those of transformers, alone and batched."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.checkpoints.peft_adapters import suppress_peft_warnings
from support.checkpoints.small_encoders import TRAINING_LINES, make_bert_encoder
from support.servers.weft_process import WeftProcess, run_weft_process
from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer, pipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # processes that load torch

TEXTS = [*TRAINING_LINES, "The weaver of Prague met Bob and Ada in Paris; nobody else was there ☃ .",
         "Ada " * 40]
SERVER_ARGUMENTS = ("--threads", "1", "--max-client-batch-size", "32")  # threads wait for each other on a busy machine


def post_json(weft: WeftProcess, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    request = Request(weft.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urlopen(request) as response:
            return int(response.status), json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


def compute_mean_hidden_state(folder: Path, text: str) -> list[float]:
    """Return the mean hidden state, the embedding of sentence-transformers for a folder without a pooling config."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return list(model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).tolist())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bert_encoder(tmp_path_factory.mktemp("encoder"), labels=False)


@pytest.fixture(scope="module")
def adapted_model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Return peft's model with an adapter, and the folder of adapters in which this one is saved as `looms`."""
    adapters = tmp_path_factory.mktemp("adapters")
    with suppress_peft_warnings():
        model = get_peft_model(AutoModel.from_pretrained(folder, add_pooling_layer=False),
                               LoraConfig(target_modules=["query", "value"], init_lora_weights=False)).eval()
        model.save_pretrained(adapters / "looms")
    return model, adapters


@pytest.fixture(scope="module")
def weft(folder: Path, adapted_model: tuple[Any, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[
        WeftProcess]:
    with run_weft_process(tmp_path_factory.mktemp("weft"), str(folder), *SERVER_ARGUMENTS, "--adapter-root",
                          str(adapted_model[1])) as server:
        yield server


def test_embeddings_match_transformers(folder: Path, weft: WeftProcess) -> None:
    expected = [pytest.approx(compute_mean_hidden_state(folder, text), abs=1e-5) for text in TEXTS]
    assert any("/embed" in row for row in weft.banner)
    assert not any(row.startswith("  cache") for row in weft.banner)
    assert weft.get_status("/health") == weft.get_status("/v1/models") == 200
    assert weft.get_info()["max_input_tokens"] == 160
    alone = [post_json(weft, "/embed", {"inputs": text})[1]["embeddings"] for text in TEXTS]
    assert alone == expected
    batched = post_json(weft, "/v1/embeddings", {"input": TEXTS * 5, "model": "base"})[1]["data"]
    assert [row["embedding"] for row in batched] == alone * 5
    many = post_json(weft, "/v1/embeddings", {"input": TEXTS * 100})[1]
    assert [row["embedding"] for row in many["data"]] == alone * 100
    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(lambda text: post_json(weft, "/embed", {"inputs": text})[1]["embeddings"], TEXTS * 5)
        assert list(answers) == alone * 5
    assert post_json(weft, "/", {"inputs": TEXTS})[1] == alone
    scores = post_json(weft, "/score", {"text_1": TEXTS[0], "text_2": TEXTS})[1]["data"]
    similarities = torch.cosine_similarity(torch.tensor(alone[:1]), torch.tensor(alone))
    assert [row["score"] for row in scores] == pytest.approx(similarities.tolist(), abs=1e-6)
    status, error = post_json(weft, "/generate", {"inputs": "x"})
    assert (status, error["error_type"]) == (422, "validation")
    assert "does not generate text; it makes embeddings" in error["error"]
    status, error = post_json(weft, "/embed", {"inputs": "Ada " * 200})
    assert status == 422
    assert "at most 160 tokens (what the model holds)" in error["error"]


def test_embeddings_with_an_adapter_match_peft(
        folder: Path, adapted_model: tuple[Any, Path], weft: WeftProcess) -> None:
    tokens = AutoTokenizer.from_pretrained(folder)(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        expected = adapted_model[0](**tokens).last_hidden_state[0].mean(0).tolist()
    adapter_body = {"inputs": TEXTS[0], "parameters": {"adapter_id": "looms", "adapter_source": "local"}}
    status, answer = post_json(weft, "/embed", adapter_body)
    assert status == 200, answer
    assert answer["embeddings"] == pytest.approx(expected, abs=1e-4)
    by_model = post_json(weft, "/v1/embeddings", {"input": TEXTS[0], "model": "looms"})[1]
    assert (by_model["model"], by_model["data"][0]["embedding"]) == ("looms", answer["embeddings"])
    status, error = post_json(weft, "/v1/embeddings", {"input": TEXTS[0], "model": "nope"})
    assert (status, error["error"]["code"]) == (404, "model_not_found")
    assert "`model` may be " in error["error"]["message"]
    status, error = post_json(weft, "/v1/embeddings", {"input": TEXTS[0], "model": "base",
                                                       "parameters": {"adapter_id": "nope"}})
    assert (status, "`model` may be " in error["error"]["message"]) == (404, False)
    base = {"input": TEXTS[0], "model": "looms", "parameters": {"adapter_id": "__base_model__"}}
    assert post_json(weft, "/v1/embeddings", base)[1]["data"][0]["embedding"] != answer["embeddings"]
    plain = post_json(weft, "/embed", {"inputs": TEXTS[0]})[1]["embeddings"]
    assert plain == pytest.approx(compute_mean_hidden_state(folder, TEXTS[0]), abs=1e-5)
    assert plain != answer["embeddings"]


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 5])  # they find many entities, and long ones
def test_entities_match_the_transformers_pipeline(tmp_path: Path, seed: int) -> None:
    folder = make_bert_encoder(tmp_path, labels=True, seed=seed)
    model = AutoModelForTokenClassification.from_pretrained(folder).eval()
    oracle = pipeline("ner", model=model, tokenizer=AutoTokenizer.from_pretrained(folder),
                      aggregation_strategy="simple")
    expected = [[{**entity, "score": pytest.approx(float(entity["score"]), abs=1e-5), "word": entity["word"].lower()}
                 for entity in oracle(text)] for text in TEXTS]
    assert all(expected)
    with run_weft_process(tmp_path, str(folder), *SERVER_ARGUMENTS) as weft:
        assert any("/classify" in row for row in weft.banner)
        alone = [post_json(weft, "/classify", {"inputs": text})[1] for text in TEXTS]
        assert alone == expected
        assert post_json(weft, "/classify_batch", {"inputs": TEXTS * 5}) == (200, alone * 5)
        assert post_json(weft, "/embed", {"inputs": "x"})[0] == 422
