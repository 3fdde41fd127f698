"""Tests that Triton attention matches the reference on a GPU. Without a GPU, Triton's interpreter runs the kernels."""

from typing import Any

import pytest
import torch
from support.attention_inputs import Scene
from torch import Tensor

from shard.attention.variant import PLAIN, Variant

pytestmark = pytest.mark.gpu
pytest.importorskip("triton")

CLOSE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
HEADS = [(2, 1), (2, 4), (1, 7)]  # key/value heads, and query heads per key/value head
HEAD_DIMS = [64, 80, 128, 256]
VARIANTS = [PLAIN, Variant(windows=(0, 300)), Variant(scale=0.3, softcap=2.0)]
DECODES = [1, 16, 17, 255, 256, 257, 1030]
CHUNKS = [(0, 1), (0, 33), (5, 260), (250, 600)]
POISON = float("nan")


def results(backend: str, **shape: Any) -> list[Tensor]:
    scene = Scene(backend, **shape)
    scene.soil(POISON)
    deciding, prompts = [scene.part(length) for length in DECODES], [scene.part(end) for _, end in CHUNKS]
    for part in deciding:
        scene.write(part, 0, part.length - 1)
    for part, (start, _) in zip(prompts, CHUNKS, strict=True):
        scene.write(part, 0, start)
    return scene.step([(part, part.length - 1) for part in deciding],
                      [(part, *chunk) for part, chunk in zip(prompts, CHUNKS, strict=True)])


# bfloat16, the usual dtype, covers every pair of heads, head size and variant. Compiling each case takes seconds.
MET = [(heads, head_dim, VARIANTS[(row + column) % 3])
       for row, heads in enumerate(HEADS) for column, head_dim in enumerate(HEAD_DIMS)]


@pytest.mark.parametrize(("dtype", "heads", "head_dim", "variant"), [
    *((torch.bfloat16, *one) for one in MET),
    *((dtype, *one) for dtype in (torch.float16, torch.float32) for one in (*MET[::5], MET[7]))], ids=str)
def test_the_kernels_agree_with_the_reference(dtype: torch.dtype, heads: tuple[int, int], head_dim: int,
                                              variant: Variant, device: str) -> None:
    if device == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the interpreter's products of bfloat16 are wrong")
    both = [results(backend, kv_heads=heads[0], group=heads[1], head_dim=head_dim, dtype=dtype, variant=variant,
                    device=torch.device(device)) for backend in ("triton", "reference")]
    for ours, theirs in zip(*both, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=CLOSE[dtype])
