"""Messages that a ledger rejects without changing its state."""

from copy import deepcopy
from typing import Any

import pytest

from shard.pb import shard_pb2 as pb
from shard.state.ledger import Ledger, Malformed, Refused
from tests.shard.books import PROMPT, SHORT, do, new_ledger
from tests.shard.messages import Row, chunks, concat, decode, filtered, grants, join, keep, prefill

# Messages that a ledger with sequences 7 and 8 in batch 1 and 30 in batch 3 rejects.
REFUSED = {
    "the sequence is here already": prefill(1, Row(7, SHORT, [9])),
    "the sequence is here already, in another batch": prefill(2, Row(7, SHORT, [9])),
    "a block is held by another sequence": prefill(2, Row(9, SHORT, [0])),
    "a block that is shared would be written": prefill(2, Row(9, SHORT, [1])),
    "a cached block was never filled": prefill(2, Row(9, PROMPT, [20, 21], cached=16)),
    "a cached block is being written": prefill(2, Row(9, PROMPT, [2, 21], cached=16)),
    "the adapter was not loaded": prefill(2, Row(9, SHORT, [9], adapter=3)),
    "the grammar was not loaded": prefill(2, Row(9, SHORT, [9], grammar=3)),
    "the chunk starts elsewhere": prefill(1, run=[(8, 17, 1)]),
    "the chunk goes beyond the tokens": prefill(1, run=[(8, 16, 8)]),
    "the prompt is complete": prefill(1, run=[(7, 3, 1)]),
    "the chunk is of a sequence of another batch": prefill(2, Row(9, SHORT, [9]), run=[(8, 16, 1)]),
    "the chunk is of an unknown sequence": prefill(1, run=[(99, 0, 1)]),
    "a grant is for an unknown sequence": decode(1, grants=grants(s99=[9])),
    "a grant is for a sequence that leaves": decode(1, keep=keep(7), grants=grants(s8=[9])),
    "a granted block is held": decode(1, grants=grants(s7=[1])),
    "the batch is unknown": decode(2),
    "nobody is ready": decode(3),
    "nobody is ready any more": decode(1, keep=keep(8)),
    "an unknown sequence is kept": filtered(1, 7, 99),
    "a sequence of another batch is kept": filtered(1, 7, 30),
    "an unknown batch is filtered": filtered(2),
    "an unknown batch is filtered on the way": prefill(2, Row(9, SHORT, [9]), keep=keep()),
    "an unknown batch is joined": concat(1, 2),
    "an unknown batch is joined to": concat(2, 1),
    "an unknown batch is joined on the way": decode(1, join=join(2)),
    "a batch is joined to one that was forgotten": prefill(1, Row(9, SHORT, [9]), keep=keep(), join=join(3)),
    "the step is empty": prefill(1),
    "the step is empty, though somebody enters": prefill(1, Row(9, SHORT, [9]), run=[]),
    "more prompt tokens than warm-up allowed": prefill(
        2, Row(9, [1] * 200, range(10, 23)), Row(11, [1] * 57, range(23, 27))),
}
MALFORMED = {
    "a sequence is named twice": prefill(2, Row(9, SHORT, [9]), Row(9, SHORT, [10])),
    "a column is too short": pb.PrefillRequest(batch=2, sequences=pb.Sequences(
        ids=[9, 10], num_tokens=[1, 1], tokens=[1, 1], num_blocks=[1, 1], blocks=[9, 10], keys=[1])),
    "there are more traces than chunks": pb.PrefillRequest(batch=1, chunks=pb.Chunks(
        sequences=[8], starts=[16], lengths=[1], traceparents=["", ""])),
    "a column has no rows": pb.PrefillRequest(batch=1, sequences=pb.Sequences(tokens=[1]), alongside=True),
    "there are fewer tokens than counted": pb.PrefillRequest(batch=2, sequences=pb.Sequences(
        ids=[9], num_tokens=[2], tokens=[1], num_blocks=[1], blocks=[9])),
    "there are more blocks than counted": pb.PrefillRequest(batch=2, sequences=pb.Sequences(
        ids=[9], num_tokens=[1], tokens=[1], num_blocks=[1], blocks=[9, 10])),
    "there are no tokens": prefill(2, Row(9, [], [9]), run=[(9, 0, 1)]),
    "there is no prompt": prefill(2, Row(9, SHORT, [9], prompt=0)),
    "there is more prompt than tokens": prefill(2, Row(9, SHORT, [9], prompt=4)),
    "a token is outside the vocabulary": prefill(2, Row(9, [512], [9])),
    "there are more tokens than the model holds": prefill(2, Row(9, [1] * 257, range(3, 20)), run=[(9, 0, 16)]),
    "there are too few blocks": prefill(2, Row(9, PROMPT, [9])),
    "a block does not exist": prefill(2, Row(9, SHORT, [32])),
    "a block is named twice by one": prefill(2, Row(9, SHORT, [9, 9])),
    "a block is named twice by two": prefill(2, Row(9, SHORT, [9]), Row(10, SHORT, [9])),
    "a block is granted twice": decode(1, grants=grants(s7=[9], s8=[9])),
    "a granted block does not exist": decode(1, grants=grants(s7=[32])),
    "a granted block is named by a newcomer": prefill(1, Row(9, SHORT, [9]), grants=grants(s7=[9])),
    "a grant is given twice": decode(1, grants=pb.Grants(sequences=[7, 7], num_blocks=[1, 1], blocks=[9, 10])),
    "all is cached": prefill(2, Row(9, PROMPT[:16], [1], cached=16), run=[(9, 0, 1)]),
    "half a block is cached": prefill(2, Row(9, PROMPT, [9, 10], cached=8)),
    "logprobs of a cached prompt are wanted": prefill(2, Row(9, PROMPT, [1, 9], cached=16, prompt_logprobs=True)),
    "the chunk is empty": prefill(1, run=[(8, 16, 0)]),
    "a sequence has two chunks": prefill(1, run=[(8, 16, 1), (8, 17, 1)]),
    "a sequence is kept twice": filtered(1, 7, 7),
    "nothing is said about what to keep": pb.FilterRequest(batch=1),
    "one batch is joined": concat(1),
    "no batch is joined": concat(),
    "no batch is joined on the way": decode(1, join=join()),
    "a batch is joined twice": concat(1, 3, 3),
    "a batch is joined to itself": concat(1, 1),
    "a temperature is not a number": pb.PrefillRequest(batch=2, chunks=chunks((9, 0, 3)), sequences=pb.Sequences(
        ids=[9], num_tokens=[3], tokens=SHORT, num_blocks=[1], blocks=[9],
        sampling=pb.Sampling(temperature=[float("nan")]))),
    "a temperature is negative": pb.PrefillRequest(batch=2, chunks=chunks((9, 0, 3)), sequences=pb.Sequences(
        ids=[9], num_tokens=[3], tokens=SHORT, num_blocks=[1], blocks=[9],
        sampling=pb.Sampling(temperature=[-1.0]))),
}


def refuses(ledger: Ledger, message: Any, error: type[Exception]) -> None:
    """Assert that the ledger rejects the message with `error` and changes nothing."""
    do(ledger, prefill(1, Row(7, SHORT, [0]), Row(8, PROMPT, [1, 2]), run=[(7, 0, 3), (8, 0, 16)]))
    do(ledger, prefill(3, Row(30, PROMPT, [5, 6]), run=[(30, 0, 1)]))
    before = deepcopy((ledger.batches, ledger.sequences, vars(ledger.blocks)))
    with pytest.raises(error):
        do(ledger, message)
    assert (ledger.batches, ledger.sequences, vars(ledger.blocks)) == before


@pytest.mark.parametrize("reason", REFUSED)
def test_what_does_not_fit_is_refused(reason: str) -> None:
    refuses(new_ledger(), REFUSED[reason], Refused)


@pytest.mark.parametrize("reason", MALFORMED)
def test_what_makes_no_sense_is_malformed(reason: str) -> None:
    refuses(new_ledger(), MALFORMED[reason], Malformed)


def test_mixed_steps_are_refused_where_there_are_none() -> None:
    refuses(new_ledger(mixed_steps=False), prefill(1, Row(9, SHORT, [9]), alongside=True), Refused)
