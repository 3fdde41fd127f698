"""Invalid answers of the simulated shard, which every router must reject, made from valid ones."""

from math import nan

from shard.pb import shard_pb2 as pb
from shard.simulator.simulated_outputs import BLANK_TOKEN

UNKNOWN_SEQUENCE_ID = 2**63 + 1  # a sequence id that no router uses
UNKNOWN_LABEL = 2**32 - 1  # a label that no model has


def corrupt_step_answer(answer: pb.StepAnswer, defect: str, vocabulary_size: int) -> None:
    """Make the answer invalid in one of the ways in `fault_script.ANSWER_DEFECTS`."""
    if defect == "unknown":
        answer.sequences.append(UNKNOWN_SEQUENCE_ID)
        if answer.num_tokens:
            answer.num_tokens.append(1)
        answer.tokens.append(BLANK_TOKEN)
        answer.logprobs.append(-1.0)
    elif defect == "missing" and answer.sequences:
        count = answer.num_tokens.pop() if answer.num_tokens else 1
        del answer.sequences[-1], answer.tokens[-count:], answer.logprobs[-count:]
    elif defect == "token" and answer.tokens:
        answer.tokens[0] = vocabulary_size
    elif defect == "count":
        answer.tokens.append(BLANK_TOKEN)


def corrupt_embed_answer(answer: pb.EmbedAnswer, defect: str, num_texts: int) -> None:
    """Make an answer for `num_texts` texts invalid in one of the ways in `fault_script.ANSWER_DEFECTS`."""
    if defect == "unknown":
        answer.failed.append(num_texts)
        answer.failures.append(pb.NON_FINITE)
    elif defect == "missing":
        count = answer.num_labels.pop() if answer.num_labels else 0
        for column, size in ((answer.values, answer.width), (answer.labels, count), (answer.scores, count)):
            del column[len(column) - size:]
    elif defect == "token":
        answer.values[:1] = [nan] * len(answer.values[:1])
        answer.labels[:1] = [UNKNOWN_LABEL] * len(answer.labels[:1])
    elif defect == "count":
        answer.values.append(0.0)
        answer.scores.append(0.0)
