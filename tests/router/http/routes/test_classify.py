"""Token classification over HTTP with the simulated shard, whose labels depend on the letters."""

import json

import pytest
from support.servers.in_process_server import play_scenario

# A letter's label is its byte modulo 3. Labels without a B- or I- prefix: adjacent equal labels form one entity.
SIMULATED_SETTINGS = {"num_labels": 3}


def post_json(tmp_path, path, body, **settings):
    response_parts = []

    async def scenario(weft):
        async with weft.http_session.post(path, json=body) as answer:
            response_parts.extend((answer.status, json.loads(await answer.read()), answer.headers))
        await weft.engine.wait_until_drained()

    play_scenario(scenario, tmp_path, http=True, **SIMULATED_SETTINGS | settings)
    return response_parts


def make_entity(label, word, start, *scores):
    return {"entity_group": f"LABEL_{label}", "score": sum(scores) / len(scores), "word": word, "start": start,
            "end": start + len(word)}


CFA_ENTITIES = [make_entity(0, "cf", 0, 1.0, 127 / 128), make_entity(1, "a", 2, 126 / 128)]  # 99, 102, 97


def test_adjacent_equal_labels_form_one_entity(tmp_path):
    status, answer, headers = post_json(tmp_path, "/classify", {"inputs": "cfa", "parameters": None, "stream": False})
    assert (status, answer) == (200, CFA_ENTITIES)
    assert {"x-compute-type", "x-compute-time", "x-validation-time", "x-queue-time", "x-inference-time"} <= {
        *map(str.lower, headers)}


def test_lorax_reports_whole_milliseconds(tmp_path):
    _, _, headers = post_json(tmp_path, "/classify_batch", {"inputs": ["cfa"]}, compat="lorax")
    assert headers["x-compute-type"] == "gpu+optimized"
    assert all(headers[f"x-{name}-time"].isdigit() for name in ("compute", "validation", "queue", "inference"))
    assert not {"x-model-id", "x-adapter-id", "x-adapter-source"} & {*map(str.lower, headers)}


def test_lorax_reports_every_client_error_as_validation(tmp_path):
    """LoRAX's client treats any other `error_type` as an unknown error."""
    status, answer, _ = post_json(tmp_path, "/classify_batch", {"inputs": ["x"] * 5}, compat="lorax")
    assert (status, answer["error_type"]) == (422, "validation")


def test_words_are_lowercased(tmp_path):
    _, answer, _ = post_json(tmp_path, "/classify", {"inputs": "AZ"})
    assert [each["word"] for each in answer] == ["a", "z"]


def test_batch_returns_one_list_per_text(tmp_path):
    status, answer, _ = post_json(tmp_path, "/classify_batch", {"inputs": ["cfa", "c"]})
    assert (status, answer) == (200, [CFA_ENTITIES, [make_entity(0, "c", 0, 1.0)]])


@pytest.mark.parametrize(("path", "inputs", "part"), [
    ("/classify", "", "must not be an empty string"), ("/classify", ["x"], "inputs"),
    ("/classify", "x" * 41, "at most 40 tokens (--max-batch-prefill-tokens), got 41"),
    ("/classify_batch", [], "inputs"), ("/classify_batch", "x", "inputs"),
    ("/classify_batch", ["x"] * 5, "at most 4 texts (--max-client-batch-size), got 5")])
def test_invalid_inputs_are_rejected(tmp_path, path, inputs, part):
    status, answer, _ = post_json(tmp_path, path, {"inputs": inputs}, max_client_batch_size=4,
                                  max_batch_prefill_tokens=40)
    assert status == 422
    assert part in answer["error"]


def test_model_without_labels_rejects_classification(tmp_path):
    status, answer, _ = post_json(tmp_path, "/classify", {"inputs": "x"}, num_labels=0)
    assert (status, answer["error_type"]) == (422, "validation")
    assert "does not label tokens; it generates text" in answer["error"]


def test_shard_failure_is_a_server_error(tmp_path):
    status, answer, _ = post_json(tmp_path, "/classify_batch", {"inputs": ["a", "b"]}, faults="fail_sequence@embed:1:1")
    assert (status, answer["error_type"]) == (500, "classification_failure")
    assert answer["error"] == "Classification Failure: the model's output was not a number"
