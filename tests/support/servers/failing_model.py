"""`weft` with a scripted failure: a step of the real model raises if a prompt in it has a certain token.

    python -P failing_model.py TOKEN serve MODEL ...

The launcher starts its shards with this same file; everything else is as in `weft`.
"""

import sys
from typing import Any

from launcher import cli
from launcher.supervisor import launch_plan
from shard.rpc import server
from shard.runner import model_runner

POISON_TOKEN = int(sys.argv.pop(1))
start_module, run_step = launch_plan.python_module_command, model_runner.ModelRunner.run


def make_shard_program(name: str) -> tuple[str, ...]:
    return (sys.executable, "-P", __file__, str(POISON_TOKEN)) if name == "shard.rpc.server" else start_module(name)


def run_step_or_fail(self: model_runner.ModelRunner, step: Any, *args: Any) -> Any:
    if any(POISON_TOKEN in sequence.tokens[:sequence.num_prompt_tokens] for sequence in step.sequences):
        raise RuntimeError("poison")
    return run_step(self, step, *args)


if __name__ == "__main__":
    launch_plan.python_module_command = make_shard_program
    model_runner.ModelRunner.run = run_step_or_fail  # type: ignore[method-assign]  # the one thing that is poisoned
    (cli if sys.argv[1] == "serve" else server).main()
