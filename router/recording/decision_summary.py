"""Decisions of the scheduler in a compact form that is recorded with every call and is the same on every machine."""

from collections.abc import Sequence as GenericSequence
from hashlib import blake2b
from marshal import dumps
from typing import Any

from router.scheduler.events import SchedulerEvent, TokensGenerated
from router.scheduler.messages import (
    BlockGrant,
    Decode,
    Filter,
    PoolingStep,
    Prefill,
    ResourceCommand,
    ShardMessage,
    StepPlan,
)

MARSHAL_VERSION = 2  # version of marshal's format: the last one in which equal values always give equal bytes

DecisionSummary = tuple[Any, ...]


def summarize_plan(plan: StepPlan) -> DecisionSummary:
    """Return a plan's last message number, its digest, and three figures: decoding and new sequences, prompt tokens.

    The digest covers all decisions: numbers, members, which of them yield tokens, and the messages by sequence ids,
    blocks and lengths. It leaves out the epoch, the tokens and the predicted seconds, which are no decisions.
    """
    # members that yield no token: unfinished prompts
    num_without_token = len(plan.member_ids) - len(plan.output_ids)
    digest_input = dumps((plan.last_message_number, plan.member_ids, plan.output_ids if num_without_token else (),
                          [*map(_message_digest_fields, plan.messages)]), MARSHAL_VERSION)
    digest = blake2b(digest_input, digest_size=8).hexdigest()
    step = plan.messages[-1]
    if isinstance(step, PoolingStep):
        return (plan.last_message_number, digest, 0, len(step.new_sequences),
                sum(len(n.request.prompt) for n in step.new_sequences))
    if not isinstance(step, Prefill):
        return (plan.last_message_number, digest, len(plan.member_ids), 0, 0)
    tokens = sum(chunk.length for chunk in step.chunks)
    return (plan.last_message_number, digest, len(plan.member_ids) - len(step.chunks), len(step.new_sequences), tokens)


def _message_digest_fields(message: ShardMessage) -> tuple[Any, ...]:
    if isinstance(message, Decode):
        return (0, message.batch, [*map(_grant_digest_fields, message.grants)], message.keep)
    if isinstance(message, Prefill):
        new_sequences = [(n.sequence_id, len(n.generated), n.blocks, n.num_cached) for n in message.new_sequences]
        chunks = [(c.sequence_id, c.start, c.length) for c in message.chunks]
        return (1, message.batch, new_sequences, chunks, message.includes_decodes,
                [*map(_grant_digest_fields, message.grants)], message.keep)
    if isinstance(message, Filter):
        return (2, message.batch, message.keep)
    if isinstance(message, PoolingStep):
        return (4, str(message.kind), [new_sequence.sequence_id for new_sequence in message.new_sequences])
    return (3, message.batches)


def _grant_digest_fields(grant: BlockGrant) -> tuple[Any, ...]:
    return (grant.sequence_id, grant.blocks)


def summarize_resource_commands(commands: GenericSequence[ResourceCommand]) -> DecisionSummary:
    return tuple((type(command).__name__, command.resource.kind, command.resource.id) for command in commands)


def summarize_events(events: list[SchedulerEvent]) -> DecisionSummary:
    """Return all events but `TokensGenerated`, whose counts follow from the answer, an input."""
    if len(events) == 1 and type(events[0]) is TokensGenerated:
        return ()
    return tuple((type(event).__name__, *(getattr(event, name) for name in event.__slots__))
                 for event in events if type(event) is not TokensGenerated)
