"""Which architectures there are. Another one is a file beside this, and a line here."""

from collections.abc import Callable
from typing import Any, NamedTuple

from shard.distributed import Group
from shard.given import Given
from shard.models import falcon, gpt2, gpt_neox, llama, qwen2, qwen3, starcoder2
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, Source
from shard.weights import Weights


class Architecture(NamedTuple):
    describe: Callable[[Given], ModelConfig]
    read: Callable[[Source[Any]], Decoder]


ARCHITECTURES: dict[str, Architecture] = {
    "FalconForCausalLM": Architecture(falcon.describe_falcon, falcon.read_falcon),
    "GPT2LMHeadModel": Architecture(gpt2.describe_gpt2, gpt2.read_gpt2),
    "GPTNeoXForCausalLM": Architecture(gpt_neox.describe_gpt_neox, gpt_neox.read_gpt_neox),
    "LlamaForCausalLM": Architecture(llama.describe_llama, llama.read_llama),
    "Qwen2ForCausalLM": Architecture(qwen2.describe_qwen2, qwen2.read_qwen2),
    "Qwen3ForCausalLM": Architecture(qwen3.describe_qwen3, qwen3.read_qwen3),
    "Starcoder2ForCausalLM": Architecture(starcoder2.describe_starcoder2, starcoder2.read_starcoder2),
}


def load_model(config: ModelConfig, weights: Weights, group: Group) -> Decoder:
    """This rank's part, in the type and on the device of `weights`."""
    return ARCHITECTURES[config.architecture].read(Source(config, weights, group))
