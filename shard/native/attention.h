/* Attention over a paged cache, for one kind of vectors: attention.c includes this file once for each instruction set.
 *
 * A row is one head of one token. Its keys are taken in blocks of KEYS, counted from the first position of the sequence.
 * For each block come scores, maximum, exponentials, and the weighted sum of values, in the order of the positions.
 * So its bits depend on nothing but the row itself and the keys and values it attends to: docs/concepts/exactness.md,
 * "Blocks of 64 keys".
 */

/* y[row][column] += sum over k of x[row][k] * w[k][column], for up to TILE_ROWS rows and 16 columns. */
#define DEFINE_TILE(ROWS)                                                                                              \
    TARGET static void NAME(tile_##ROWS)(const float *x, ptrdiff_t x_stride, const float *w, ptrdiff_t w_stride,       \
                                         ptrdiff_t count, float *y, ptrdiff_t y_stride) {                              \
        VECTOR sums[ROWS][COLUMNS / LANES];                                                                            \
        _Pragma("GCC unroll 12") for (int row = 0; row < ROWS; row++)                                                  \
            _Pragma("GCC unroll 2") for (int part = 0; part < COLUMNS / LANES; part++)                                 \
                sums[row][part] = LOAD(y + row * y_stride + part * LANES);                                             \
        for (ptrdiff_t k = 0; k < count; k++) {                                                                        \
            VECTOR columns[COLUMNS / LANES];                                                                           \
            _Pragma("GCC unroll 2") for (int part = 0; part < COLUMNS / LANES; part++)                                 \
                columns[part] = LOAD(w + k * w_stride + part * LANES);                                                 \
            _Pragma("GCC unroll 12") for (int row = 0; row < ROWS; row++) {                                            \
                const VECTOR value = BROADCAST(x[row * x_stride + k]);                                                 \
                _Pragma("GCC unroll 2") for (int part = 0; part < COLUMNS / LANES; part++)                             \
                    sums[row][part] = MULTIPLY_ADD(value, columns[part], sums[row][part]);                             \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 12") for (int row = 0; row < ROWS; row++)                                                  \
            _Pragma("GCC unroll 2") for (int part = 0; part < COLUMNS / LANES; part++)                                 \
                STORE(y + row * y_stride + part * LANES, sums[row][part]);                                             \
    }
DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(3)
DEFINE_TILE(4)
DEFINE_TILE(5)
DEFINE_TILE(6)
#undef DEFINE_TILE

/* The same for any number of rows, and a multiple of 16 columns. */
static void NAME(add_product)(const float *x, ptrdiff_t x_stride, const float *w, ptrdiff_t w_stride, ptrdiff_t count,
                              float *y, ptrdiff_t y_stride, ptrdiff_t rows, ptrdiff_t columns) {
    static void (*const tiles[])(const float *, ptrdiff_t, const float *, ptrdiff_t, ptrdiff_t, float *, ptrdiff_t) = {
        NAME(tile_1), NAME(tile_2), NAME(tile_3), NAME(tile_4), NAME(tile_5), NAME(tile_6)};
    const ptrdiff_t num_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (ptrdiff_t column = 0; column < columns; column += COLUMNS)
        for (ptrdiff_t tile = 0; tile < num_tiles; tile++) {
            const ptrdiff_t row = rows * tile / num_tiles, end = rows * (tile + 1) / num_tiles;
            tiles[end - row - 1](x + row * x_stride, x_stride, w + column, w_stride, count,
                                 y + row * y_stride + column, y_stride);
        }
}

/* Converts the numbers of one key, or value, to float32. */
TARGET static inline void NAME(copy_row)(const Attention *a, const char *from, float *to) {
    ptrdiff_t d = 0;
    switch (a->format) {
    case FLOAT32:
        for (; d + LANES <= a->head_dim; d += LANES) STORE(to + d, LOAD((const float *)from + d));
        for (; d < a->head_dim; d++) to[d] = ((const float *)from)[d];
        break;
    case BFLOAT16:
        for (; d + LANES <= a->head_dim; d += LANES) STORE(to + d, LOAD_BFLOAT16((const uint16_t *)from + d));
        for (; d < a->head_dim; d++) {
            const uint32_t word = (uint32_t)((const uint16_t *)from)[d] << 16;
            memcpy(to + d, &word, sizeof word);
        }
        break;
    default:
        for (; d + LANES <= a->head_dim; d += LANES) STORE(to + d, LOAD_FLOAT16((const uint16_t *)from + d));
        for (; d < a->head_dim; d++) to[d] = _cvtsh_ss(((const uint16_t *)from)[d]);
    }
}

/* Copies the keys, or values, of one head at positions first to end - 1 to the rows of `to`. */
TARGET static void NAME(copy_rows)(const Attention *a, const char *from, const int32_t *blocks, ptrdiff_t first,
                                   ptrdiff_t end, float *to, ptrdiff_t to_stride) {
    for (ptrdiff_t position = first; position < end;) {
        const ptrdiff_t offset = position % a->block_size;
        const ptrdiff_t left = a->block_size - offset, count = end - position < left ? end - position : left;
        const char *row = from + (blocks[position / a->block_size] * a->block_size + offset) * a->slot_bytes;
        for (ptrdiff_t i = 0; i < count; i++, row += a->slot_bytes, to += to_stride) NAME(copy_row)(a, row, to);
        position += count;
    }
}

/* Computes the heads of one key/value head for the tokens of one piece. */
TARGET static void NAME(attend)(const Attention *a, const Piece *piece, ptrdiff_t kv_head) {
    float keys[KEYS * MAX_HEAD_DIM], transposed[MAX_HEAD_DIM * KEYS], values[KEYS * MAX_HEAD_DIM];
    float queries[MAX_ROWS * MAX_HEAD_DIM], outputs[MAX_ROWS * MAX_HEAD_DIM], scores[MAX_ROWS * KEYS];
    float maxima[MAX_ROWS], totals[MAX_ROWS];
    const ptrdiff_t head_dim = a->head_dim, columns = (head_dim + COLUMNS - 1) / COLUMNS * COLUMNS;
    const ptrdiff_t rows = piece->length * a->group;
    const RowSums sums = {scores, outputs, maxima, totals, columns};
    const char *key_cache = a->keys + kv_head * head_dim * a->item_bytes;
    const char *value_cache = a->values + kv_head * head_dim * a->item_bytes;
    const int32_t *blocks = a->blocks + piece->first_block;
    const float factor = find_score_factor(a);
    for (ptrdiff_t row = 0; row < rows; row++) {
        float *query = queries + row * head_dim;
        load_numbers(a->queries, (piece->first_row + row / a->group) * a->query_stride
                                     + (kv_head * a->group + row % a->group) * head_dim,
                     head_dim, a->activation_format, query);
        for (ptrdiff_t d = 0; d < head_dim; d++) query[d] *= factor;
        maxima[row] = -INFINITY;
        totals[row] = 0.0f;
    }
    memset(outputs, 0, (size_t)(rows * columns) * sizeof(float));
    if (columns != head_dim) memset(values, 0, sizeof values);
    const ptrdiff_t end = piece->start + piece->length;
    const ptrdiff_t begin = a->window == 0 || piece->start < a->window ? 0 : piece->start - a->window + 1;
    for (ptrdiff_t position = begin / KEYS * KEYS; position < end; position += KEYS) {
        const ptrdiff_t count = end - position < KEYS ? end - position : KEYS;
        NAME(copy_rows)(a, key_cache, blocks, position, position + count, keys, head_dim);
        NAME(copy_rows)(a, value_cache, blocks, position, position + count, values, columns);
        transpose(keys, count, head_dim, transposed);
        memset(scores, 0, (size_t)(rows * KEYS) * sizeof(float));
        NAME(add_product)(queries, head_dim, transposed, KEYS, head_dim, scores, KEYS, rows, KEYS);
        NAME(weigh_keys)(a, piece, position, &sums);
        NAME(add_product)(scores, KEYS, values, columns, count, outputs, columns, rows, columns);
    }
    NAME(store_outputs)(a, piece, kv_head, &sums);
}
