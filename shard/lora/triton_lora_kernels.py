"""LoRA as Triton kernels: shrink rows to the adapter's rank, then expand them to the linear's output.

A row's inputs are processed in splits of SPLIT; the partial results are stored and added in order, without atomics
(docs/concepts/exactness.md, "Fixed splits"). A program always multiplies ROWS rows, padded if needed, and RANKS ranks
at once ("Tiles of one size").

`entries` is a list of entries: table row and padded rank of a slot, index of its first row in `row_indices`, number of
rows, and their offset in the shrink output. Programs loop over the entries, and `num_entries` holds how many there are,
so a launch need not know it. `address_tables` hold the addresses of the matrices by table row and part; 0 if the
adapter does not change the part. A launch thus depends on no adapter, and may be captured before any is loaded. The
matrices have the dtype of `dtype_example`.
"""

import triton
import triton.language as tl


@triton.jit
def load_entry(entry, address_tables, part, entries, NUM_PARTS: tl.constexpr, INTS_PER_ENTRY: tl.constexpr):
    """Load an entry: its padded rank, 0 if there is nothing to do, address of its matrix, index of its first row,
    number of rows, and offset of these in the shrink output."""
    entry_address = entries + INTS_PER_ENTRY * entry
    address = tl.load(address_tables + tl.load(entry_address) * NUM_PARTS + part)
    size = tl.where(address != 0, tl.load(entry_address + 1), 0)
    return size, address, tl.load(entry_address + 2), tl.load(entry_address + 3), tl.load(entry_address + 4)


@triton.jit(do_not_specialize=["shrunk_size"])
def lora_shrink(x, dtype_example, address_tables, entries, num_entries, row_indices, shrunk, x_stride, num_inputs,
                shrunk_size, NUM_PARTS: tl.constexpr, SPLIT: tl.constexpr, PIECE: tl.constexpr, ROWS: tl.constexpr,
                RANKS: tl.constexpr, INTS_PER_ENTRY: tl.constexpr):
    """Shrink one split of the inputs for one part. Grid: (programs, parts, splits). A matrix is [size, inputs],
    `shrunk` is [splits, NUM_PARTS, shrunk_size]."""
    part, split = tl.program_id(1), tl.program_id(2)
    places = tl.arange(0, ROWS)
    for entry in range(tl.program_id(0), tl.load(num_entries), tl.num_programs(0)):
        size, address, first, count, begin = load_entry(entry, address_tables, part, entries, NUM_PARTS, INTS_PER_ENTRY)
        is_valid_row = places < count
        row = tl.load(row_indices + first + places, mask=is_valid_row, other=0).to(tl.int64)
        matrix = tl.multiple_of(address.to(tl.pointer_type(dtype_example.dtype.element_ty)), 16)
        at = shrunk + (split.to(tl.int64) * NUM_PARTS + part) * shrunk_size + begin + places[:, None] * size
        for rank in range(0, size, RANKS):
            ranks = rank + tl.arange(0, RANKS)
            is_valid_rank = ranks < size
            products = tl.zeros([ROWS, RANKS], tl.float32)
            for piece in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, num_inputs), PIECE):
                inputs = piece + tl.arange(0, PIECE)
                inside = inputs < num_inputs
                values = tl.load(x + row[:, None] * x_stride + inputs[None, :],
                                 mask=is_valid_row[:, None] & inside[None, :], other=0.0)
                factors = tl.load(matrix + ranks[None, :] * num_inputs + inputs[:, None],
                                  mask=is_valid_rank[None, :] & inside[:, None], other=0.0)
                products = tl.dot(values.to(factors.dtype), factors, products, input_precision="ieee")
            tl.store(at + ranks[None, :], products, mask=is_valid_row[:, None] & is_valid_rank[None, :])


@triton.jit(do_not_specialize=["shrunk_size"])
def lora_expand(shrunk, dtype_example, address_tables, entries, num_entries, row_indices, output_blocks, y, y_stride,
                shrunk_size, num_splits, NUM_PARTS: tl.constexpr, BLOCK: tl.constexpr, ALIGNMENT: tl.constexpr,
                ROWS: tl.constexpr, RANKS: tl.constexpr, INTS_PER_ENTRY: tl.constexpr):
    """Expand to one block of columns. Grid: (programs, blocks). An entry of `output_blocks` holds a part, the part's
    first column, its number of columns, and the block's first column within the part, all but the part multiples of
    ALIGNMENT. A matrix is [size, columns]."""
    block_address = output_blocks + 4 * tl.program_id(1)
    part = tl.load(block_address)
    first_column, width = (tl.multiple_of(tl.load(block_address + 1), ALIGNMENT),
                           tl.multiple_of(tl.load(block_address + 2), ALIGNMENT))
    columns = tl.multiple_of(tl.load(block_address + 3), ALIGNMENT) + tl.arange(0, BLOCK)
    places, inside = tl.arange(0, ROWS), columns < width
    for entry in range(tl.program_id(0), tl.load(num_entries), tl.num_programs(0)):
        size, address, first, count, begin = load_entry(entry, address_tables, part, entries, NUM_PARTS, INTS_PER_ENTRY)
        is_valid_row = places < count
        row = tl.load(row_indices + first + places, mask=is_valid_row, other=0).to(tl.int64)
        matrix = tl.multiple_of(address.to(tl.pointer_type(dtype_example.dtype.element_ty)), 16)
        updates = tl.zeros([ROWS, BLOCK], tl.float32)
        for rank in range(0, size, RANKS):
            ranks = rank + tl.arange(0, RANKS)
            is_valid_rank = ranks < size
            shrunk_rows = tl.zeros([ROWS, RANKS], tl.float32)
            for split in range(num_splits):
                at = (shrunk + (tl.full([1, 1], split, tl.int64) * NUM_PARTS + part) * shrunk_size + begin
                      + places[:, None] * size)
                shrunk_rows += tl.load(at + ranks[None, :], mask=is_valid_row[:, None] & is_valid_rank[None, :],
                                       other=0.0)
            factors = tl.load(matrix + ranks.to(tl.int64)[:, None] * width + columns[None, :],
                              mask=is_valid_rank[:, None] & inside[None, :], other=0.0)
            updates = tl.dot(shrunk_rows.to(factors.dtype), factors, updates, input_precision="ieee")
        place = y + row[:, None] * y_stride + first_column + columns[None, :]
        is_updated = is_valid_row[:, None] & inside[None, :] & (size > 0)
        before = tl.load(place, mask=is_updated, other=0.0)
        tl.store(place, (before.to(tl.float32) + updates).to(before.dtype), mask=is_updated)
