"""Which architectures there are. Another one is a file beside this, and a line here."""

from collections.abc import Callable
from typing import Any, NamedTuple

from shard.distributed import Group
from shard.given import Given
from shard.models import llama, qwen2, qwen3
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, Source
from shard.weights import Weights


class Architecture(NamedTuple):
    describe: Callable[[Given], ModelConfig]
    read: Callable[[Source[Any]], Decoder]


ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture(llama.describe_llama, llama.read_llama),
    "Qwen2ForCausalLM": Architecture(qwen2.describe_qwen2, qwen2.read_qwen2),
    "Qwen3ForCausalLM": Architecture(qwen3.describe_qwen3, qwen3.read_qwen3),
}


def load_model(config: ModelConfig, weights: Weights, group: Group) -> Decoder:
    """This rank's part, in the type and on the device of `weights`."""
    return ARCHITECTURES[config.architecture].read(Source(config, weights, group))
