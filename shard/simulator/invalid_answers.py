"""Invalid answers of the simulated shard, which every router must reject, made from valid ones."""

from math import nan

from shard.pb import shard_pb2 as pb
from shard.simulator.text import BLANK

NOBODY = 2**63 + 1  # a sequence id that no router uses
BEYOND = 2**32 - 1  # a label that no model has


def spoil(answer: pb.StepAnswer, wrong: str, vocabulary_size: int) -> None:
    """Make the answer invalid in one of the ways in `faults.WRONGS`."""
    if wrong == "unknown":
        answer.sequences.append(NOBODY)
        if answer.num_tokens:
            answer.num_tokens.append(1)
        answer.tokens.append(BLANK)
        answer.logprobs.append(-1.0)
    elif wrong == "missing" and answer.sequences:
        count = answer.num_tokens.pop() if answer.num_tokens else 1
        del answer.sequences[-1], answer.tokens[-count:], answer.logprobs[-count:]
    elif wrong == "token" and answer.tokens:
        answer.tokens[0] = vocabulary_size
    elif wrong == "count":
        answer.tokens.append(BLANK)


def spoil_texts(answer: pb.EmbedAnswer, wrong: str, num_texts: int) -> None:
    """Make an answer for `num_texts` texts invalid in one of the ways in `faults.WRONGS`."""
    if wrong == "unknown":
        answer.failed.append(num_texts)
        answer.failures.append(pb.NON_FINITE)
    elif wrong == "missing":
        count = answer.num_labels.pop() if answer.num_labels else 0
        for column, size in ((answer.values, answer.width), (answer.labels, count), (answer.scores, count)):
            del column[len(column) - size:]
    elif wrong == "token":
        answer.values[:1] = [nan] * len(answer.values[:1])
        answer.labels[:1] = [BEYOND] * len(answer.labels[:1])
    elif wrong == "count":
        answer.values.append(0.0)
        answer.scores.append(0.0)
