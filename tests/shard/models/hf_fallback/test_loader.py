"""Models run through transformers' own modules agree with transformers; unsupported ones are rejected by name."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints.small_checkpoints import DECODER_SIZES, FALLBACK_FAMILIES, make_tiny_checkpoint
from support.model_runs.decoder_reference import check_decoder_matches_transformers, run_forward_on_ranks
from support.shards.scheduler_with_workers import ScheduledRequest, SchedulerWithWorkers
from transformers import AutoModelForCausalLM

from router.request import Request
from shard.json_config import JsonConfig
from shard.models.registry import parse_model_config

REPOSITORY_ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module", params=FALLBACK_FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def checkpoint(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), family)


@pytest.fixture(scope="module")
def scheduler_with_workers(checkpoint: Path) -> Iterator[SchedulerWithWorkers]:
    with SchedulerWithWorkers(checkpoint) as harness:
        yield harness


def make_scheduled_requests() -> list[ScheduledRequest]:
    generator = torch.Generator().manual_seed(7)
    lengths = (1, 5, 17, 40, 100)
    prompts = [tuple(torch.randint(2, 512, (length,), generator=generator).tolist()) for length in lengths]
    return [ScheduledRequest(Request(str(place), prompt, 24 - 4 * place), arrival_step=2 * place)
            for place, prompt in enumerate(prompts)]


def check_tokens_match_transformers(checkpoint: Path, harness: SchedulerWithWorkers, **settings: Any) -> None:
    """Assert that every token is transformers' best after the tokens before it."""
    transformers_model, scheduled_requests = (AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32),
                                              make_scheduled_requests())
    for scheduled_request, output in zip(scheduled_requests, harness.run_together(scheduled_requests, **settings),
                                         strict=True):
        prompt = scheduled_request.request.prompt
        with torch.inference_mode():
            logits = transformers_model(torch.tensor([[*prompt, *output.tokens]])).logits[0, len(prompt) - 1:-1]
        assert output.tokens == logits.argmax(-1).tolist()
        assert output.logprobs == pytest.approx(logits.log_softmax(-1).amax(-1).tolist(), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_hidden_states_and_logits_match_transformers(checkpoint: Path, backend: str) -> None:
    check_decoder_matches_transformers(checkpoint, torch.float32, backend=backend)


@pytest.mark.slow
def test_bfloat16_is_as_accurate_as_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    check_decoder_matches_transformers(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "granite"), torch.bfloat16)


@pytest.mark.slow
def test_tokens_match_transformers_when_batched_and_chunked(checkpoint: Path,
                                                            scheduler_with_workers: SchedulerWithWorkers) -> None:
    check_tokens_match_transformers(checkpoint, scheduler_with_workers, max_batch_prefill_tokens=48)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_ranks"), [("granite", 4), ("olmo", 2), ("phi", 2), ("smollm3", 2)])
def test_ranks_split_a_model_by_its_tensor_parallel_plan(
        tmp_path_factory: pytest.TempPathFactory, name: str, num_ranks: int) -> None:
    check_decoder_matches_transformers(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), name,
                                                            num_key_value_heads=4), torch.float32, num_ranks)


@pytest.mark.slow
def test_tokens_match_transformers_on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "granite")
    with SchedulerWithWorkers(folder, 2) as harness:
        check_tokens_match_transformers(folder, harness)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_ranks", "reason"), [
    ("glm", 2, "split as colwise_gather_output, rowwise_split_input; use --num-shard 1"),
    ("granite", 4, "it has 4 attention heads and 2 key/value heads"),
])
def test_models_that_cannot_be_split_are_rejected(
        tmp_path_factory: pytest.TempPathFactory, name: str, num_ranks: int, reason: str) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), name)
    with pytest.raises(ValueError, match=f"cannot be shared by {num_ranks} shards: .*{reason}"):
        run_forward_on_ranks(folder, torch.float32, num_ranks)


@pytest.mark.slow
def test_embeddings_may_be_tied(tmp_path_factory: pytest.TempPathFactory) -> None:
    check_decoder_matches_transformers(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "olmo",
                                                            tie_word_embeddings=True, older=True), torch.float32)


def make_json_config(architecture: str, model_type: str, **changes: Any) -> JsonConfig:
    values = {"architectures": [architecture], "model_type": model_type} | DECODER_SIZES | changes
    return JsonConfig(values, "config.json")


@pytest.mark.slow
@pytest.mark.parametrize(("hf_config", "reason"), [
    (make_json_config("GptOssForCausalLM", "gpt_oss"), "its attention depends on s_aux"),
    (make_json_config("DeepseekV3ForCausalLM", "deepseek_v3"),
     r"queries, keys and values differ in width \(192, 192, 128\)"),
    (make_json_config("MambaForCausalLM", "mamba"), "it keeps a state other than keys and values"),
    (make_json_config("StableLmForCausalLM", "stablelm"), "its attention in transformers cannot be replaced"),
    (make_json_config("NemotronForCausalLM", "nemotron"), "layers do not pass on all keyword arguments"),
    (make_json_config("T5ForConditionalGeneration", "t5", is_encoder_decoder=True), "it is an encoder-decoder"),
    (make_json_config("LlavaForConditionalGeneration", "llava", vision_config={}),
     r"it takes other input than text \(vision_config\)"),
    (make_json_config("OlmoForCausalLM", "olmo",
                      rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
     "its positions are of the type dynamic"),
    (make_json_config("OlmoForCausalLM", "olmo", quantization_config={"quant_method": "gptq"}), "quantized as gptq"),
    (make_json_config("OlmoForCausalLM", "olmo", hidden_size="many"),
     "transformers does not understand its config.json"),
    (make_json_config("OlmoForCausalLM", "olmo", layer_types=["linear_attention"] * 2),
     "layers of the type linear_attention"),
    (make_json_config("BertForMaskedLM", "bert"), "transformers .* has no language model of this name"),
    (make_json_config("HomeMadeForCausalLM", "home_made",
                      auto_map={"AutoModelForCausalLM": "modeling.HomeMadeForCausalLM"}),
     "has no language model of this name; code that comes with a model is never run"),
], ids=lambda value: value.get("architectures")[0] if isinstance(value, JsonConfig) else value)
def test_unsupported_models_are_rejected_by_name(hf_config: JsonConfig, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^config.json: .*{reason}") as error:
        parse_model_config(hf_config)
    assert "\n" not in str(error.value)


def test_code_in_the_folder_is_ignored_if_transformers_has_the_class() -> None:
    parse_model_config(make_json_config("OlmoForCausalLM", "olmo", pad_token_id=0,
                                                    auto_map={"AutoModelForCausalLM": "modeling_olmo.OlmoForCausalLM"}))


@pytest.mark.slow
@pytest.mark.parametrize(("changed", "complaint"), [
    ("lack", "OlmoForCausalLM lacks model.layers.1.mlp.up_proj.weight"),
    ("more", "OlmoForCausalLM has no use for model.layers.1.mlp.extra.weight"),
    ("shape", r"another shape for model.layers.1.mlp.up_proj.weight \(\[127, 64\] instead of \[128, 64\]\)"),
])
def test_weights_that_do_not_match_the_model_are_rejected(
        tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, changed: str, complaint: str) -> None:
    folder, name = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "olmo"), "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(folder / "model.safetensors")
    weight = tensors.pop(name)
    more = {"lack": {}, "more": {name: weight, name.replace("up_proj", "extra"): weight.clone()},
            "shape": {name: weight[1:].clone()}}
    save_file(tensors | more[changed], tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ValueError, match=complaint):
        run_forward_on_ranks(tmp_path, torch.float32)


@pytest.mark.slow
def test_listed_architecture_loads_without_importing_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    program = (
        "import json, sys\nfrom shard.config import ShardConfig\nfrom shard.workers.decoder import DecoderWorker\n"
        f"DecoderWorker(ShardConfig(model={json.dumps(str(folder))}))\nprint('transformers' in sys.modules)")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                            cwd=REPOSITORY_ROOT)
    assert result.stdout == "False\n"
