"""Scores of pairs of texts with the simulated shard: cosine similarities of embeddings."""

import json
import random

import pytest
import torch
from support.scheduling.simulated_world import compute_expected_pooled
from support.servers.in_process_server import play_scenario
from torch.nn.functional import cosine_similarity

from router.http.routes.scoring import compute_similarities
from router.request import Request, RequestKind

RERANK_PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")
SCORE_PATHS = ("/score", "/v1/score")
QUERY = "a loom"
DOCUMENTS = ["warp and weft", "a tree", "a loom", "thread"]


def expected_scores(model, pairs):
    def embed(text):
        return torch.tensor(compute_expected_pooled(
            Request("r", tuple(text.encode()), 0, kind=RequestKind.EMBED), model), dtype=torch.float64)
    return [float(cosine_similarity(embed(first), embed(second), 0)) for first, second in pairs]


def post_json(tmp_path, path, body, **settings):
    """Return status, answer, headers and the simulated model."""
    response_parts = []

    async def scenario(weft):
        async with weft.http_session.post(path, json=body) as answer:
            response_parts.extend((answer.status, json.loads(await answer.read()), answer.headers, weft.model))
        await weft.check_idle()

    play_scenario(scenario, tmp_path, http=True, **settings)
    return response_parts


@pytest.mark.parametrize("path", RERANK_PATHS)
def test_documents_are_sorted_by_their_similarity_to_the_query(tmp_path, path):
    status, answer, headers, model = post_json(tmp_path, path, {"query": QUERY, "documents": DOCUMENTS, "model": "x"})
    scores = expected_scores(model, [(QUERY, document) for document in DOCUMENTS])
    assert (status, answer["model"], answer["id"].startswith("rerank-")) == (200, "simulated", True)
    num_tokens = len("".join([QUERY, *DOCUMENTS]))
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert (headers["x-prompt-tokens"], len(headers["x-request-id"])) == (str(num_tokens), 32)
    order = sorted(range(len(DOCUMENTS)), key=lambda index: -scores[index])
    assert [result["index"] for result in answer["results"]] == order
    for result in answer["results"]:
        assert result["document"] == {"text": DOCUMENTS[result["index"]]}
        assert result["relevance_score"] == pytest.approx(scores[result["index"]], abs=1e-6)
    assert (order[0], answer["results"][0]["relevance_score"]) == (2, 1)  # the query itself


@pytest.mark.parametrize(("fields", "num_results", "keys"), [
    ({"top_n": 2}, 2, {"index", "document", "relevance_score"}), ({"top_n": 0, "return_documents": False}, 4, {
        "index", "relevance_score"}),
    ({"top_n": 9, "return_documents": True, "documents": [{"text": text} for text in DOCUMENTS]}, 4, {
        "index", "document", "relevance_score"})])
def test_rerank_returns_the_best_with_or_without_documents(tmp_path, fields, num_results, keys):
    status, answer, _, _ = post_json(tmp_path, "/rerank", {"query": QUERY, "documents": DOCUMENTS} | fields)
    assert (status, len(answer["results"])) == (200, num_results)
    assert all(result.keys() == keys for result in answer["results"])


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"),
                                   ("data_1", "data_2")])
@pytest.mark.parametrize(("first", "second", "pairs"), [
    ("a", "b", [("a", "b")]), ("a", ["b", "c"], [("a", "b"), ("a", "c")]), (["a"], ["b"], [("a", "b")]),
    (["a", "b"], ["c", "d"], [("a", "c"), ("b", "d")])])
def test_score_compares_a_text_with_all_or_pair_by_pair(tmp_path, names, first, second, pairs):
    status, answer, headers, model = post_json(tmp_path, "/score", dict(zip(names, (first, second), strict=True)))
    assert (status, answer["object"], "x-ignored-fields" in headers) == (200, "list", False)
    assert [(row["index"], row["object"]) for row in answer["data"]] == [
        (index, "score") for index in range(len(pairs))]
    assert [row["score"] for row in answer["data"]] == pytest.approx(expected_scores(model, pairs), abs=1e-6)
    assert answer["usage"]["prompt_tokens"] == len(first) + len(second)


@pytest.mark.parametrize(("path", "body", "words"), [
    ("/v1/rerank", {"query": "a", "documents": []}, "`documents`"),
    ("/v1/rerank", {"query": "", "documents": ["a"]}, "`query` must not be an empty"),
    ("/v1/rerank", {"query": "a", "documents": ["a", ""]}, "`documents` must not be an empty"),
    ("/v1/rerank", {"query": "a", "documents": ["a"] * 2049}, "`documents` must hold at most 2048 texts, got 2049"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 5}, "`max_tokens_per_doc` is given"),
    ("/v1/score", {"queries": ["a", "b"], "documents": ["c"]},
     "`queries` must hold one text or as many as `documents`, which holds 1, got 2"),
    ("/v1/score", {"text_1": "a", "text_2": ["b"], "truncate_prompt_tokens": 1}, "`truncate_prompt_tokens` is given"),
    ("/v1/score", {"text_1": "a", "data_2": ["b", ""]}, "`data_2` must not be an empty"),
    ("/v1/score", {"text_1": "a"}, "`text_2`"), ("/v1/score", {"text_1": "a", "text_2": [5]}, "`text_2.0`")])
def test_invalid_field_is_named_in_the_error(serve, path, body, words):
    async def scenario(client, engine):
        async with client.post(path, json=body) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["type"]) == (400, "invalid_request_error")
            assert words in error["message"]
        assert engine.requests == []
    serve(scenario, embeddings=True)


@pytest.mark.parametrize("path", [*RERANK_PATHS, *SCORE_PATHS])
def test_model_without_embeddings_says_so(post, path):
    status, _, text = post(path, query="a", documents=["b"], queries="a")
    assert status == (400 if path.startswith("/v1/") else 422)
    assert "this model does not make embeddings; it generates text" in text


@pytest.mark.parametrize("num_first", [1, 5])
def test_similarities_are_those_of_torch(num_first):
    draw = random.Random(5).gauss
    first, second = [[[draw(0, 1) for _ in range(384)] for _ in range(count)] for count in (num_first, 5)]
    expected = cosine_similarity(torch.tensor(first, dtype=torch.float64), torch.tensor(second, dtype=torch.float64))
    assert compute_similarities(first, second) == pytest.approx(expected.tolist(), abs=1e-12)


def test_vector_of_zeros_is_similar_to_nothing():
    assert compute_similarities([[0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]) == [0.0, 0.0]
