"""Decisions of the scheduler in a compact form that is recorded with every call and is the same on every machine."""

from collections.abc import Sequence as Rows
from hashlib import blake2b
from marshal import dumps
from typing import Any

from router.scheduler.events import Event, Produced
from router.scheduler.plan import Decode, Embed, Filter, Grant, Message, Move, Plan, Prefill

LAYOUT = 2  # version of marshal's format: the last one in which equal values always give equal bytes

Outcome = tuple[Any, ...]


def of_plan(plan: Plan) -> Outcome:
    """Return a plan's order, its digest, and three numbers for readers: decoding and entering sequences, prompt tokens.

    The digest covers all decisions: order, members, which of them yield tokens, and the messages by sequence numbers,
    blocks and lengths. It leaves out the epoch, the tokens and the predicted seconds, which are no decisions.
    """
    silent = len(plan.members) - len(plan.expects)  # members that yield no token: unfinished prompts
    figures = dumps((plan.order, plan.members, plan.expects if silent else (), [*map(_figures, plan.messages)]), LAYOUT)
    digest = blake2b(figures, digest_size=8).hexdigest()
    step = plan.messages[-1]
    if isinstance(step, Embed):
        return (plan.order, digest, 0, len(step.newcomers), sum(len(n.request.prompt) for n in step.newcomers))
    if not isinstance(step, Prefill):
        return (plan.order, digest, len(plan.members), 0, 0)
    tokens = sum(chunk.length for chunk in step.chunks)
    return (plan.order, digest, len(plan.members) - len(step.chunks), len(step.newcomers), tokens)


def _figures(message: Message) -> tuple[Any, ...]:
    if isinstance(message, Decode):
        return (0, message.batch, [*map(_grant, message.grants)], message.keep)
    if isinstance(message, Prefill):
        newcomers = [(n.sequence, len(n.generated), n.blocks, n.num_cached) for n in message.newcomers]
        chunks = [(c.sequence, c.start, c.length) for c in message.chunks]
        return (1, message.batch, newcomers, chunks, message.alongside, [*map(_grant, message.grants)], message.keep)
    if isinstance(message, Filter):
        return (2, message.batch, message.keep)
    if isinstance(message, Embed):
        return (4, str(message.wish), [newcomer.sequence for newcomer in message.newcomers])
    return (3, message.batches)


def _grant(grant: Grant) -> tuple[Any, ...]:
    return (grant.sequence, grant.blocks)


def of_moves(moves: Rows[Move]) -> Outcome:
    return tuple((type(move).__name__, move.resource.kind, move.resource.id) for move in moves)


def of_events(events: list[Event]) -> Outcome:
    """Return all events but `Produced`, whose counts follow from the answer, an input."""
    if len(events) == 1 and type(events[0]) is Produced:
        return ()
    return tuple((type(event).__name__, *(getattr(event, name) for name in event.__slots__))
                 for event in events if type(event) is not Produced)
