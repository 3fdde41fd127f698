"""Steps measured during the warm-up of an encoder. Those of a decoder are tested in test_decoder.py."""

from math import inf

from shard.parallel.group import SingleRankGroup
from shard.pb import shard_pb2 as pb
from shard.state.sequence import PoolingText
from shard.workers.warmup import MaxStepSizes, make_encoder_series, measure_steps


def measure_step_sizes(sizes: MaxStepSizes, slow_step_seconds: float = inf) -> list[tuple[int, int, int]]:
    answer = pb.WarmupAnswer()
    measure_steps(make_encoder_series(lambda _: None, sizes), SingleRankGroup(), slow_step_seconds, answer)
    assert len(answer.seconds) == len(answer.rows)
    assert all(seconds >= 0 for seconds in answer.seconds)
    return [*zip(answer.rows, answer.chunk_tokens, answer.context, strict=True)]


def test_steps_grow_in_text_length_and_then_in_number_of_texts() -> None:
    assert measure_step_sizes(MaxStepSizes(9, 300, 300)) == [
        (1, 16, 16), (1, 64, 64), (1, 256, 256), (1, 300, 300), (2, 64, 64), (8, 256, 256), (9, 288, 288)]


def test_no_step_is_larger_than_the_limits() -> None:
    assert measure_step_sizes(MaxStepSizes(100, 70, 70)) == [(1, 16, 16), (1, 64, 64), (1, 70, 70), (2, 64, 64)]
    assert measure_step_sizes(MaxStepSizes(1, 3, 3)) == [(1, 3, 3), (1, 3, 3)]
    assert measure_step_sizes(MaxStepSizes(100, 160, 40)) == [(1, 16, 16), (1, 40, 40), (2, 64, 64), (5, 160, 160)]


def test_two_sizes_of_a_series_are_measured_however_slow() -> None:
    assert measure_step_sizes(MaxStepSizes(9, 300, 300),
                              slow_step_seconds=-1.0) == [(1, 16, 16), (1, 64, 64), (2, 64, 64), (8, 256, 256)]


def test_brief_steps_are_run_twice() -> None:
    runs: list[int] = []

    def record_run(texts: list[PoolingText]) -> None:
        runs.append(len(texts))

    measure_steps(make_encoder_series(record_run, MaxStepSizes(1, 16, 16)), SingleRankGroup(), inf,
                  pb.WarmupAnswer())
    assert len(runs) in {2, 3, 4}  # a run on a busy machine may be too slow to be repeated
