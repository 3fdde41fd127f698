"""Which architectures there are. A further one is a file beside this, and a line here."""

from collections.abc import Callable

from shard.distributed import Group
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, Source
from shard.models.llama import read_llama
from shard.models.qwen2 import read_qwen2
from shard.models.qwen3 import read_qwen3
from shard.weights import Weights

ARCHITECTURES: dict[str, Callable[[Source], Decoder]] = {
    "LlamaForCausalLM": read_llama,
    "Qwen2ForCausalLM": read_qwen2,
    "Qwen3ForCausalLM": read_qwen3,
}


def load_model(config: ModelConfig, weights: Weights, group: Group) -> Decoder:
    """This rank's part, in the type and on the device of `weights`."""
    return ARCHITECTURES[config.architecture](Source(config, weights, group))
