"""What adapters add to a product's rows, as Triton kernels: a row becomes narrow, and wide again.

A row's inputs are taken in splits of SPLIT, counted from the first; what each amounts to is written down and added up
in order, without atomics. A program multiplies ROWS rows, however few of them are anybody's, and RANKS ranks at once:
a row's bits do not depend on others.

What there is to do stands in `work`, an entry behind the other: row and size of a place, the first of its rows in
`rows`, how many, and where they are when they are narrow. Programs take turns with the entries, so that a launch need
not know how many there are: `number` tells it. `tables` have the addresses of what hangs at a place, by its row and by
the part of the product that it changes; 0 if it does not. So what is launched depends on no adapter, and may be
captured before there is any. The matrices are of the type of `like`.

Knows tensors only by their addresses; `slabs.py` says what stands where.
"""

import triton
import triton.language as tl


@triton.jit
def told(entry, tables, part, work, PARTS: tl.constexpr, ENTRY: tl.constexpr):
    """Of this entry: its size, 0 if there is nothing to do, the address of its matrix, the first of its rows, how many,
    and where these are when they are narrow."""
    about = work + ENTRY * entry
    address = tl.load(tables + tl.load(about) * PARTS + part)
    size = tl.where(address != 0, tl.load(about + 1), 0)
    return size, address, tl.load(about + 2), tl.load(about + 3), tl.load(about + 4)


@triton.jit(do_not_specialize=["room"])
def shrink(x, like, tables, work, number, rows, narrow, x_stride, num_inputs, room, PARTS: tl.constexpr,
           SPLIT: tl.constexpr, PIECE: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, ENTRY: tl.constexpr):
    """One split of rows, for one part: so many programs for each part and each split. A matrix is [size, inputs],
    `narrow` is [splits, PARTS, room]."""
    part, split = tl.program_id(1), tl.program_id(2)
    places = tl.arange(0, ROWS)
    for entry in range(tl.program_id(0), tl.load(number), tl.num_programs(0)):
        size, address, first, count, begin = told(entry, tables, part, work, PARTS, ENTRY)
        real = places < count
        row = tl.load(rows + first + places, mask=real, other=0).to(tl.int64)
        matrix = tl.multiple_of(address.to(tl.pointer_type(like.dtype.element_ty)), 16)
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
def expand(narrow, like, tables, work, number, rows, blocks, y, y_stride, room, num_splits, PARTS: tl.constexpr,
           BLOCK: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, ENTRY: tl.constexpr):
    """Some columns of rows: so many programs for each of `blocks`, which says the part, its first column, how many it
    has, and the first of them in the block, all but the part multiples of EVEN. A matrix is [size, columns]."""
    about = blocks + 4 * tl.program_id(1)
    part = tl.load(about)
    begun, width = tl.multiple_of(tl.load(about + 1), EVEN), tl.multiple_of(tl.load(about + 2), EVEN)
    columns = tl.multiple_of(tl.load(about + 3), EVEN) + tl.arange(0, BLOCK)
    places, inside = tl.arange(0, ROWS), columns < width
    for entry in range(tl.program_id(0), tl.load(number), tl.num_programs(0)):
        size, address, first, count, begin = told(entry, tables, part, work, PARTS, ENTRY)
        real = places < count
        row = tl.load(rows + first + places, mask=real, other=0).to(tl.int64)
        matrix = tl.multiple_of(address.to(tl.pointer_type(like.dtype.element_ty)), 16)
        added = tl.zeros([ROWS, BLOCK], tl.float32)
        for rank in range(0, size, RANKS):
            ranks = rank + tl.arange(0, RANKS)
            there = ranks < size
            found = tl.zeros([ROWS, RANKS], tl.float32)
            for split in range(num_splits):
                at = narrow + (tl.full([1, 1], split, tl.int64) * PARTS + part) * room + begin + places[:, None] * size
                found += tl.load(at + ranks[None, :], mask=real[:, None] & there[None, :], other=0.0)
            factors = tl.load(matrix + ranks.to(tl.int64)[:, None] * width + columns[None, :],
                              mask=there[:, None] & inside[None, :], other=0.0)
            added = tl.dot(found.to(factors.dtype), factors, added, input_precision="ieee")
        place = y + row[:, None] * y_stride + begun + columns[None, :]
        changed = real[:, None] & inside[None, :] & (size > 0)
        before = tl.load(place, mask=changed, other=0.0)
        tl.store(place, (before.to(tl.float32) + added).to(before.dtype), mask=changed)
