"""Tests with official, unmodified clients, each in its own environment, against the demo model and small encoders.

The scripts beside this file run in these environments and contain the checks. A client that cannot be installed is
skipped.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.checkpoints.small_encoders import make_bert_encoder
from support.request_fields import find_faults
from support.servers.client_environments import make_client_environment, make_node_environment
from support.servers.weft_process import SIMULATED_MODEL, WeftProcess, run_weft_process
from transformers import AutoModelForCausalLM, AutoTokenizer

CLIENTS_FOLDER = Path(__file__).parent
CLIENT_PACKAGES = {
    "anthropic_client": ("anthropic==2.14.0",),
    "hub": ("huggingface_hub==2.4.0",),
    "ollama_client": ("ollama==0.6.3",),
    "openai_python": ("openai==3.52.0",),
    "text_generation_client": ("text-generation==0.7.0",),
}
JS_PACKAGES = ("openai@6.49.0", "ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.92",
               "@ai-sdk/anthropic@3.0.140", "zod@4.6.7")
LORAX_CLIENT_PACKAGES = {
    "lorax_client": ("lorax-client==0.6.3", "certifi==2024.7.4"),  # the only certifi that lorax-client accepts
}
# The request types of clients, by the route and the name of an object in its body.
REQUEST_TYPES = {
    "openai_python": {
        "/v1/chat/completions": ["openai.types.chat.completion_create_params:CompletionCreateParamsStreaming"],
        "/v1/chat/completions stream_options": ["openai.types.chat:ChatCompletionStreamOptionsParam"],
        "/v1/completions": ["openai.types.completion_create_params:CompletionCreateParamsStreaming"],
        "/v1/embeddings": ["openai.types.embedding_create_params:EmbeddingCreateParams"],
        "/v1/responses": ["openai.types.responses.response_create_params:ResponseCreateParamsStreaming"],
        "/v1/responses reasoning": ["openai.types.shared_params:Reasoning"],
        "/v1/responses text": ["openai.types.responses:ResponseTextConfigParam"]},
    "anthropic_client": {
        "/v1/messages": ["anthropic.types.message_create_params:MessageCreateParamsStreaming",
                         "anthropic.types.beta.message_create_params:MessageCreateParamsStreaming"],
        "/v1/messages output_config": ["anthropic.types:OutputConfigParam",
                                       "anthropic.types.beta:BetaOutputConfigParam"],
        "/v1/messages thinking": ["anthropic.types:ThinkingConfigEnabledParam",
                                  "anthropic.types:ThinkingConfigAdaptiveParam"],
        "/v1/messages/count_tokens": [
            "anthropic.types.message_count_tokens_params:MessageCountTokensParams",
            "anthropic.types.beta.message_count_tokens_params:MessageCountTokensParams"]},
    "ollama_client": {
        "/api/chat": ["ollama._types:ChatRequest"], "/api/chat options": ["ollama._types:Options"],
        "/api/generate": ["ollama._types:GenerateRequest"], "/api/embed": ["ollama._types:EmbedRequest"],
        "/api/embeddings": ["ollama._types:EmbeddingsRequest"], "/api/show": ["ollama._types:ShowRequest"]}}

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def weft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    with run_weft_process(tmp_path_factory.mktemp("weft"), "--max-concurrent-requests", "4") as server:
        yield server


@pytest.fixture(scope="module")
def lorax_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    with run_weft_process(tmp_path_factory.mktemp("lorax"), "--max-concurrent-requests", "4", "--compat",
                          "lorax") as server:
        yield server


@pytest.fixture(scope="module")
def encoder_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WeftProcess, WeftProcess]]:
    """Start two servers: one labels tokens with a model that finds many entities, the other makes embeddings."""
    folder = tmp_path_factory.mktemp("encoders")
    arguments = ("--compat", "lorax", "--threads", "1")  # threads wait for each other on a busy machine
    with (run_weft_process(folder, str(make_bert_encoder(folder, labels=True, seed=1)), *arguments) as labels,
          run_weft_process(folder, str(make_bert_encoder(folder, labels=False)), *arguments) as vectors):
        yield labels, vectors


@pytest.mark.parametrize("name", CLIENT_PACKAGES)
def test_official_client_checks_pass(weft: WeftProcess, tmp_path: Path, name: str) -> None:
    run_client_script((weft,), tmp_path, name, CLIENT_PACKAGES[name])


def test_responses_checks_pass(weft: WeftProcess, tmp_path: Path) -> None:
    run_client_script((weft,), tmp_path, "openai_python", CLIENT_PACKAGES["openai_python"], script="responses_client")


def test_openai_client_reports_failures(tmp_path: Path) -> None:
    faults = ("--simulated-faults",
              "fail_sequence@decode:3:0;fail_sequence@decode:6:0;fail_sequence@decode:9:0", "--api-key", "sk-loom")
    with run_weft_process(tmp_path, SIMULATED_MODEL, *faults) as weft:
        run_client_script((weft,), tmp_path, "openai_python", CLIENT_PACKAGES["openai_python"],
                          script="openai_failures")


@pytest.mark.parametrize("name", LORAX_CLIENT_PACKAGES)
def test_lorax_client_checks_pass(lorax_server: WeftProcess, tmp_path: Path, name: str) -> None:
    run_client_script((lorax_server,), tmp_path, name, LORAX_CLIENT_PACKAGES[name])


@pytest.mark.parametrize("name", LORAX_CLIENT_PACKAGES)
def test_lorax_encoder_client_checks_pass(encoder_servers: tuple[WeftProcess, WeftProcess], tmp_path: Path,
                                          name: str) -> None:
    run_client_script(encoder_servers, tmp_path, name, LORAX_CLIENT_PACKAGES[name], script="lorax_encoder_client")


def test_javascript_client_checks_pass(weft: WeftProcess) -> None:
    folder = make_node_environment("js", *JS_PACKAGES)
    shutil.copy(CLIENTS_FOLDER / "js_clients.mjs", folder)  # modules are found beside the script
    completed = subprocess.run(["node", folder / "js_clients.mjs", weft.url], capture_output=True, text=True,
                               check=False)
    assert (completed.returncode, completed.stderr) == (0, ""), completed.stderr[-3000:]


def test_lm_eval_computes_the_loglikelihoods_of_transformers(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, "llama")
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran", "away", "from", "dogs", "to", "hide",
             "under", "some", "old", "house", "in", "town"]
    pairs = [(" ".join(words[start:start + 5]), " " + " ".join(words[start + 5:start + 8])) for start in range(12)]
    (folder / "pairs.json").write_text(json.dumps(pairs))
    with run_weft_process(tmp_path, str(folder), "--threads", "1", "--dtype", "float32") as weft:
        run_client_script((weft,), tmp_path, "lm_eval", ("lm-eval[api]==0.4.13", "transformers==5.23.0"),
                          script="lm_eval_client", arguments=(str(folder),), is_quiet=False)
    found = json.loads((folder / "loglikelihoods.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for (context, continuation), (loglikelihood, is_greedy) in zip(pairs, found, strict=True):
        context_tokens = tokenizer.encode(context, add_special_tokens=False)
        tokens = tokenizer.encode(context + continuation, add_special_tokens=False)
        with torch.inference_mode():
            logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        rows, targets = range(len(context_tokens) - 1, len(tokens) - 1), tokens[len(context_tokens):]
        assert loglikelihood == pytest.approx(sum(logprobs[row, target].item() for row, target in zip(
            rows, targets, strict=True)), abs=1e-3)
        assert is_greedy == all(logprobs[row].argmax().item() == target for row, target in zip(
            rows, targets, strict=True))


@pytest.mark.parametrize("name", REQUEST_TYPES)
def test_each_request_field_of_a_client_is_honoured_ignored_or_refused(name: str) -> None:
    """Each field has exactly one of these treatments. A new version of a client may bring fields that have none."""
    python = make_client_environment(name, *CLIENT_PACKAGES[name])
    types = [path for paths in REQUEST_TYPES[name].values() for path in paths]
    printed = subprocess.run([python, "-P", CLIENTS_FOLDER / "print_type_fields.py", *types], capture_output=True,
                             text=True, check=True).stdout
    fields_by_type = json.loads(printed)
    assert all(fields_by_type.values())
    assert find_faults({body: {name for path in paths for name in fields_by_type[path]}
                        for body, paths in REQUEST_TYPES[name].items()}) == {}


def run_client_script(servers: tuple[WeftProcess, ...], folder: Path, client_name: str, packages: tuple[str, ...],
                      script: str = "", *, arguments: tuple[str, ...] = (), is_quiet: bool = True) -> None:
    """Run a client's script with the servers' URLs and further arguments. It succeeds, and `is_quiet` says nothing."""
    command = [make_client_environment(client_name, *packages), "-P", CLIENTS_FOLDER / f"{script or client_name}.py",
               *(weft.url for weft in servers), *arguments]
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False,
                               env={"HOME": str(folder), "PATH": "/usr/bin:/bin"})
    sys.stdout.write(completed.stdout)
    assert completed.returncode == 0, completed.stderr[-3000:]
    assert not (is_quiet and completed.stderr), completed.stderr[-3000:]
    assert {weft.get_status("/health") for weft in servers} == {200}
