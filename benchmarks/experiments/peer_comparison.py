"""Comparison with other servers of language models, over HTTP on the same machine, by how weights are stored.

weft is started by `weft serve`, as users do, with 16 bits, `--quantize int8` and `--quantize int4`; llama.cpp, OpenVINO
GenAI, vLLM and transformers have environments of their own below `--folder`, which the first run makes, as it does
their files of one random model. Servers take turns, each alone, in another order each round. A server that cannot be
installed or started, or whose answers have other lengths, is a row with the reason.

`python -P -m benchmarks.experiments.peer_comparison --help` lists the settings. The last line is JSON.
"""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

import uvloop
from cyclopts import Parameter

from benchmarks.experiments.flag_comparison import RoundMetrics, ServerLoad
from benchmarks.harness import experiment
from benchmarks.harness.processes import ProcessStartError
from benchmarks.harness.random_checkpoints import LLAMA_SHAPES
from benchmarks.harness.reporting import report_results, save_json
from benchmarks.peers.models import PeerModels
from benchmarks.peers.registry import OUR_SERVERS, PEERS, SERVERS, WEIGHT_CLASSES, ComparedServer, ServerPlace
from benchmarks.peers.server_processes import run_server

NUM_SPARE_TOKENS = 64  # that a server may store beyond a prompt and its answer
WINDOW_FIGURES = "tokens_per_second", "first_token_p50", "first_token_p99", "gap_p99"
SERVER_FIGURES = "start_seconds", "peak_gb"
LARGER_IS_BETTER = {"tokens_per_second"}
COLUMN_WIDTH = 13


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class PeerComparisonSettings(experiment.ExperimentSettings):
    folder: str
    "Folder that keeps the peers' environments and the models for later runs: 12 GB for the default shape."
    peers: Annotated[tuple[Literal[PEERS], ...], Parameter(consume_multiple=True)] = PEERS  # type: ignore[valid-type]  # a computed Literal
    "Servers that are compared with weft."
    shape: Literal[LLAMA_SHAPES] = "qwen2.5-0.5b"  # type: ignore[valid-type]  # a computed Literal
    "Shape of the random model. llama.cpp takes part in those of Qwen 2."
    streams: experiment.PositiveInts = (1, 4, 16, 32)
    "Numbers of concurrent clients."
    prompt_tokens: experiment.PositiveInt = 128
    "Tokens of each prompt."
    output_tokens: experiment.PositiveInt = 128
    "Tokens of each answer."
    seconds: experiment.PositiveFloat = 40.0
    "Seconds for which each number of clients sends requests. Answers that have begun then are awaited, not measured."
    rounds: experiment.PositiveInt = 3
    "Number of starts and measurements of each server."
    install: bool = False
    "Only install the peers and make the models."

    @property
    def max_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens + NUM_SPARE_TOKENS

    @property
    def servers(self) -> list[ComparedServer]:
        """The peers, and weft in each of their weight classes."""
        peers = [SERVERS[name] for name in self.peers]
        weight_classes = {peer.weight_class for peer in peers}
        return [*(server for weight_class, server in OUR_SERVERS.items() if weight_class in weight_classes), *peers]


@dataclass(frozen=True, slots=True)
class ServerVisit:
    """Figures of a server from one start to its end."""

    start_seconds: float  # until the first answer
    peak_gb: float  # of memory, of all its processes
    windows: dict[int, RoundMetrics]  # by number of streams

    def get_figure(self, name: str, num_streams: int | None) -> float:
        value: float = getattr(self if num_streams is None else self.windows[num_streams], name)
        return value


@dataclass(slots=True)
class ServerResult:
    """Figures of a server, round by round; or the reason why it has none."""

    server: ComparedServer
    visits: list[ServerVisit] = field(default_factory=list)
    reason: str = ""

    @contextmanager
    def record_failure(self) -> Iterator[None]:
        """Keep the reason if the server cannot be installed, started or measured in the block."""
        try:
            yield
        except (ProcessStartError, ValueError, OSError) as error:
            self.reason = str(error) or repr(error)
            print(f"{self.server.name}: {self.reason}", flush=True)

    def get_figures(self, name: str, num_streams: int | None = None) -> list[float]:
        return [visit.get_figure(name, num_streams) for visit in self.visits]

    def median(self, name: str, num_streams: int | None = None) -> float:
        return statistics.median(self.get_figures(name, num_streams))

    def compute_ratio(self, other: "ServerResult", name: str, num_streams: int | None = None) -> float:
        """Return the median over the rounds of this server's figure divided by the other's."""
        return statistics.median(own / others for own, others in zip(
            self.get_figures(name, num_streams), other.get_figures(name, num_streams), strict=True))

    def to_json(self) -> dict[str, Any]:
        environment = self.server.environment
        described = {"server": self.server.name, "weight_class": self.server.weight_class,
                     "installed": environment.install_stamp.split("\n") if environment else []}
        if self.reason:
            return {**described, "reason": self.reason}
        return {**described, **{name: round(self.median(name), 3) for name in SERVER_FIGURES}, "streams": {
            num_streams: {name: round(self.median(name, num_streams), 4) for name in WINDOW_FIGURES}
            for num_streams in self.visits[0].windows}, "rounds": [asdict(visit) for visit in self.visits]}


class PeerComparison:
    """Measurement of all servers in turn. A server that fails is left out from then on."""

    def __init__(self, settings: PeerComparisonSettings, random: Random) -> None:
        self._settings, self._random = settings, random
        self._root = Path(settings.folder).absolute()
        self._models = PeerModels(self._root, settings.shape)
        self.results = {server.name: ServerResult(server) for server in settings.servers}

    def prepare(self) -> None:
        """Install all servers and make their models."""
        for result in self.results.values():
            with result.record_failure():
                self._prepare_server(result.server)

    def run(self) -> None:
        """Measure all servers in each round: those of a weight class one after the other, to be compared."""
        load = ServerLoad(self._models.provide_checkpoint(), str(self._settings.prompt_tokens),
                          str(self._settings.output_tokens), self._settings.seconds)
        for number in range(1, self._settings.rounds + 1):
            for result in self.shuffle_round():
                print(f"round {number}: {result.server.name}", flush=True)
                with result.record_failure():
                    result.visits.append(self._visit(result.server, load))

    def shuffle_round(self) -> list[ServerResult]:
        results = [result for result in self.results.values() if not result.reason]
        shuffled = self._random.sample(results, len(results))
        classes = self._random.sample(WEIGHT_CLASSES, len(WEIGHT_CLASSES))
        return sorted(shuffled, key=lambda result: classes.index(result.server.weight_class))

    def _prepare_server(self, server: ComparedServer) -> ServerPlace:
        return server.prepare(self._root, self._models, max(self._settings.streams), self._settings.max_tokens)

    def _visit(self, server: ComparedServer, load: ServerLoad) -> ServerVisit:
        command = server.make_server_command(self._prepare_server(server), self._root / "cache")
        with run_server(command) as running:
            uvloop.run(load.warm_up(running.target, max(self._settings.streams)))
            windows = dict[int, RoundMetrics]()
            for num_streams in self._settings.streams:
                windows[num_streams] = uvloop.run(load.measure(running.target, num_streams))
                print(f"{server.name}, {num_streams} streams: {windows[num_streams]}", flush=True)
            return ServerVisit(round(running.start_seconds, 3), round(running.memory.peak_gb, 3), windows)


def compare_with_best_peer(results: Sequence[ServerResult]) -> dict[str, Any]:
    """Return, for each weight class, the ratios of weft's figures to those of the best peer by each figure."""
    ratios = dict[str, Any]()
    for weight_class in WEIGHT_CLASSES:
        measured = [result for result in results if result.server.weight_class == weight_class and not result.reason]
        ours = [result for result in measured if result.server.is_weft]
        peers = [result for result in measured if not result.server.is_weft]
        if ours and peers:
            ratios[weight_class] = {**make_ratios(ours[0], peers, SERVER_FIGURES), "streams": {
                num_streams: make_ratios(ours[0], peers, WINDOW_FIGURES, num_streams)
                for num_streams in ours[0].visits[0].windows}}
    return ratios


def make_ratios(ours: ServerResult, peers: Sequence[ServerResult], names: Sequence[str],
                num_streams: int | None = None) -> dict[str, Any]:
    """Return, for each figure, the peer with the best median and the ratio of ours to that peer's."""
    ratios = dict[str, Any]()
    for name in names:
        choose = max if name in LARGER_IS_BETTER else min
        best = choose(peers, key=lambda peer: peer.median(name, num_streams))
        ratios[name] = {"peer": best.server.name, "ratio": round(ours.compute_ratio(best, name, num_streams), 3)}
    return ratios


COLUMNS = (("weights", "{0.weight_class}"), ("streams", "{1}"), ("server", "{0.name}"), ("tokens/s", "{2[0]:.1f}"),
           ("first p50", "{2[1]:.2f}"), ("first p99", "{2[2]:.2f}"), ("gap p99", "{2[3]:.3f}"),
           ("start s", "{3[0]:.1f}"), ("peak GB", "{3[1]:.2f}"), ("weft's", "{4}"))


def format_table(results: Sequence[ServerResult], streams: Sequence[int]) -> str:
    """Return a row for each server at each number of streams, then the reasons of those without figures."""
    rows = [make_row(result, num_streams, results)
            for weight_class in WEIGHT_CLASSES for num_streams in streams for result in results
            if result.server.weight_class == weight_class and not result.reason]
    reasons = [f"{result.server.name} ({result.server.weight_class}): {result.reason}" for result in results
               if result.reason]
    return "\n".join((experiment.format_columns(COLUMNS, rows, COLUMN_WIDTH), *reasons))


def make_row(result: ServerResult, num_streams: int, results: Sequence[ServerResult]) -> tuple[Any, ...]:
    ours = [other for other in results if other.server is OUR_SERVERS[result.server.weight_class] and not other.reason]
    ratio = f"{ours[0].compute_ratio(result, 'tokens_per_second', num_streams):.2f}" if ours else "-"
    return (result.server, num_streams, [result.median(name, num_streams) for name in WINDOW_FIGURES],
            [result.median(name) for name in SERVER_FIGURES], ratio)


def bench(settings: PeerComparisonSettings) -> None:
    """Measure weft and other servers: tokens/s, seconds to the first token and between tokens at each number of
    clients, seconds from the start to the first answer, and the peak of memory. The last column is weft's tokens/s
    divided by the row's."""
    comparison = PeerComparison(settings, Random(1))
    comparison.prepare()
    if settings.install:
        return
    comparison.run()
    results = list(comparison.results.values())
    figures = {"shape": settings.shape, "seconds": settings.seconds, "prompt_tokens": settings.prompt_tokens,
               "output_tokens": settings.output_tokens, "ratio_to_best_peer": compare_with_best_peer(results),
               "servers": [result.to_json() for result in results]}
    report_results("peers", format_table(results, settings.streams), figures, should_save=False)
    if settings.save:
        save_json("peers", figures)


if __name__ == "__main__":
    experiment.run_experiment(bench)
