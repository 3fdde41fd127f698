"""A ledger without a model, and `do`, which applies a message and finishes its step with a fixed token."""

from typing import Any

from shard.pb import shard_pb2 as pb
from shard.state.ledger import Ledger, Step
from shard.state.sequence import Limits
from tests.shard.messages import WARMUP

PROMPT = list(b"weave me something nice")
SHORT = list(b"abc")
TOKEN = 65
METHODS = {pb.PrefillRequest: Ledger.prefill, pb.DecodeRequest: Ledger.decode, pb.FilterRequest: Ledger.filter,
           pb.ConcatRequest: Ledger.concat}


def new_ledger(**limits: Any) -> Ledger:
    defaults = {"vocabulary_size": 512, "max_positions": 256, "tokens_per_step": 1, "mixed_steps": True}
    ledger = Ledger(Limits(**defaults | limits))
    ledger.warmup(WARMUP, 32)
    return ledger


def do(ledger: Ledger, message: Any, failures: dict[int, Any] | None = None, count: int = 1) -> Step | None:
    step = METHODS[type(message)](ledger, message)
    if step is not None:
        ledger.finish(step, {sequence.id: [TOKEN] * count for sequence in step.yielding}, failures or {})
    return step


def ids(sequences: Any) -> list[int]:
    return [sequence.id for sequence in sequences]
