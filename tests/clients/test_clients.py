"""Tests with official, unmodified clients, each in its own environment, against the demo model and small encoders.

The scripts beside this file run in these environments and contain the checks. The examples of docs/clients.md run
there, too. A client that cannot be installed is skipped.
"""

import json
import re
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
REPOSITORY_ROOT = CLIENTS_FOLDER.parents[1]
DEMO_MODEL_FOLDER = REPOSITORY_ROOT / "launcher/demo/model"
CLIENT_PACKAGES = {
    "agents_client": ("openai-agents==0.24.0", "pydantic-ai-slim[openai,anthropic]==2.68.0"),
    "anthropic_client": ("anthropic==2.14.0",),
    "hub": ("huggingface_hub==2.4.0",),
    "instructor_client": ("instructor==1.17.0",),
    "langchain_client": ("langchain-openai==1.7.4", "langchain-anthropic==1.7.10", "langchain-ollama==1.1.0"),
    "litellm_client": ("litellm==1.110.2",),
    "llama_index_client": ("llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"),
    "ollama_client": ("ollama==0.6.3",),
    "openai_python": ("openai==3.52.0",),
    "text_generation_client": ("text-generation==0.7.0",),
}
GUIDELLM_PACKAGES = ("guidellm==0.8.1", "torch==2.13.0")  # a build for CPUs, where pip finds one
LM_EVAL_PACKAGES = ("lm-eval[api]==0.4.13", "transformers==5.23.0")
JS_PACKAGES = ("openai@6.49.0", "ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.92",
               "@ai-sdk/anthropic@3.0.140", "zod@4.6.7")
LORAX_CLIENT_PACKAGES = {
    "lorax_client": ("lorax-client==0.6.3", "certifi==2024.7.4"),  # the only certifi that lorax-client accepts
}
# The environments of the examples on the page of clients, by the section.
PAGE_ENVIRONMENTS = {
    "curl": "", "OpenAI": "openai_python", "Anthropic": "anthropic_client", "huggingface_hub": "hub",
    "text-generation": "text_generation_client", "LoRAX": "lorax_client", "Ollama": "ollama_client",
    "LangChain": "langchain_client", "LlamaIndex": "llama_index_client", "LiteLLM": "litellm_client",
    "Agents": "agents_client", "Vercel's AI SDK": "", "guidellm": "guidellm_client", "lm-eval": "lm_eval"}
PAGE_PACKAGES = CLIENT_PACKAGES | LORAX_CLIENT_PACKAGES | {"guidellm_client": GUIDELLM_PACKAGES,
                                                           "lm_eval": LM_EVAL_PACKAGES}
LM_EVAL_TASK = """
task: my_task
dataset_path: json
dataset_kwargs: {data_files: FOLDER/questions.json}
test_split: train
output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc}]
"""

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
        run_client_script((weft,), tmp_path, "lm_eval", LM_EVAL_PACKAGES, script="lm_eval_client",
                          arguments=(str(folder),), is_quiet=False)
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


def test_guidellm_checks_pass(weft: WeftProcess, tmp_path: Path) -> None:
    run_client_script((weft,), tmp_path, "guidellm_client", GUIDELLM_PACKAGES, arguments=(str(DEMO_MODEL_FOLDER),),
                      is_quiet=False)


def test_lm_eval_chat_checks_pass(weft: WeftProcess, tmp_path: Path) -> None:
    run_client_script((weft,), tmp_path, "lm_eval", LM_EVAL_PACKAGES, script="lm_eval_chat_client", is_quiet=False)


@pytest.mark.parametrize("section", PAGE_ENVIRONMENTS)
def test_examples_on_the_page_of_clients_run(weft: WeftProcess, lorax_server: WeftProcess, tmp_path: Path,
                                             section: str) -> None:
    """Run the examples of each language; they print what their comments say."""
    server = lorax_server if section == "LoRAX" else weft
    replacements = {"http://127.0.0.1:3000": server.url, "/path/to/model": str(DEMO_MODEL_FOLDER),
                    "/path/to/tasks": str(make_lm_eval_tasks(tmp_path))}
    for language, code in read_examples()[section].items():
        script = code
        for words, replacement in replacements.items():
            script = script.replace(words, replacement)
        output = run_example(language, script, PAGE_ENVIRONMENTS[section], tmp_path)
        printed = re.findall(r"^(?:print|console\.log)\(.*\);? +(?:#|//) (.+)$", code, re.MULTILINE)
        assert [words for words in printed if words not in output] == []
        assert (bool(output), '"error"' in output) == (True, False)


def test_each_section_with_examples_has_an_environment() -> None:
    assert read_examples().keys() == PAGE_ENVIRONMENTS.keys()


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


def read_examples() -> dict[str, dict[str, str]]:
    """Return the code of the examples on the page, by section and language. Commands of weft itself are left out."""
    examples: dict[str, dict[str, str]] = {}
    for section in (REPOSITORY_ROOT / "docs/clients.md").read_text().split("\n## ")[1:]:
        title = section.partition("\n")[0]
        for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE):
            if not code.startswith("weft "):
                codes = examples.setdefault(title, {})
                codes[language] = codes.get(language, "") + code
    return examples


def run_example(language: str, code: str, environment: str, folder: Path) -> str:
    """Run code in the client's environment; return what it prints."""
    if language == "javascript":
        script = make_node_environment("js", *JS_PACKAGES) / "example.mjs"
        command, variables = ["node", script], None
    else:
        python = Path(sys.executable)
        if environment:
            python = make_client_environment(environment, *PAGE_PACKAGES[environment])
        script = folder / "example"
        command = [python, "-P", script] if language == "python" else ["bash", "-eu", script]
        variables = {"HOME": str(folder), "PATH": f"{python.parent}:/usr/bin:/bin"}
        if language == "sh":
            variables["HF_HUB_OFFLINE"] = "1"
    script.write_text(code)
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=variables)
    assert completed.returncode == 0, completed.stderr[-3000:]
    return completed.stdout


def make_lm_eval_tasks(folder: Path) -> Path:
    """Return a folder with a task of lm-eval."""
    tasks_folder = folder / "tasks"
    tasks_folder.mkdir()
    (tasks_folder / "my_task.yaml").write_text(LM_EVAL_TASK.replace("FOLDER", str(tasks_folder)))
    (tasks_folder / "questions.json").write_text(json.dumps([
        {"question": "The cat sat on the", "choices": [" mat.", " moon."], "answer": 0},
        {"question": "One, two,", "choices": [" three.", " red."], "answer": 0}]))
    return tasks_folder
