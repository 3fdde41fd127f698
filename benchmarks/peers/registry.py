"""Servers of the comparison: weft in three weight classes and its peers, and the command line of each.

A server is one entry of SERVERS. All answer OpenAI's completions.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench.load.dialects import RequestOptions
from benchmarks.harness.processes import HOST, find_free_port
from benchmarks.peers.environments import (
    LLAMA_CPP,
    OPENVINO,
    TRANSFORMERS,
    VLLM,
    PeerEnvironment,
    copy_variables_without_pythonpath,
    install_environment,
)
from benchmarks.peers.models import PeerModels
from benchmarks.peers.server_processes import ServerCommand

WEIGHT_CLASSES = "16 bits", "int8", "int4"
OPENVINO_SERVER = Path(__file__).with_name("openvino_server.py")
NUM_CORES = str(os.cpu_count())
KV_CACHE_GB = "1"  # for servers that reserve it: more than 32 streams of 256 tokens need in these shapes


class ServerPlace(NamedTuple):
    """Facts about a server's surroundings that its command line depends on."""

    environment: Path  # folder of the server's environment
    model: Path
    port: int
    max_streams: int
    max_tokens: int  # of a prompt and its answer


@dataclass(frozen=True, slots=True)
class ComparedServer:
    """A server with one way to store weights."""

    name: str
    weight_class: str
    provide_model: Callable[[PeerModels], Path]
    make_command: Callable[[ServerPlace], list[str | Path]]
    environment: PeerEnvironment | None = None  # None: ours
    variables: Mapping[str, str] = field(default_factory=dict)
    needs_model_name: bool = False  # in requests: the model's folder
    can_ignore_eos: bool = True  # by a field of the request, which others refuse

    @property
    def is_weft(self) -> bool:
        return self.environment is None

    def prepare(self, root: Path, models: PeerModels, max_streams: int, max_tokens: int) -> ServerPlace:
        """Install the server below `root`, and make its model, unless both are there. Raises ProcessStartError."""
        folder = root if self.environment is None else install_environment(self.environment, root)
        return ServerPlace(folder, self.provide_model(models), find_free_port(), max_streams, max_tokens)

    def make_server_command(self, place: ServerPlace, cache_folder: Path) -> ServerCommand:
        """Return how to start the server, which keeps in `cache_folder` what it remembers from start to start."""
        inherited = dict(os.environ) if self.is_weft else copy_variables_without_pythonpath()
        return ServerCommand(
            tuple(self.make_command(place)), {**inherited, **self.variables, "XDG_CACHE_HOME": str(cache_folder)},
            f"http://{HOST}:{place.port}",
            RequestOptions(str(place.model) if self.needs_model_name else "", ignore_eos=self.can_ignore_eos))


def define_weft_server(name: str, weight_class: str, *flags: str) -> ComparedServer:
    return ComparedServer(name, weight_class, PeerModels.provide_checkpoint, lambda place: [
        sys.executable, "-P", "-m", "launcher.cli", "serve", place.model, "--port", str(place.port), *flags])


def define_llama_cpp_server(file_type: str, weight_class: str) -> ComparedServer:
    """Return llama.cpp's server with a slot for each stream."""
    return ComparedServer(
        f"llama.cpp-{file_type}", weight_class, lambda models: models.provide_gguf(file_type), lambda place: [
            place.environment / "build" / "bin" / "llama-server", "--model", place.model, "--host", HOST,
            "--port", str(place.port), "--threads", NUM_CORES, "--parallel", str(place.max_streams),
            "--ctx-size", str(place.max_streams * place.max_tokens), "--cache-ram", "0"], LLAMA_CPP)


def define_openvino_server(weight_format: str, weight_class: str) -> ComparedServer:
    return ComparedServer(
        f"openvino-{weight_format}", weight_class, lambda models: models.provide_openvino(weight_format),
        lambda place: [place.environment / "bin" / "python", "-P", OPENVINO_SERVER, place.model, HOST, str(place.port),
                       KV_CACHE_GB], OPENVINO)


def make_vllm_command(place: ServerPlace) -> list[str | Path]:
    """Return the command of the module, since the console script asks for a distribution of another name."""
    return [place.environment / "bin" / "python", "-P", "-m", "vllm.entrypoints.openai.api_server",
            "--model", place.model, "--host", HOST, "--port", str(place.port),
            "--dtype", "bfloat16", "--max-model-len", str(place.max_tokens), "--max-num-seqs", str(place.max_streams),
            "--no-enable-prefix-caching"]


def make_transformers_command(place: ServerPlace) -> list[str | Path]:
    return [place.environment / "bin" / "transformers", "serve", place.model, "--continuous-batching",
            "--device", "cpu", "--dtype", "bfloat16", "--host", HOST, "--port", str(place.port)]


SERVERS = {server.name: server for server in (
    define_weft_server("weft", "16 bits"),
    define_weft_server("weft-int8", "int8", "--quantize", "int8"),
    define_weft_server("weft-int4", "int4", "--quantize", "int4"),
    define_llama_cpp_server("bf16", "16 bits"), define_llama_cpp_server("q8_0", "int8"),
    define_llama_cpp_server("q4_0", "int4"), define_openvino_server("fp16", "16 bits"),
    define_openvino_server("int8", "int8"), define_openvino_server("int4", "int4"),
    ComparedServer("vllm", "16 bits", PeerModels.provide_checkpoint, make_vllm_command, VLLM,
                   # By default it leaves a core to the API server.
                   {"VLLM_CPU_OMP_THREADS_BIND": f"0-{int(NUM_CORES) - 1}", "VLLM_CPU_KVCACHE_SPACE": KV_CACHE_GB,
                    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}, needs_model_name=True),
    ComparedServer("transformers", "16 bits", PeerModels.provide_endless_checkpoint, make_transformers_command,
                   TRANSFORMERS, {"HF_HUB_OFFLINE": "1"}, needs_model_name=True, can_ignore_eos=False),
)}
PEERS = tuple(name for name, server in SERVERS.items() if not server.is_weft)
OUR_SERVERS = {server.weight_class: server for server in SERVERS.values() if server.is_weft}
