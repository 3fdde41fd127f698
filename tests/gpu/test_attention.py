"""Tests that Triton attention matches the reference on a GPU. Without a GPU, Triton's interpreter runs the kernels."""

from typing import Any

import pytest
import torch
from support.model_runs.attention_inputs import AttentionHarness
from torch import Tensor

from shard.attention.backend import DEFAULT_ATTENTION_OPTIONS, AttentionOptions

pytestmark = pytest.mark.gpu
pytest.importorskip("triton")

TOLERANCE_BY_DTYPE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
HEAD_COUNTS = [(2, 1), (2, 4), (1, 7)]  # key/value heads, and query heads per key/value head
HEAD_DIMS = [64, 80, 128, 256]
VARIANTS = [DEFAULT_ATTENTION_OPTIONS, AttentionOptions(sliding_windows=(0, 300)),
            AttentionOptions(scale=0.3, softcap=2.0, exact=True)]
DECODE_LENGTHS = [1, 16, 17, 255, 256, 257, 1030]
CHUNK_RANGES = [(0, 1), (0, 33), (5, 260), (250, 600)]
NAN_FILL = float("nan")


def run_attention(backend: str, **harness_options: Any) -> list[Tensor]:
    harness = AttentionHarness(backend, **harness_options)
    harness.fill_all_blocks(NAN_FILL)
    decode_sequences, prompt_sequences = ([harness.make_random_sequence(length) for length in DECODE_LENGTHS],
                                          [harness.make_random_sequence(end) for _, end in CHUNK_RANGES])
    for part in decode_sequences:
        harness.write_to_cache(part, 0, part.length - 1)
    for part, (start, _) in zip(prompt_sequences, CHUNK_RANGES, strict=True):
        harness.write_to_cache(part, 0, start)
    return harness.run_step([(part, part.length - 1) for part in decode_sequences],
                            [(part, *chunk) for part, chunk in zip(prompt_sequences, CHUNK_RANGES, strict=True)])


# bfloat16, the usual dtype, covers every pair of heads, head size and variant. Compiling each case takes seconds.
SHAPES_AND_VARIANTS = [(heads, head_dim, VARIANTS[(row + column) % 3])
                       for row, heads in enumerate(HEAD_COUNTS) for column, head_dim in enumerate(HEAD_DIMS)]


@pytest.mark.parametrize(("dtype", "heads", "head_dim", "variant"),
                         [*((torch.bfloat16, *one) for one in SHAPES_AND_VARIANTS),
                          *((dtype, *one) for dtype in (torch.float16, torch.float32)
                            for one in (*SHAPES_AND_VARIANTS[::5], SHAPES_AND_VARIANTS[7]))], ids=str)
def test_triton_kernels_agree_with_the_reference(dtype: torch.dtype, heads: tuple[int, int], head_dim: int,
                                                 variant: AttentionOptions, device: str) -> None:
    if device == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the interpreter's products of bfloat16 are wrong")
    results = [run_attention(backend, kv_heads=heads[0], group=heads[1], head_dim=head_dim, dtype=dtype,
                             variant=variant, device=torch.device(device)) for backend in ("triton", "reference")]
    for triton_output, reference_output in zip(*results, strict=True):
        torch.testing.assert_close(triton_output, reference_output, rtol=0, atol=TOLERANCE_BY_DTYPE[dtype])
