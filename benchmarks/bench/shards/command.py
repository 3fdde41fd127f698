"""Cost of a model's steps by batch size, without a router: Prefill and Decode, sent to shards over gRPC.

Shards are started, or those listening at the given sockets are used. `python -P -m benchmarks.bench.shards.command
--help` lists the settings; benchmarks/README.md explains the figures. The last line is JSON.
`text-generation-benchmark` is the same program under the name and with the flags of text-generation-inference.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn

import uvloop
from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from benchmarks.bench.shards.batch_run import (
    BLOCK_SIZE,
    BatchRunner,
    SamplingSettings,
    SequenceLengths,
    make_random_sequences,
)
from benchmarks.bench.shards.rank_connections import (
    MessageRejected,
    RankConnections,
    ShardFailed,
    check_rank_order,
    connect_to_ranks,
    find_rank_addresses,
    start_shards,
    to_grpc_address,
)
from benchmarks.bench.shards.tables import BatchSizeStats, format_page, summarize_batch_size, to_json_dict
from benchmarks.harness.experiment import PositiveInt
from benchmarks.harness.processes import ProcessStartError
from benchmarks.harness.reporting import report_results
from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBenchSettings:
    model: Annotated[str, Parameter(name=("--model", "--tokenizer-name", "-t"))] = ""
    "Model to measure: a folder, or a name at the Hugging Face Hub. Default: a simulated model. For running shards it \
is only a title."
    revision: str = "main"
    "Branch, tag or commit at the Hugging Face Hub."
    num_shard: PositiveInt = 1
    "Number of shards (tensor parallelism)."
    dtype: str = "auto"
    "Number type of weights and computation, as in `weft serve`."
    device: str = "auto"
    "Device of the model: auto, cpu or cuda."
    threads: int = 0
    "Threads of each shard on CPU; 0: the cores divided by the number of shards."
    socket: tuple[str, ...] = ()
    "Socket of a running shard; one for every rank, in order. Its router must be idle."
    master_shard_uds_path: Annotated[str, Parameter(name=("--master-shard-uds-path", "-m"))] = ""
    "Socket of rank 0 of running shards; the other sockets have the same name with their rank."
    batch_size: Annotated[tuple[PositiveInt, ...], Parameter(name=("--batch-size", "-b"), consume_multiple=True)] = (
        1, 2, 4, 8, 16, 32)
    "Batch sizes; one row of the table for each."
    sequence_length: Annotated[PositiveInt, Parameter(name=("--sequence-length", "-s"))] = 10
    "Prompt length in tokens."
    decode_length: Annotated[int, Parameter(name=("--decode-length", "-d"), validator=Number(gte=2))] = 8
    "Output length in tokens; the prefill yields the first."
    runs: Annotated[PositiveInt, Parameter(name=("--runs", "-r"))] = 10
    "Measured runs of each batch size."
    warmups: Annotated[int, Parameter(name=("--warmups", "-w"), validator=Number(gte=0))] = 1
    "Runs before these that are not measured."
    save: bool = False
    "Save the output under benchmarks/results."
    sampling: SamplingSettings = field(default_factory=SamplingSettings)


@dataclass(slots=True)
class ShardBenchResults:
    """Statistics of each measured batch size, and the reasons why others were skipped."""

    shard_info: pb.InfoAnswer  # of rank 0, warmed up
    points: list[BatchSizeStats] = field(default_factory=list)
    skipped_batch_sizes: dict[int, str] = field(default_factory=dict)  # batch size to reason


@contextmanager
def provide_shard_addresses(settings: ShardBenchSettings) -> Iterator[tuple[str, ...]]:
    """Yield the addresses of all ranks; shards that are started here run as long as the block."""
    if settings.master_shard_uds_path and settings.socket:
        raise ValueError("--socket and --master-shard-uds-path both say where shards run: give one of them")
    if settings.master_shard_uds_path:
        yield uvloop.run(find_rank_addresses(to_grpc_address(settings.master_shard_uds_path)))
    elif settings.socket:
        yield tuple(map(to_grpc_address, settings.socket))
    else:
        config = ShardConfig(model=resolve_model_folder(settings.model, settings.revision), dtype=settings.dtype,
                             device=settings.device, threads=settings.threads)
        with start_shards(config, settings.num_shard) as started_addresses:
            yield started_addresses


def resolve_model_folder(model: str, revision: str) -> str:
    """Return the folder of a model, downloading it from the Hub if necessary.

    Raises ValueError, or SystemExit if the download failed, which has then printed why."""
    if not model or Path(model).is_dir():
        return model and str(Path(model).absolute())
    if model.startswith(("/", ".", "~")):
        raise ValueError(f"there is no folder {model}")
    completed = subprocess.run([sys.executable, "-P", "-m", "launcher.cli", "download", model, "--revision", revision],
                               stdout=subprocess.PIPE, text=True, check=False)
    if completed.returncode:
        raise SystemExit(completed.returncode)
    return completed.stdout.strip()


async def measure_batch_sizes(addresses: Sequence[str], settings: ShardBenchSettings) -> ShardBenchResults:
    """Measure every batch size in an epoch of its own, so that the failure of one does not affect the others.

    Raises MessageRejected if none could be measured."""
    async with connect_to_ranks(addresses) as ranks:
        infos = await warm_up_if_needed(ranks, settings)
        sequence_shape = make_sequence_lengths(infos[0].warmup.block_size, infos[0], settings)
        num_blocks = min(info.warmup.num_blocks for info in infos)
        results = ShardBenchResults(infos[0])
        for epoch, batch_size in enumerate(settings.batch_size, 1 + max(info.epoch for info in infos)):
            if (needed_blocks := batch_size * sequence_shape.num_blocks) > num_blocks:
                results.skipped_batch_sizes[
                    batch_size] = f"it needs {needed_blocks} blocks of the cache, which has {num_blocks}"
                continue
            await ranks.send(pb.ResetRequest(epoch=epoch))
            try:
                sequences = make_random_sequences(batch_size, sequence_shape, infos[0].vocabulary_size,
                                                  settings.sampling)
                results.points.append(await measure_batch_size(BatchRunner(ranks, epoch), sequences, settings))
            except MessageRejected as error:
                results.skipped_batch_sizes[batch_size] = f"{error}"
    if not results.points:
        raise MessageRejected(f"no batch size could be measured: {next(iter(results.skipped_batch_sizes.values()))}")
    return results


async def measure_batch_size(epoch: BatchRunner, sequences: pb.Sequences,
                             settings: ShardBenchSettings) -> BatchSizeStats:
    for _ in range(settings.warmups):
        await epoch.run_batch(sequences, settings.decode_length)
    stats = summarize_batch_size(len(sequences.ids), [await epoch.run_batch(sequences, settings.decode_length)
                                                      for _ in range(settings.runs)])
    print(f"batch size {stats.batch_size}: prefill {1e3 * stats.prefill.p50:.2f} ms, decode "
          f"{1e3 * stats.decode.p50:.2f} ms", file=sys.stderr, flush=True)
    return stats


async def warm_up_if_needed(ranks: RankConnections, settings: ShardBenchSettings) -> list[pb.InfoAnswer]:
    """Return the ranks' InfoAnswers after Warmup; new shards get a cache just large enough for this benchmark."""
    infos = await ranks.fetch_infos()
    check_rank_order(ranks.addresses, infos)
    if infos[0].HasField("warmup"):
        return infos
    max_batch_size = max(settings.batch_size)
    await ranks.send(pb.WarmupRequest(block_size=BLOCK_SIZE, max_prefill_tokens=max_batch_size
                                      * settings.sequence_length, max_batch_size=max_batch_size,
                                      max_total_tokens=make_sequence_lengths(BLOCK_SIZE, infos[0], settings).num_slots))
    return await ranks.fetch_infos()


def make_sequence_lengths(block_size: int, shard_info: pb.InfoAnswer, settings: ShardBenchSettings) -> SequenceLengths:
    """Return the shape of the sequences. Raises ValueError if they have more positions than the model."""
    shape = SequenceLengths(settings.sequence_length, settings.decode_length, block_size,
                            max(1, shard_info.tokens_per_step))
    if shape.num_slots > shard_info.max_positions:
        raise ValueError(f"--sequence-length {settings.sequence_length} and --decode-length {settings.decode_length} "
                         f"need {shape.num_slots} positions, the model has {shard_info.max_positions}")
    return shape


def describe_bench_parameters(settings: ShardBenchSettings, shard_info: pb.InfoAnswer) -> dict[str, Any]:
    """Return the parameters of the measurement; of the sampling parameters, only those given."""
    sampling_parameters = {name.replace("_", " "): value for name, value in asdict(settings.sampling).items() if value}
    return {"model": settings.model or shard_info.model, "device": shard_info.device, "dtype": shard_info.dtype,
            "shards": shard_info.world_size, "sequence length": settings.sequence_length,
            "decode length": settings.decode_length, "runs": settings.runs, "warmups": settings.warmups,
            **sampling_parameters}


def make_json_summary(settings: ShardBenchSettings, results: ShardBenchResults) -> dict[str, Any]:
    parameters = {name.replace(" ", "_"): value
                  for name, value in describe_bench_parameters(settings, results.shard_info).items()}
    return {**parameters, "points": list(map(to_json_dict, results.points)), "left_out": results.skipped_batch_sizes}


def bench(settings: ShardBenchSettings = ShardBenchSettings()) -> None:
    """Measure Prefill and Decode of a model by batch size, without a router."""
    with provide_shard_addresses(settings) as addresses:
        results = uvloop.run(measure_batch_sizes(addresses, settings))
    text = format_page(describe_bench_parameters(settings, results.shard_info), results.points,
                       results.skipped_batch_sizes)
    report_results("shards", f"{text}\n", make_json_summary(settings, results), should_save=settings.save)


def bench_requiring_model(settings: ShardBenchSettings = ShardBenchSettings()) -> None:
    """Measure Prefill and Decode of a model by batch size, without a router."""
    if not settings.model:
        raise ValueError("a model must be named: --tokenizer-name FOLDER_OR_NAME")
    bench(settings)


def run_cli(program: str, command: Callable[..., None], arguments: Sequence[str]) -> None:
    """Run a command; print an error as one line on stderr and exit with a code."""
    app = App(name=program, result_action="return_value")
    app.default(command)
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except (CycloptsError, ValueError) as error:
        exit_with_error(error, 2)
    except (ProcessStartError, MessageRejected, ShardFailed, OSError) as error:
        exit_with_error(error, 1)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def exit_with_error(error: Exception, exit_code: int) -> NoReturn:
    print(f"weft: {' '.join(str(error).split())}", file=sys.stderr)
    raise SystemExit(exit_code)


def text_generation_benchmark() -> None:
    run_cli("text-generation-benchmark", bench_requiring_model, sys.argv[1:])


def main() -> None:
    run_cli("weft bench --shard", bench, sys.argv[1:])


if __name__ == "__main__":
    main()
