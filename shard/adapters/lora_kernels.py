"""LoRA as Triton kernels: shrink rows to the adapter's rank, then expand them to the linear's output.

A row's inputs are processed in splits of SPLIT, counted from the first; the partial results are stored and added in
order, without atomics. A program always multiplies ROWS rows, padded if needed, and RANKS ranks at once, so that a
row's bits do not depend on other rows.

`work` is a list of entries: table row and padded rank of a slot, index of its first row in `rows`, number of rows, and
their offset in the shrink output. Programs loop over the entries, and `number` holds how many there are, so a launch
need not know it. `tables` hold the addresses of the matrices by table row and part; 0 if the adapter does not change
the part. A launch thus depends on no adapter, and may be captured before any is loaded. The matrices have the dtype of
`like`.
"""

import triton
import triton.language as tl


@triton.jit
def told(entry, tables, part, work, PARTS: tl.constexpr, ENTRY: tl.constexpr):
    """Load an entry: its padded rank, 0 if there is nothing to do, address of its matrix, index of its first row,
    number of rows, and offset of these in the shrink output."""
    about = work + ENTRY * entry
    address = tl.load(tables + tl.load(about) * PARTS + part)
    size = tl.where(address != 0, tl.load(about + 1), 0)
    return size, address, tl.load(about + 2), tl.load(about + 3), tl.load(about + 4)


@triton.jit(do_not_specialize=["room"])
def shrink(x, like, tables, work, number, rows, narrow, x_stride, num_inputs, room, PARTS: tl.constexpr,
           SPLIT: tl.constexpr, PIECE: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, ENTRY: tl.constexpr):
    """Shrink one split of the inputs for one part. Grid: (programs, parts, splits). A matrix is [size, inputs],
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
    """Expand to one block of columns. Grid: (programs, blocks). An entry of `blocks` holds a part, the part's first
    column, its number of columns, and the block's first column within the part, all but the part multiples of EVEN. A
    matrix is [size, columns]."""
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
