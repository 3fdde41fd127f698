"""A `ShardState` without a model, and `apply_and_finish`, which applies a message and finishes its step with a fixed
token."""

from typing import Any

from support.shards.protocol_messages import WARMUP_REQUEST

from shard.pb import shard_pb2 as pb
from shard.state.sequence import ModelLimits
from shard.state.shard_state import ShardState
from shard.state.step import Step

PROMPT_TOKENS = list(b"weave me something nice")
SHORT_PROMPT_TOKENS = list(b"abc")
SAMPLED_TOKEN = 65
METHOD_BY_REQUEST_TYPE = {pb.PrefillRequest: ShardState.apply_prefill, pb.DecodeRequest: ShardState.apply_decode,
                          pb.FilterRequest: ShardState.apply_filter, pb.ConcatRequest: ShardState.apply_concat}


def make_shard_state(**limits: Any) -> ShardState:
    defaults = {"vocabulary_size": 512, "max_positions": 256, "tokens_per_step": 1, "mixed_steps": True}
    shard_state = ShardState(ModelLimits(**defaults | limits))
    shard_state.apply_warmup(WARMUP_REQUEST, 32)
    return shard_state


def apply_and_finish(shard_state: ShardState, message: Any, failures: dict[int, Any] | None = None,
                     tokens_per_sequence: int = 1) -> Step | None:
    step = METHOD_BY_REQUEST_TYPE[type(message)](shard_state, message)
    if step is not None:
        shard_state.apply_results(step, {sequence.id: [SAMPLED_TOKEN] * tokens_per_sequence
                                    for sequence in step.sampled_sequences}, failures or {})
    return step


def get_sequence_ids(sequences: Any) -> list[int]:
    return [sequence.id for sequence in sequences]
