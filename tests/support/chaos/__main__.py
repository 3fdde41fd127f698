"""`make chaos` and `make soak`.

    python -P -m support.chaos chaos --seconds 600 --seed 1
    python -P -m support.chaos soak --hours 2
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from support.chaos.run import RunSettings, run_chaos

from benchmarks.harness.reporting import collect_run_metadata


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="support.chaos", description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    chaos = commands.add_parser("chaos", help="mixed load and a fault every few seconds, with 1 and with 2 shards")
    chaos.add_argument("--seconds", type=float, default=600.0, help="length of the load, in all")
    chaos.add_argument("--interval", type=float, default=5.0, help="seconds between two faults")
    chaos.add_argument("--clients", type=int, default=10, help="clients that send one request after the other")
    chaos.add_argument("--pause", type=float, default=0.3, help="mean seconds between two requests of a client")
    soak = commands.add_parser("soak", help="moderate load for hours with rare faults; memory is sampled each minute")
    soak.add_argument("--hours", type=float, default=2.0, help="length of the load, in all")
    soak.add_argument("--interval", type=float, default=120.0, help="seconds between two faults")
    soak.add_argument("--clients", type=int, default=3, help="clients that send one request after the other")
    soak.add_argument("--pause", type=float, default=0.5, help="mean seconds between two requests of a client")
    for command in (chaos, soak):
        command.add_argument("--seed", type=int, default=int(time.time()), help="of requests and faults")
        command.add_argument("--num-shard", type=int, nargs="+", default=[1, 2], help="shards of each server")
        command.add_argument("--output", type=Path, help="file for the report as JSON")
        command.add_argument("--folder", type=Path, help="folder for the servers' logs, kept")
    return parser.parse_args(arguments)


def make_settings(options: argparse.Namespace) -> RunSettings:
    is_soak = options.command == "soak"
    seconds = options.hours * 3600.0 if is_soak else options.seconds
    return RunSettings(
        seconds=seconds / len(options.num_shard), seed=options.seed, fault_interval=options.interval,
        clients=options.clients, pause=options.pause, num_requests=120 if seconds >= 120 else 40,
        sample_interval=60.0 if is_soak else 1.0, is_soak=is_soak)


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    reports = []
    with tempfile.TemporaryDirectory(prefix="weft-chaos-") as temporary:
        for num_shard in options.num_shard:
            folder = (options.folder or Path(temporary)) / f"{num_shard}-shards-{options.seed}"
            report = run_chaos(folder, num_shard, make_settings(options))
            print(report.format(), end="\n\n", flush=True)
            reports.append(report)
    if options.output:
        metadata = collect_run_metadata(path_options=("--output", "--folder"))
        results = {"runs": [asdict(report) for report in reports], **metadata}
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if any(report.findings for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
