"""What adapters add to a product's rows, as Triton kernels: a row becomes narrow, and wide again.

A row's inputs are taken in splits of SPLIT, counted from the first; what each amounts to is written down and added up
in order, without atomics. A program multiplies ROWS rows, however few of them are anybody's, so a row's bits do not
depend on others. Which rows these are stands in `work`: an adapter's slot, the first of its rows in `rows`, and how
many; none is a program with nothing to do.

Knows tensors only by their addresses; `slabs.py` says what stands where.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_held"])
def shrink(x, down, work, rows, narrow, x_stride, num_inputs, num_held, PARTS: tl.constexpr, SIZE: tl.constexpr,
           SIZE_PAD: tl.constexpr, SPLIT: tl.constexpr, PIECE: tl.constexpr, ROWS: tl.constexpr):
    """One split of some rows, for one part: a program for each entry of `work`, each part and each split. `down` is
    [slots, PARTS, SIZE, inputs], `narrow` [splits, PARTS, held rows, SIZE]."""
    entry, part, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(work + 3 * entry).to(tl.int64)
    first = tl.load(work + 3 * entry + 1)
    places = tl.arange(0, ROWS)
    real = places < tl.load(work + 3 * entry + 2)
    row = tl.load(rows + first + places, mask=real, other=0).to(tl.int64)
    ranks = tl.arange(0, SIZE_PAD)
    matrix = down + (slot * PARTS + part) * SIZE * num_inputs
    found = tl.zeros([ROWS, SIZE_PAD], tl.float32)
    for begin in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, num_inputs), PIECE):
        inputs = begin + tl.arange(0, PIECE)
        inside = inputs < num_inputs
        values = tl.load(x + row[:, None] * x_stride + inputs[None, :], mask=real[:, None] & inside[None, :], other=0.0)
        factors = tl.load(matrix + ranks[None, :] * num_inputs + inputs[:, None],
                          mask=(ranks < SIZE)[None, :] & inside[:, None], other=0.0)
        found = tl.dot(values.to(factors.dtype), factors, found, input_precision="ieee")
    at = (split.to(tl.int64) * PARTS + part) * num_held + first + places
    tl.store(narrow + at[:, None] * SIZE + ranks[None, :], found, mask=real[:, None] & (ranks < SIZE)[None, :])


@triton.jit(do_not_specialize=["num_held"])
def expand(narrow, up, work, rows, blocks, y, y_stride, num_outputs, num_held, num_splits, PARTS: tl.constexpr,
           SIZE: tl.constexpr, SIZE_PAD: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Some columns of some rows: a program for each entry of `work` and each of `blocks`, which says the part, the
    first column and the end. `up` is [slots, SIZE, outputs]."""
    entry, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(work + 3 * entry).to(tl.int64)
    first = tl.load(work + 3 * entry + 1)
    places = tl.arange(0, ROWS)
    real = places < tl.load(work + 3 * entry + 2)
    row = tl.load(rows + first + places, mask=real, other=0).to(tl.int64)
    part = tl.load(blocks + 3 * block)
    columns = tl.load(blocks + 3 * block + 1) + tl.arange(0, BLOCK)
    inside = columns < tl.load(blocks + 3 * block + 2)
    ranks = tl.arange(0, SIZE_PAD)
    there = real[:, None] & (ranks < SIZE)[None, :]
    found = tl.zeros([ROWS, SIZE_PAD], tl.float32)
    for split in range(num_splits):
        at = (tl.full([1], split, tl.int64) * PARTS + part) * num_held + first + places
        found += tl.load(narrow + at[:, None] * SIZE + ranks[None, :], mask=there, other=0.0)
    factors = tl.load(up + (slot * SIZE + ranks)[:, None] * num_outputs + columns[None, :],
                      mask=(ranks < SIZE)[:, None] & inside[None, :], other=0.0)
    added = tl.dot(found.to(factors.dtype), factors, input_precision="ieee")
    place = y + row[:, None] * y_stride + columns[None, :]
    changed = real[:, None] & inside[None, :]
    before = tl.load(place, mask=changed, other=0.0)
    tl.store(place, (before.to(tl.float32) + added).to(before.dtype), mask=changed)
