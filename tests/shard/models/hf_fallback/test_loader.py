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
from support.core_with_workers import Loom, Thread
from support.small_checkpoints import FOREIGN, SIZES, tiny_checkpoint
from transformers import AutoModelForCausalLM

from router.request import Request
from shard.json_config import Given
from shard.models.read_config import describe_model
from tests.shard.forward import agrees, outcomes

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module", params=FOREIGN)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), family)


@pytest.fixture(scope="module")
def loom(folder: Path) -> Iterator[Loom]:
    with Loom(folder) as loom:
        yield loom


def crowd() -> list[Thread]:
    generator = torch.Generator().manual_seed(7)
    lengths = (1, 5, 17, 40, 100)
    prompts = [tuple(torch.randint(2, 512, (length,), generator=generator).tolist()) for length in lengths]
    return [Thread(Request(str(place), prompt, 24 - 4 * place), arrival=2 * place)
            for place, prompt in enumerate(prompts)]


def assert_right(folder: Path, loom: Loom, **settings: Any) -> None:
    """Assert that every token is transformers' best after the tokens before it."""
    oracle, threads = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), crowd()
    for thread, heard in zip(threads, loom.weave(threads, **settings), strict=True):
        prompt = thread.request.prompt
        with torch.inference_mode():
            logits = oracle(torch.tensor([[*prompt, *heard.tokens]])).logits[0, len(prompt) - 1:-1]
        assert heard.tokens == logits.argmax(-1).tolist()
        assert heard.logprobs == pytest.approx(logits.log_softmax(-1).amax(-1).tolist(), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_hidden_states_and_logits_are_transformers(folder: Path, backend: str) -> None:
    agrees(folder, torch.float32, backend=backend)


@pytest.mark.slow
def test_in_bfloat16_they_are_as_near(tmp_path_factory: pytest.TempPathFactory) -> None:
    agrees(tiny_checkpoint(tmp_path_factory.getbasetemp(), "granite"), torch.bfloat16)


@pytest.mark.slow
def test_in_company_and_in_chunks_a_sequence_goes_on_as_in_transformers(folder: Path, loom: Loom) -> None:
    assert_right(folder, loom, max_batch_prefill_tokens=48)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_ranks"), [("granite", 4), ("olmo", 2), ("phi", 2), ("smollm3", 2)])
def test_ranks_share_by_the_plan_that_comes_with_a_model(
        tmp_path_factory: pytest.TempPathFactory, name: str, num_ranks: int) -> None:
    agrees(tiny_checkpoint(tmp_path_factory.getbasetemp(), name, num_key_value_heads=4), torch.float32, num_ranks)


@pytest.mark.slow
def test_ranks_serve_it_together(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "granite")
    with Loom(folder, 2) as shared:
        assert_right(folder, shared)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_ranks", "reason"), [
    ("glm", 2, "split as colwise_gather_output, rowwise_split_input; use --num-shard 1"),
    ("granite", 4, "it has 4 attention heads and 2 key/value heads"),
])
def test_what_cannot_be_shared_is_refused(
        tmp_path_factory: pytest.TempPathFactory, name: str, num_ranks: int, reason: str) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), name)
    with pytest.raises(ValueError, match=f"cannot be shared by {num_ranks} shards: .*{reason}"):
        outcomes(folder, torch.float32, num_ranks)


@pytest.mark.slow
def test_embeddings_may_be_the_head(tmp_path_factory: pytest.TempPathFactory) -> None:
    agrees(tiny_checkpoint(tmp_path_factory.getbasetemp(), "olmo", tie_word_embeddings=True, older=True), torch.float32)


def tiny(architecture: str, model_type: str, **changes: Any) -> Given:
    values = {"architectures": [architecture], "model_type": model_type} | SIZES | changes
    return Given(values, "config.json")


@pytest.mark.slow
@pytest.mark.parametrize(("given", "reason"), [
    (tiny("GptOssForCausalLM", "gpt_oss"), "its attention depends on s_aux"),
    (tiny("DeepseekV3ForCausalLM", "deepseek_v3"), r"queries, keys and values differ in width \(192, 192, 128\)"),
    (tiny("MambaForCausalLM", "mamba"), "it keeps a state other than keys and values"),
    (tiny("StableLmForCausalLM", "stablelm"), "its attention in transformers cannot be replaced"),
    (tiny("NemotronForCausalLM", "nemotron"), "layers do not pass on all that they are told"),
    (tiny("T5ForConditionalGeneration", "t5", is_encoder_decoder=True), "it is an encoder-decoder"),
    (tiny("LlavaForConditionalGeneration", "llava", vision_config={}),
     r"it takes other input than text \(vision_config\)"),
    (tiny("OlmoForCausalLM", "olmo", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
     "its positions are of the type dynamic"),
    (tiny("OlmoForCausalLM", "olmo", quantization_config={"quant_method": "gptq"}), "quantised as gptq"),
    (tiny("OlmoForCausalLM", "olmo", hidden_size="many"), "transformers does not understand its config.json"),
    (tiny("OlmoForCausalLM", "olmo", layer_types=["linear_attention"] * 2), "layers of the type linear_attention"),
    (tiny("BertForMaskedLM", "bert"), "transformers .* has no language model of this name"),
    (tiny("HomeMadeForCausalLM", "home_made", auto_map={"AutoModelForCausalLM": "modeling.HomeMadeForCausalLM"}),
     "has no language model of this name; code that comes with a model is never run"),
], ids=lambda value: value.get("architectures")[0] if isinstance(value, Given) else value)
def test_what_our_attention_does_not_do_is_refused_by_name(given: Given, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^config.json: .*{reason}") as refused:
        describe_model(given)
    assert "\n" not in str(refused.value)


def test_code_in_the_folder_does_not_matter_where_transformers_has_the_class() -> None:
    describe_model(tiny("OlmoForCausalLM", "olmo", pad_token_id=0,
                    auto_map={"AutoModelForCausalLM": "modeling_olmo.OlmoForCausalLM"}))


@pytest.mark.slow
@pytest.mark.parametrize(("changed", "complaint"), [
    ("lack", "OlmoForCausalLM lacks model.layers.1.mlp.up_proj.weight"),
    ("more", "OlmoForCausalLM has no use for model.layers.1.mlp.extra.weight"),
    ("shape", r"another shape for model.layers.1.mlp.up_proj.weight \(\[127, 64\] instead of \[128, 64\]\)"),
])
def test_weights_must_be_those_of_the_model(
        tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, changed: str, complaint: str) -> None:
    folder, name = tiny_checkpoint(tmp_path_factory.getbasetemp(), "olmo"), "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(folder / "model.safetensors")
    weight = tensors.pop(name)
    more = {"lack": {}, "more": {name: weight, name.replace("up_proj", "extra"): weight.clone()},
            "shape": {name: weight[1:].clone()}}
    save_file(tensors | more[changed], tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ValueError, match=complaint):
        outcomes(tmp_path, torch.float32)


@pytest.mark.slow
def test_an_architecture_of_ours_starts_without_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    program = ("import json, sys\nfrom shard.config import ShardConfig\nfrom shard.workers.decoder import ModelWorker\n"
               f"ModelWorker(ShardConfig(model={json.dumps(str(folder))}))\nprint('transformers' in sys.modules)")
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert said.stdout == "False\n"
