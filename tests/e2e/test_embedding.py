"""Tests of `weft serve` with a small encoder: its results are those of transformers, alone and batched."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.peft_adapters import unwarned
from support.small_encoders import LINES, encoder
from support.weft_process import Weft, serving
from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer, pipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # processes that load torch

TEXTS = [*LINES, "The weaver of Prague met Bob and Ada in Paris; nobody else was there ☃ .",
         "Ada " * 40]
ALONE = ("--threads", "1", "--max-client-batch-size", "32")  # threads wait for each other on a busy machine


def asked(weft: Weft, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    request = Request(weft.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urlopen(request) as response:
            return int(response.status), json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


def mean_state(folder: Path, text: str) -> list[float]:
    """Return the mean hidden state, the embedding of sentence-transformers for a folder without a pooling config."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return list(model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).tolist())


def test_embeddings_are_those_of_transformers(tmp_path: Path) -> None:
    folder = encoder(tmp_path, labels=False)
    right = [pytest.approx(mean_state(folder, text), abs=1e-5) for text in TEXTS]
    with serving(tmp_path, str(folder), *ALONE) as weft:
        assert any("/embed" in row for row in weft.banner)
        assert not any(row.startswith("  cache") for row in weft.banner)
        assert weft.status("/health") == weft.status("/v1/models") == 200
        assert weft.info()["max_input_tokens"] == 160
        alone = [asked(weft, "/embed", {"inputs": text})[1]["embeddings"] for text in TEXTS]
        assert alone == right
        company = asked(weft, "/v1/embeddings", {"input": TEXTS * 5, "model": "x"})[1]["data"]
        assert [row["embedding"] for row in company] == alone * 5
        many = asked(weft, "/v1/embeddings", {"input": TEXTS * 100})[1]
        assert [row["embedding"] for row in many["data"]] == alone * 100
        with ThreadPoolExecutor(8) as threads:
            answers = threads.map(lambda text: asked(weft, "/embed", {"inputs": text})[1]["embeddings"], TEXTS * 5)
            assert list(answers) == alone * 5
        status, error = asked(weft, "/generate", {"inputs": "x"})
        assert (status, error["error_type"]) == (422, "validation")
        assert "does not generate text; it makes embeddings" in error["error"]
        status, error = asked(weft, "/embed", {"inputs": "Ada " * 200})
        assert status == 422
        assert "at most 160 tokens (what the model holds)" in error["error"]


def test_embeddings_by_an_adapter_are_those_of_peft(tmp_path: Path) -> None:
    folder = encoder(tmp_path, labels=False)
    with unwarned():
        model = get_peft_model(AutoModel.from_pretrained(folder, add_pooling_layer=False),
                               LoraConfig(target_modules=["query", "value"], init_lora_weights=False)).eval()
        model.save_pretrained(tmp_path / "adapters" / "looms")
    tokens = AutoTokenizer.from_pretrained(folder)(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        right = model(**tokens).last_hidden_state[0].mean(0).tolist()
    with serving(tmp_path, str(folder), *ALONE, "--adapter-root", str(tmp_path / "adapters")) as weft:
        by_it = {"inputs": TEXTS[0], "parameters": {"adapter_id": "looms", "adapter_source": "local"}}
        status, answer = asked(weft, "/embed", by_it)
        assert status == 200, answer
        assert answer["embeddings"] == pytest.approx(right, abs=1e-4)
        plain = asked(weft, "/embed", {"inputs": TEXTS[0]})[1]["embeddings"]
        assert plain == pytest.approx(mean_state(folder, TEXTS[0]), abs=1e-5)
        assert plain != answer["embeddings"]


@pytest.mark.parametrize("seed", [1, 5])  # models that find many entities, and long ones
def test_entities_are_those_of_the_pipeline(tmp_path: Path, seed: int) -> None:
    folder = encoder(tmp_path, labels=True, seed=seed)
    model = AutoModelForTokenClassification.from_pretrained(folder).eval()
    oracle = pipeline("ner", model=model, tokenizer=AutoTokenizer.from_pretrained(folder),
                      aggregation_strategy="simple")
    right = [[{**entity, "score": pytest.approx(float(entity["score"]), abs=1e-5), "word": entity["word"].lower()}
              for entity in oracle(text)] for text in TEXTS]
    assert all(right)
    with serving(tmp_path, str(folder), *ALONE) as weft:
        assert any("/classify" in row for row in weft.banner)
        alone = [asked(weft, "/classify", {"inputs": text})[1] for text in TEXTS]
        assert alone == right
        assert asked(weft, "/classify_batch", {"inputs": TEXTS * 5}) == (200, alone * 5)
        assert asked(weft, "/embed", {"inputs": "x"})[0] == 422
