/* Attention of bfloat16 queries to a bfloat16 cache by the tiles of AMX. It differs from attention.h in how it
 * multiplies: scores are the queries as they are stored times the keys where they lie in the cache, and scaled then.
 * A weight is the sum of two numbers of bfloat16, which keeps 16 bits of it, and values are multiplied by both.
 *
 * A row's bits depend on nothing but the row itself and the keys and values it attends to: a tile computes each row and
 * each key by itself, and blocks of KEYS begin at the sequence's first position.
 */

#include "attention_arguments.h"

#include "amx_tiles.h"

enum { TILE_INPUTS = 32, TILE_NUMBERS = 256, KEY_TILES = KEYS / TILE_ROWS, WEIGHT_TILES = KEYS / TILE_INPUTS };
enum { MAX_ROW_TILES = MAX_ROWS / TILE_ROWS, MAX_DIM_TILES = MAX_HEAD_DIM / TILE_ROWS };
#define ALL_NUMBERS 0xffffffffu

int can_attend_by_amx(const Attention *a, int instruction_set) {
    return HAS_AMX && instruction_set == AMX && a->format == BFLOAT16 && a->activation_format == BFLOAT16
           && a->head_dim % TILE_INPUTS == 0 && a->block_size % TILE_ROWS == 0;
}

#if HAS_AMX

#undef USE_AVX512
#define USE_AVX512 1
#include "vectors.h"

#include "attention_weights.h"

#undef TARGET
#define TARGET __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")))
/* What follows is loaded by tiles: gcc must have written it. */
#define WRITE_MEMORY() __asm__ volatile("" : : : "memory")

typedef struct { /* each row of a tile is in one cache line */
    /* pairs of dimensions by rows */
    _Alignas(LINE_BYTES) float query_tiles[MAX_ROW_TILES][MAX_HEAD_DIM / TILE_INPUTS][TILE_NUMBERS];
    float value_tiles[WEIGHT_TILES][MAX_DIM_TILES][TILE_NUMBERS];     /* pairs of keys by dimensions */
    float weight_tiles[MAX_ROW_TILES][WEIGHT_TILES][2][TILE_NUMBERS]; /* rows by pairs of keys; both parts */
    float scores[MAX_ROWS * KEYS];
    float outputs[MAX_ROWS * MAX_HEAD_DIM];
    float maxima[MAX_ROWS], totals[MAX_ROWS];
} Work;

/* to[column][row] = from[row][column], for 16 rows and columns. */
TARGET static inline void transpose_16x16(const float *from, ptrdiff_t from_stride, float *to, ptrdiff_t to_stride) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(from + i * from_stride);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int half = 0; half < 2; half++) {
            const __m512d first = _mm512_castps_pd(b[i + half]), second = _mm512_castps_pd(b[i + half + 2]);
            a[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(first, second));
            a[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(first, second));
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            b[i + j] = _mm512_shuffle_f32x4(a[i + j], a[i + j + 4], 0x88);
            b[i + j + 4] = _mm512_shuffle_f32x4(a[i + j], a[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        _mm512_storeu_ps(to + j * to_stride, _mm512_shuffle_f32x4(b[j], b[j + 8], 0x88));
        _mm512_storeu_ps(to + (j + 8) * to_stride, _mm512_shuffle_f32x4(b[j], b[j + 8], 0xdd));
    }
}

/* Returns where the numbers of one head at a position are. */
static inline const char *find_slot(const Attention *a, const char *cache, const int32_t *blocks, ptrdiff_t position) {
    return cache + (blocks[position / a->block_size] * a->block_size + position % a->block_size) * a->slot_bytes;
}

TARGET static void make_query_tiles(const Attention *a, const Piece *piece, ptrdiff_t kv_head, Work *work) {
    const ptrdiff_t rows = piece->length * a->group;
    uint16_t queries[TILE_ROWS * MAX_HEAD_DIM];
    for (ptrdiff_t first = 0; first < rows; first += TILE_ROWS) {
        for (ptrdiff_t i = 0; i < TILE_ROWS; i++) {
            const ptrdiff_t row = first + i;
            uint16_t *to = queries + i * a->head_dim;
            if (row >= rows) memset(to, 0, (size_t)a->head_dim * sizeof *to);
            else
                memcpy(to, (const uint16_t *)a->queries + (piece->first_row + row / a->group) * a->query_stride
                               + (kv_head * a->group + row % a->group) * a->head_dim,
                       (size_t)a->head_dim * sizeof *to);
        }
        for (ptrdiff_t tile = 0; tile < a->head_dim / TILE_INPUTS; tile++)
            transpose_16x16((const float *)(const void *)queries + tile * TILE_ROWS, a->head_dim / 2,
                            work->query_tiles[first / TILE_ROWS][tile], TILE_ROWS);
    }
}

/* Copies the values of `count` keys from `position` on, pairs of keys side by side; missing ones are zeros. */
TARGET static void make_value_tiles(const Attention *a, const char *cache, const int32_t *blocks, ptrdiff_t position,
                                    ptrdiff_t count, Work *work) {
    uint16_t order[2 * TILE_INPUTS]; /* of the numbers of two keys: for the first 16 dimensions, then for the others */
    for (uint16_t i = 0; i < TILE_INPUTS; i++) {
        order[2 * i] = i;
        order[2 * i + 1] = TILE_INPUTS + i;
    }
    const __m512i low = _mm512_loadu_si512(order), high = _mm512_loadu_si512(order + TILE_INPUTS);
    const __m512i zero = _mm512_setzero_si512();
    const char *slot = NULL;
    for (ptrdiff_t key = 0; key < KEYS; key += 2, slot += 2 * a->slot_bytes) {
        if (key % TILE_ROWS == 0) /* 16 keys lie side by side */
            slot = find_slot(a, cache, blocks, position + (key < count ? key : 0));
        const __mmask32 first = key < count ? ALL_NUMBERS : 0, second = key + 1 < count ? ALL_NUMBERS : 0;
        for (ptrdiff_t d = 0; d < a->head_dim; d += TILE_INPUTS) {
            const __m512i x = _mm512_mask_loadu_epi16(zero, first, slot + d * 2);
            const __m512i y = _mm512_mask_loadu_epi16(zero, second, slot + a->slot_bytes + d * 2);
            float(*to)[TILE_NUMBERS] = work->value_tiles[key / TILE_INPUTS] + d / TILE_ROWS;
            const ptrdiff_t row = key % TILE_INPUTS / 2 * TILE_ROWS;
            _mm512_storeu_si512(to[0] + row, _mm512_permutex2var_epi16(x, low, y));
            _mm512_storeu_si512(to[1] + row, _mm512_permutex2var_epi16(x, high, y));
        }
    }
}

/* Reads the keys, or values, of the positions before `end` ahead: at most KEYS, a multiple of 16 from `position` on. */
static void read_ahead(const Attention *a, const char *cache, const int32_t *blocks, ptrdiff_t position,
                       ptrdiff_t end) {
    for (ptrdiff_t first = position; first < end && first < position + KEYS; first += TILE_ROWS) {
        const char *slot = find_slot(a, cache, blocks, first);
        for (ptrdiff_t key = 0; key < TILE_ROWS; key++, slot += a->slot_bytes)
            for (ptrdiff_t offset = 0; offset < a->head_dim * a->item_bytes; offset += LINE_BYTES)
                _mm_prefetch(slot + offset, _MM_HINT_T0);
    }
}

/* Writes the scores of 16 rows for the keys from `position` on; for keys past `count` they are zeros. */
TARGET static void compute_scores(const Attention *a, const char *cache, const int32_t *blocks, ptrdiff_t position,
                                  ptrdiff_t count, float (*query_tiles)[TILE_NUMBERS], float *scores) {
    _Alignas(LINE_BYTES) float scores_by_key[KEYS * TILE_ROWS];
    const char *keys[KEY_TILES];
    for (ptrdiff_t tile = 0; tile < KEY_TILES; tile++) /* past `count` any keys will do */
        keys[tile] = find_slot(a, cache, blocks, position + (tile * TILE_ROWS < count ? tile * TILE_ROWS : 0));
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (ptrdiff_t tile = 0; tile < a->head_dim / TILE_INPUTS; tile++) {
        const ptrdiff_t offset = tile * TILE_ROW_BYTES;
        _tile_loadd(6, query_tiles[tile], TILE_ROW_BYTES);
        _tile_loadd(4, keys[0] + offset, a->slot_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, keys[1] + offset, a->slot_bytes);
        _tile_dpbf16ps(1, 5, 6);
        _tile_loadd(4, keys[2] + offset, a->slot_bytes);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(5, keys[3] + offset, a->slot_bytes);
        _tile_dpbf16ps(3, 5, 6);
    }
    _tile_stored(0, scores_by_key, TILE_ROW_BYTES);
    _tile_stored(1, scores_by_key + TILE_NUMBERS, TILE_ROW_BYTES);
    _tile_stored(2, scores_by_key + 2 * TILE_NUMBERS, TILE_ROW_BYTES);
    _tile_stored(3, scores_by_key + 3 * TILE_NUMBERS, TILE_ROW_BYTES);
    const VECTOR factor = BROADCAST(find_score_factor(a));
    for (ptrdiff_t i = 0; i < count * TILE_ROWS; i += LANES)
        STORE(scores_by_key + i, MULTIPLY(LOAD(scores_by_key + i), factor));
    if (count < KEYS)
        memset(scores_by_key + count * TILE_ROWS, 0, (size_t)((KEYS - count) * TILE_ROWS) * sizeof(float));
    for (ptrdiff_t tile = 0; tile < KEY_TILES; tile++)
        transpose_16x16(scores_by_key + tile * TILE_NUMBERS, TILE_ROWS, scores + tile * TILE_ROWS, KEYS);
}

/* Splits the weights of one row tile: what bfloat16 keeps of them, and of the rest. */
TARGET static void split_weights(const float *weights, float (*tiles)[2][TILE_NUMBERS]) {
    for (ptrdiff_t row = 0; row < TILE_ROWS; row++)
        for (ptrdiff_t tile = 0; tile < WEIGHT_TILES; tile++) {
            const float *from = weights + row * KEYS + tile * TILE_INPUTS;
            const __m512 low = _mm512_loadu_ps(from), high = _mm512_loadu_ps(from + TILE_ROWS);
            const __m512i kept = (__m512i)_mm512_cvtne2ps_pbh(high, low);
            _mm512_storeu_si512(tiles[tile][0] + row * TILE_ROWS, kept);
            const __m512 low_rest = _mm512_sub_ps(low, LOAD_BFLOAT16(tiles[tile][0] + row * TILE_ROWS));
            const __m512 high_rest = _mm512_sub_ps(high, LOAD_BFLOAT16(tiles[tile][0] + row * TILE_ROWS + LANES / 2));
            _mm512_storeu_si512(tiles[tile][1] + row * TILE_ROWS, (__m512i)_mm512_cvtne2ps_pbh(high_rest, low_rest));
        }
}

/* Adds the weighted values of 32 dimensions, or 64, to the outputs of 16 rows. */
TARGET static inline __attribute__((always_inline)) void add_values(float (*weight_tiles)[2][TILE_NUMBERS],
                                                                    const Work *work, ptrdiff_t first_tile,
                                                                    int has_four, float *outputs, ptrdiff_t stride) {
    _tile_loadd(0, outputs, stride);
    _tile_loadd(1, outputs + TILE_ROWS, stride);
    if (has_four) {
        _tile_loadd(2, outputs + 2 * TILE_ROWS, stride);
        _tile_loadd(3, outputs + 3 * TILE_ROWS, stride);
    }
    for (ptrdiff_t tile = 0; tile < WEIGHT_TILES; tile++) {
        const float(*values)[TILE_NUMBERS] = work->value_tiles[tile] + first_tile;
        _tile_loadd(4, weight_tiles[tile][0], TILE_ROW_BYTES);
        _tile_loadd(5, weight_tiles[tile][1], TILE_ROW_BYTES);
        _tile_loadd(6, values[0], TILE_ROW_BYTES);
        _tile_loadd(7, values[1], TILE_ROW_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(0, 5, 6);
        _tile_dpbf16ps(1, 5, 7);
        if (has_four) {
            _tile_loadd(6, values[2], TILE_ROW_BYTES);
            _tile_loadd(7, values[3], TILE_ROW_BYTES);
            _tile_dpbf16ps(2, 4, 6);
            _tile_dpbf16ps(3, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, outputs, stride);
    _tile_stored(1, outputs + TILE_ROWS, stride);
    if (has_four) {
        _tile_stored(2, outputs + 2 * TILE_ROWS, stride);
        _tile_stored(3, outputs + 3 * TILE_ROWS, stride);
    }
}

TARGET static void add_all_values(const Attention *a, ptrdiff_t row_tile, Work *work) {
    float(*weight_tiles)[2][TILE_NUMBERS] = work->weight_tiles[row_tile];
    float *outputs = work->outputs + row_tile * TILE_ROWS * a->head_dim;
    const ptrdiff_t num_tiles = a->head_dim / TILE_ROWS, stride = a->head_dim * (ptrdiff_t)sizeof(float);
    ptrdiff_t tile = 0;
    for (; tile + 4 <= num_tiles; tile += 4)
        add_values(weight_tiles, work, tile, 1, outputs + tile * TILE_ROWS, stride);
    if (tile < num_tiles) add_values(weight_tiles, work, tile, 0, outputs + tile * TILE_ROWS, stride);
}

TARGET void attend_by_amx(const Attention *a, const Piece *piece, ptrdiff_t kv_head) {
    Work work;
    const ptrdiff_t rows = piece->length * a->group, row_tiles = divide_up(rows, TILE_ROWS);
    const char *key_cache = a->keys + kv_head * a->head_dim * a->item_bytes;
    const char *value_cache = a->values + kv_head * a->head_dim * a->item_bytes;
    const int32_t *blocks = a->blocks + piece->first_block;
    const RowSums sums = {work.scores, work.outputs, work.maxima, work.totals, a->head_dim};
    make_query_tiles(a, piece, kv_head, &work);
    memset(work.outputs, 0, (size_t)(row_tiles * TILE_ROWS * a->head_dim) * sizeof(float));
    for (ptrdiff_t row = 0; row < rows; row++) {
        work.maxima[row] = -INFINITY;
        work.totals[row] = 0.0f;
    }
    configure_tiles((const uint8_t[NUM_TILES]){16, 16, 16, 16, 16, 16, 16, 16});
    const ptrdiff_t end = piece->start + piece->length;
    const ptrdiff_t begin = a->window == 0 || piece->start < a->window ? 0 : piece->start - a->window + 1;
    for (ptrdiff_t position = begin / KEYS * KEYS; position < end; position += KEYS) {
        const ptrdiff_t count = end - position < KEYS ? end - position : KEYS;
        make_value_tiles(a, value_cache, blocks, position, count, &work);
        WRITE_MEMORY();
        for (ptrdiff_t tile = 0; tile < row_tiles; tile++)
            compute_scores(a, key_cache, blocks, position, count, work.query_tiles[tile],
                           work.scores + tile * TILE_ROWS * KEYS);
        read_ahead(a, key_cache, blocks, position + KEYS, end);
        read_ahead(a, value_cache, blocks, position + KEYS, end);
        NAME(weigh_keys)(a, piece, position, &sums);
        for (ptrdiff_t tile = 0; tile < row_tiles; tile++)
            split_weights(work.scores + tile * TILE_ROWS * KEYS, work.weight_tiles[tile]);
        WRITE_MEMORY();
        for (ptrdiff_t tile = 0; tile < row_tiles; tile++) add_all_values(a, tile, &work);
    }
    _tile_release();
    NAME(store_outputs)(a, piece, kv_head, &sums);
}

#else

/* Never called: `can_attend_by_amx` says no. */
void attend_by_amx(const Attention *a, const Piece *piece, ptrdiff_t kv_head) {
    (void)a;
    (void)piece;
    (void)kv_head;
}

#endif
