"""A ledger without a model, and `apply_and_finish`, which applies a message and finishes its step with a fixed
token."""

from typing import Any

from shard.pb import shard_pb2 as pb
from shard.state.ledger import Ledger, Step
from shard.state.sequence import MessageLimits
from tests.shard.messages import WARMUP_REQUEST

PROMPT_TOKENS = list(b"weave me something nice")
SHORT_PROMPT_TOKENS = list(b"abc")
SAMPLED_TOKEN = 65
METHOD_BY_REQUEST_TYPE = {pb.PrefillRequest: Ledger.apply_prefill, pb.DecodeRequest: Ledger.apply_decode,
                          pb.FilterRequest: Ledger.apply_filter, pb.ConcatRequest: Ledger.apply_concat}


def make_ledger(**limits: Any) -> Ledger:
    defaults = {"vocabulary_size": 512, "max_positions": 256, "tokens_per_step": 1, "mixed_steps": True}
    ledger = Ledger(MessageLimits(**defaults | limits))
    ledger.apply_warmup(WARMUP_REQUEST, 32)
    return ledger


def apply_and_finish(ledger: Ledger, message: Any, failures: dict[int, Any] | None = None,
                     tokens_per_sequence: int = 1) -> Step | None:
    step = METHOD_BY_REQUEST_TYPE[type(message)](ledger, message)
    if step is not None:
        ledger.apply_results(step, {sequence.id: [SAMPLED_TOKEN] * tokens_per_sequence
                                    for sequence in step.sampled_sequences}, failures or {})
    return step


def get_sequence_ids(sequences: Any) -> list[int]:
    return [sequence.id for sequence in sequences]
