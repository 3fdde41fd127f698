"""Tests that quantized checkpoints generate on a GPU what their dequantized weights do."""

import pytest
from support.checkpoints.dequantized_checkpoints import make_checkpoint_pair
from support.checkpoints.quantized_checkpoints import (
    AwqTool,
    CompressedTensorsTool,
    Fp8Tool,
    GptqTool,
    QuantizationTool,
)
from support.model_runs.generation import PROMPTS, check_tokens, generate_in_batch, run_decoder_worker
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.gpu

TOOLS: dict[str, QuantizationTool] = {
    "gptq": GptqTool(), "gptq, reordered": GptqTool(sym=False, desc_act=True), "gptq, 8 bits": GptqTool(bits=8),
    "gptq, no groups": GptqTool(group_size=-1), "awq": AwqTool(), "fp8": Fp8Tool(),
    "fp8, blocks": Fp8Tool(kind="block"), "compressed-tensors": CompressedTensorsTool(),
    "compressed-tensors, int8": CompressedTensorsTool(format="int-quantized", bits=8, group_size=None),
}


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_tokens_are_those_of_the_dequantized_weights(tmp_path_factory: pytest.TempPathFactory, tool: QuantizationTool,
                                                     device: str) -> None:
    quantized, reference = make_checkpoint_pair(tmp_path_factory, tool)
    transformers_model = AutoModelForCausalLM.from_pretrained(reference).to(device).eval()
    with run_decoder_worker(quantized, device, "float32") as worker:
        for prompt, output in zip(PROMPTS, generate_in_batch(worker, *PROMPTS), strict=True):
            check_tokens(transformers_model, prompt, output, tolerance=1e-3)
