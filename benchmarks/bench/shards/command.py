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

from benchmarks.bench.shards.batch_run import BLOCK_SIZE, Epoch, Sampling, Shape, newcomers
from benchmarks.bench.shards.ranks import (
    Ranks,
    Refused,
    ShardFailed,
    address_of,
    beside,
    check_order,
    connected,
    started,
)
from benchmarks.bench.shards.tables import Point, page, point, told
from benchmarks.harness.processes import NotStarted
from benchmarks.harness.results import tell
from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb

AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1))]


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    model: Annotated[str, Parameter(name=("--model", "--tokenizer-name", "-t"))] = ""
    "Folder of a model, or its name at the Hub. Without it shards simulate. Where they run already it is only a title."
    revision: str = "main"
    "Branch, tag or commit at the Hub."
    num_shard: AtLeastOne = 1
    "How many shards to start."
    dtype: str = "auto"
    "Number type of weights and arithmetic, as of `weft serve`."
    device: str = "auto"
    "Where the model runs: auto, cpu or cuda."
    threads: int = 0
    "Threads that each shard computes with on CPU; 0: the cores shared by the shards."
    socket: tuple[str, ...] = ()
    "Where a shard listens that runs already; once for every rank, in their order. Its router must be at rest."
    master_shard_uds_path: Annotated[str, Parameter(name=("--master-shard-uds-path", "-m"))] = ""
    "Where rank 0 of shards listens that run already; those of the others have their rank in its place."
    batch_size: Annotated[tuple[AtLeastOne, ...], Parameter(name=("--batch-size", "-b"), consume_multiple=True)] = (
        1, 2, 4, 8, 16, 32)
    "How many sequences step together; a row for each."
    sequence_length: Annotated[AtLeastOne, Parameter(name=("--sequence-length", "-s"))] = 10
    "Tokens of every prompt."
    decode_length: Annotated[int, Parameter(name=("--decode-length", "-d"), validator=Number(gte=2))] = 8
    "Tokens of every answer; the prefill yields the first."
    runs: Annotated[AtLeastOne, Parameter(name=("--runs", "-r"))] = 10
    "How often each batch size is measured."
    warmups: Annotated[int, Parameter(name=("--warmups", "-w"), validator=Number(gte=0))] = 1
    "Runs before that which do not count."
    save: bool = False
    "Keep what is printed under benchmarks/results."
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(slots=True)
class Found:
    model: pb.InfoAnswer  # of rank 0, warmed up
    points: list[Point] = field(default_factory=list)
    left_out: dict[int, str] = field(default_factory=dict)  # batch size to reason


@contextmanager
def addresses(settings: Settings) -> Iterator[tuple[str, ...]]:
    """Yield the addresses of all ranks; shards that are started here run as long as the block."""
    if settings.master_shard_uds_path and settings.socket:
        raise ValueError("--socket and --master-shard-uds-path both say where shards run: give one of them")
    if settings.master_shard_uds_path:
        yield uvloop.run(beside(address_of(settings.master_shard_uds_path)))
    elif settings.socket:
        yield tuple(map(address_of, settings.socket))
    else:
        config = ShardConfig(model=folder_of(settings.model, settings.revision), dtype=settings.dtype,
                             device=settings.device, threads=settings.threads)
        with started(config, settings.num_shard) as there:
            yield there


def folder_of(model: str, revision: str) -> str:
    """Return the folder of a model, downloading it from the Hub if necessary.

    Raises ValueError, or SystemExit if the download failed, which has then printed why."""
    if not model or Path(model).is_dir():
        return model and str(Path(model).absolute())
    if model.startswith(("/", ".", "~")):
        raise ValueError(f"there is no folder {model}")
    done = subprocess.run([sys.executable, "-P", "-m", "launcher.cli", "download", model, "--revision", revision],
                          stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout.strip()


async def measure(where: Sequence[str], settings: Settings) -> Found:
    """Measure every batch size in an epoch of its own, so that the failure of one does not affect the others.

    Raises Refused if none could be measured."""
    async with connected(where) as ranks:
        infos = await warmed_up(ranks, settings)
        shape = shape_of(infos[0].warmup.block_size, infos[0], settings)
        num_blocks = min(info.warmup.num_blocks for info in infos)
        found = Found(infos[0])
        for number, batch_size in enumerate(settings.batch_size, 1 + max(info.epoch for info in infos)):
            if (needed := batch_size * shape.num_blocks) > num_blocks:
                found.left_out[batch_size] = f"it needs {needed} blocks of the cache, which has {num_blocks}"
                continue
            await ranks.send(pb.ResetRequest(epoch=number))
            try:
                sequences = newcomers(batch_size, shape, infos[0].vocabulary_size, settings.sampling)
                found.points.append(await measure_one(Epoch(ranks, number), sequences, settings))
            except Refused as error:
                found.left_out[batch_size] = f"{error}"
    if not found.points:
        raise Refused(f"no batch size could be measured: {next(iter(found.left_out.values()))}")
    return found


async def measure_one(epoch: Epoch, sequences: pb.Sequences, settings: Settings) -> Point:
    for _ in range(settings.warmups):
        await epoch.run(sequences, settings.decode_length)
    one = point(len(sequences.ids), [await epoch.run(sequences, settings.decode_length) for _ in range(settings.runs)])
    print(f"batch size {one.batch_size}: prefill {1e3 * one.prefill.p50:.2f} ms, decode {1e3 * one.decode.p50:.2f} ms",
          file=sys.stderr, flush=True)
    return one


async def warmed_up(ranks: Ranks, settings: Settings) -> list[pb.InfoAnswer]:
    """Return the ranks' InfoAnswers after Warmup; new shards get a cache just large enough for this benchmark."""
    infos = await ranks.infos()
    check_order(ranks.addresses, infos)
    if infos[0].HasField("warmup"):
        return infos
    most = max(settings.batch_size)
    await ranks.send(pb.WarmupRequest(
        block_size=BLOCK_SIZE, max_prefill_tokens=most * settings.sequence_length, max_batch_size=most,
        max_total_tokens=shape_of(BLOCK_SIZE, infos[0], settings).num_places))
    return await ranks.infos()


def shape_of(block_size: int, model: pb.InfoAnswer, settings: Settings) -> Shape:
    """Return the shape of the sequences. Raises ValueError if they have more positions than the model."""
    shape = Shape(settings.sequence_length, settings.decode_length, block_size, max(1, model.tokens_per_step))
    if shape.num_places > model.max_positions:
        raise ValueError(f"--sequence-length {settings.sequence_length} and --decode-length {settings.decode_length} "
                         f"need {shape.num_places} positions, the model has {model.max_positions}")
    return shape


def title(settings: Settings, model: pb.InfoAnswer) -> dict[str, Any]:
    """Return the parameters of the measurement; of the sampling parameters, only those given."""
    chosen = {name.replace("_", " "): value for name, value in asdict(settings.sampling).items() if value}
    return {
        "model": settings.model or model.model, "device": model.device, "dtype": model.dtype,
        "shards": model.world_size, "sequence length": settings.sequence_length,
        "decode length": settings.decode_length, "runs": settings.runs, "warmups": settings.warmups, **chosen}


def summary(settings: Settings, found: Found) -> dict[str, Any]:
    what = {name.replace(" ", "_"): value for name, value in title(settings, found.model).items()}
    return {**what, "points": list(map(told, found.points)), "left_out": found.left_out}


def bench(settings: Settings = Settings()) -> None:
    """Measure Prefill and Decode of a model by batch size, without a router."""
    with addresses(settings) as where:
        found = uvloop.run(measure(where, settings))
    text = page(title(settings, found.model), found.points, found.left_out)
    tell("shards", f"{text}\n", summary(settings, found), keep=settings.save)


def bench_named(settings: Settings = Settings()) -> None:
    """Measure Prefill and Decode of a model by batch size, without a router."""
    if not settings.model:
        raise ValueError("a model must be named: --tokenizer-name FOLDER_OR_NAME")
    bench(settings)


def run(name: str, command: Callable[..., None], words: Sequence[str]) -> None:
    """Run a command; print an error as one line on stderr and exit with a code."""
    app = App(name=name, result_action="return_value")
    app.default(command)
    try:
        app(words, exit_on_error=False, print_error=False)
    except (CycloptsError, ValueError) as error:
        fail(error, 2)
    except (NotStarted, Refused, ShardFailed, OSError) as error:
        fail(error, 1)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def fail(error: Exception, code: int) -> NoReturn:
    print(f"weft: {' '.join(str(error).split())}", file=sys.stderr)
    raise SystemExit(code)


def text_generation_benchmark() -> None:
    run("text-generation-benchmark", bench_named, sys.argv[1:])


def main() -> None:
    run("weft bench --shard", bench, sys.argv[1:])


if __name__ == "__main__":
    main()
