/* Low-rank updates of the rows' adapters: y += (x * A) * B, computed in float32. A row's bits follow from its numbers and
 * its adapter's alone. */

#include "phases.h"

#include "rows.h"

typedef struct {
    const float *const *lora_a; /* by adapter: [rank, inputs]; NULL if it does not change this part */
    const float *const *lora_b; /* by adapter: [rank, outputs] */
    const int64_t *ranks;       /* by adapter */
    int64_t first_output, outputs;
} LoraPart;

typedef struct {
    const void *x;
    void *y;
    float *shrunk;                     /* [rows, num_parts, max_rank] */
    const int32_t *adapter_table_rows; /* of each row's adapter, in tables of all adapters; -1: none */
    const LoraPart *parts;
    int64_t rows, inputs, num_parts, max_rank, x_stride, y_stride, x_format, y_format;
} LoraUpdate;

enum { TILE_VECTORS = 4, TILE = TILE_VECTORS * LANES, TILES_PER_PART = 32 };

/* Reads the vector at index `first` of numbers of a format. */
TARGET static inline __attribute__((always_inline)) VECTOR load_vector(const void *numbers, ptrdiff_t first, int64_t format) {
    return format == FLOAT32 ? LOAD((const float *)numbers + first) : LOAD_BFLOAT16((const uint16_t *)numbers + first);
}

/* Multiplies the numbers from index `first` on. */
TARGET static inline __attribute__((always_inline)) float multiply_numbers(const void *x, ptrdiff_t first, int64_t format,
                                                                           const float *weights, ptrdiff_t count) {
    VECTOR sums[TILE_VECTORS];
    for (int i = 0; i < TILE_VECTORS; i++) sums[i] = BROADCAST(0.0f);
    ptrdiff_t k = 0;
    for (; k + TILE <= count; k += TILE)
        for (int i = 0; i < TILE_VECTORS; i++)
            sums[i] = MULTIPLY_ADD(load_vector(x, first + k + i * LANES, format), LOAD(weights + k + i * LANES), sums[i]);
    float lanes[LANES], rest[TILE], sum = 0.0f;
    STORE(lanes, ADD(ADD(sums[0], sums[1]), ADD(sums[2], sums[3])));
    for (int lane = 0; lane < LANES; lane++) sum += lanes[lane];
    load_numbers(x, first + k, count - k, format, rest);
    for (ptrdiff_t i = 0; k + i < count; i++) sum += rest[i] * weights[k + i];
    return sum;
}

TARGET static float multiply_row(const LoraUpdate *u, ptrdiff_t row, const float *weights) {
    return u->x_format == FLOAT32 ? multiply_numbers(u->x, row * u->x_stride, FLOAT32, weights, u->inputs)
                                  : multiply_numbers(u->x, row * u->x_stride, BFLOAT16, weights, u->inputs);
}

static void shrink_row(const Phase *phase, ptrdiff_t row) {
    const LoraUpdate *u = phase->arguments;
    const int32_t slot = u->adapter_table_rows[row];
    if (slot < 0) return;
    for (ptrdiff_t part = 0; part < u->num_parts; part++) {
        const float *a = u->parts[part].lora_a[slot];
        if (a == NULL) continue;
        float *const to = u->shrunk + (row * u->num_parts + part) * u->max_rank;
        for (ptrdiff_t rank = 0; rank < u->parts[part].ranks[slot]; rank++)
            to[rank] = multiply_row(u, row, a + rank * u->inputs);
    }
}

/* Adds to the outputs from `first` on, at most TILE, of a part; y[y_first] is the part's first. */
TARGET static void expand_tile(const float *shrunk, const float *b, ptrdiff_t ranks, ptrdiff_t outputs, ptrdiff_t first,
                               void *y, ptrdiff_t y_first, int64_t format) {
    const ptrdiff_t left = outputs - first;
    float numbers[TILE];
    if (left < TILE) {
        load_numbers(y, y_first + first, left, format, numbers);
        for (ptrdiff_t i = 0; i < left; i++) {
            float sum = 0.0f;
            for (ptrdiff_t rank = 0; rank < ranks; rank++) sum += shrunk[rank] * b[rank * outputs + first + i];
            numbers[i] += sum;
        }
        store_numbers(numbers, y, y_first + first, left, format);
        return;
    }
    VECTOR sums[TILE_VECTORS];
    for (int i = 0; i < TILE_VECTORS; i++) sums[i] = BROADCAST(0.0f);
    for (ptrdiff_t rank = 0; rank < ranks; rank++) {
        const VECTOR factor = BROADCAST(shrunk[rank]);
        const float *weights = b + rank * outputs + first;
        for (int i = 0; i < TILE_VECTORS; i++) sums[i] = MULTIPLY_ADD(factor, LOAD(weights + i * LANES), sums[i]);
    }
    for (int i = 0; i < TILE_VECTORS; i++)
        STORE(numbers + i * LANES, ADD(load_vector(y, y_first + first + i * LANES, format), sums[i]));
    store_numbers(numbers, y, y_first + first, TILE, format);
}

static ptrdiff_t count_pieces(const LoraPart *part) { return divide_up(part->outputs, TILE * TILES_PER_PART); }

static void expand_piece(const Phase *phase, ptrdiff_t number) {
    const LoraUpdate *u = phase->arguments;
    const ptrdiff_t row = number % u->rows;
    const int32_t slot = u->adapter_table_rows[row];
    ptrdiff_t piece = number / u->rows, part = 0;
    if (slot < 0) return;
    for (; piece >= count_pieces(u->parts + part); part++) piece -= count_pieces(u->parts + part);
    const LoraPart *p = u->parts + part;
    if (p->lora_a[slot] == NULL) return;
    const float *shrunk = u->shrunk + (row * u->num_parts + part) * u->max_rank;
    ptrdiff_t end = (piece + 1) * TILE * TILES_PER_PART;
    if (end > p->outputs) end = p->outputs;
    for (ptrdiff_t first = piece * TILE * TILES_PER_PART; first < end; first += TILE)
        expand_tile(shrunk, p->lora_b[slot], p->ranks[slot], p->outputs, first, u->y,
                    row * u->y_stride + p->first_output, u->y_format);
}

EXPORT int weft_prepare_lora_update(const LoraUpdate *update, Phase *phases) {
    ptrdiff_t pieces = 0;
    for (ptrdiff_t part = 0; part < update->num_parts; part++) pieces += count_pieces(update->parts + part);
    phases[0] = (Phase){shrink_row, update, NULL, update->rows};
    phases[1] = (Phase){expand_piece, update, NULL, update->rows * pieces};
    return 2;
}
