"""What adapters add to a product's rows, as Triton kernels: a row becomes narrow, and wide again.

A row's inputs are taken in splits of SPLIT, counted from the first; what each amounts to is written down and added up
in order, without atomics. A program multiplies ROWS rows, however few of them are anybody's, and RANKS ranks at once:
a row's bits do not depend on others.

What a program has to do stands in `work`: row and size of a shelf, an adapter's slot there, the first of its rows in
`rows`, how many, and where they are when they are narrow. With none it ends at once, and so it does where nothing on
the shelf changes this product: `tables` have its address, by its row, or 0. So what is launched depends on no adapter,
and may be captured before there is any. The matrices are of the type of `like`.

Knows tensors only by their addresses; `slabs.py` says what stands where.
"""

import triton
import triton.language as tl


@triton.jit
def told(work, tables, ENTRY: tl.constexpr):
    """Of this program: its size, 0 if there is nothing to do, the address of its shelf, its slot, its rows in `rows`,
    and where these are when they are narrow."""
    about = work + ENTRY * tl.program_id(0)
    address = tl.load(tables + tl.load(about))
    count = tl.load(about + 4)
    size = tl.where((count > 0) & (address != 0), tl.load(about + 1), 0)
    return size, address, tl.load(about + 2).to(tl.int64), tl.load(about + 3), count, tl.load(about + 5)


@triton.jit(do_not_specialize=["room"])
def shrink(x, like, tables, work, rows, narrow, x_stride, num_inputs, room, PARTS: tl.constexpr, SPLIT: tl.constexpr,
           PIECE: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, ENTRY: tl.constexpr):
    """One split of some rows, for one part: a program for each entry of `work`, each part and each split. A shelf's
    matrices are [slots, PARTS, size, inputs], `narrow` is [splits, PARTS, room]."""
    part, split = tl.program_id(1), tl.program_id(2)
    size, address, slot, first, count, begin = told(work, tables, ENTRY)
    if size == 0:
        return
    places = tl.arange(0, ROWS)
    real = places < count
    row = tl.load(rows + first + places, mask=real, other=0).to(tl.int64)
    matrix = tl.multiple_of(address.to(tl.pointer_type(like.dtype.element_ty)), 16) + (
        slot * PARTS + part) * size * num_inputs
    at = narrow + (split.to(tl.int64) * PARTS + part) * room + begin + places[:, None] * size
    for rank in range(0, size, RANKS):
        ranks = rank + tl.arange(0, RANKS)
        there = ranks < size
        found = tl.zeros([ROWS, RANKS], tl.float32)
        for piece in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, num_inputs), PIECE):
            inputs = piece + tl.arange(0, PIECE)
            inside = inputs < num_inputs
            values = tl.load(x + row[:, None] * x_stride + inputs[None, :], mask=real[:, None] & inside[None, :],
                             other=0.0)
            factors = tl.load(matrix + ranks[None, :] * num_inputs + inputs[:, None],
                              mask=there[None, :] & inside[:, None], other=0.0)
            found = tl.dot(values.to(factors.dtype), factors, found, input_precision="ieee")
        tl.store(at + ranks[None, :], found, mask=real[:, None] & there[None, :])


@triton.jit(do_not_specialize=["room"])
def expand(narrow, like, tables, work, rows, blocks, y, y_stride, num_outputs, room, num_splits,
           PARTS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr,
           ENTRY: tl.constexpr):
    """Some columns of some rows: a program for each entry of `work` and each of `blocks`, which says the part, the
    first column and the end, multiples of EVEN. A shelf's matrices are [slots, size, outputs]."""
    block = tl.program_id(1)
    size, address, slot, first, count, begin = told(work, tables, ENTRY)
    if size == 0:
        return
    places = tl.arange(0, ROWS)
    real = places < count
    row = tl.load(rows + first + places, mask=real, other=0).to(tl.int64)
    part = tl.load(blocks + 3 * block)
    columns = tl.multiple_of(tl.load(blocks + 3 * block + 1), EVEN) + tl.arange(0, BLOCK)
    inside = columns < tl.multiple_of(tl.load(blocks + 3 * block + 2), EVEN)
    matrix = tl.multiple_of(address.to(tl.pointer_type(like.dtype.element_ty)), 16) + slot * size * num_outputs
    added = tl.zeros([ROWS, BLOCK], tl.float32)
    for rank in range(0, size, RANKS):
        ranks = rank + tl.arange(0, RANKS)
        there = ranks < size
        found = tl.zeros([ROWS, RANKS], tl.float32)
        for split in range(num_splits):
            at = narrow + (tl.full([1, 1], split, tl.int64) * PARTS + part) * room + begin + places[:, None] * size
            found += tl.load(at + ranks[None, :], mask=real[:, None] & there[None, :], other=0.0)
        factors = tl.load(matrix + ranks.to(tl.int64)[:, None] * num_outputs + columns[None, :],
                          mask=there[:, None] & inside[None, :], other=0.0)
        added = tl.dot(found.to(factors.dtype), factors, added, input_precision="ieee")
    place = y + row[:, None] * y_stride + columns[None, :]
    changed = real[:, None] & inside[None, :]
    before = tl.load(place, mask=changed, other=0.0)
    tl.store(place, (before.to(tl.float32) + added).to(before.dtype), mask=changed)
