/* Products of bfloat16 rows with bfloat16 or int8 weights, summed in float32 by the tiles of AMX, 32 inputs at a time in the
 * order of the inputs. Among 32 inputs those at even places are summed, those at odd places, and then both. A row's bits
 * depend neither on other rows nor on threads.
 *
 * Phase 1 copies the rows into tiles of 16 rows and 32 inputs, which lie in memory one after the other. Phase 2 multiplies
 * up to two of them by two tiles of weights at once: registers 0 to 3 hold the sums, 4 and 5 the rows, 6 and 7 the weights.
 * It takes a block of a panel's inputs for all rows of a chunk before the next block, and keeps the sums of all these rows
 * beside each other meanwhile. int8 weights, which bfloat16 holds exactly, are widened block by block; the scale of an
 * output is applied to its sum.
 */

#include "bf16_product.h"

#include "amx_tiles.h"

#include <string.h>

enum { TILE_INPUTS = 32, TILE_SIZE = TILE_ROWS * TILE_INPUTS, SUMS_SIZE = TILE_ROWS * TILE_ROWS };
enum { PAIR_SIZE = 4 * SUMS_SIZE }; /* of two tiles of rows times two of weights */
enum { BLOCK_TILES = 8 };           /* tiles of inputs whose weights stay in the first-level cache for row after row */
enum { MAX_ROW_TILES_PER_CHUNK = 16 };
enum { READ_AHEAD_BYTES = 4096, BLOCK_AHEAD_BYTES = 16384 }; /* for a single block, and for several */
enum { HALF_CODES_BYTES = TILE_BYTES / 2 };                  /* of the codes for one tile of inputs */
enum { A_OR_B_AND_C = 0xf8 }; /* for _mm512_ternarylogic_epi32 */

#if HAS_AMX

#define TARGET __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

static void pack_tile(const Bf16Product *p, ptrdiff_t row_tile, ptrdiff_t input_tile, uint16_t *to) {
    const ptrdiff_t first_input = input_tile * TILE_INPUTS, num_left = p->x_inputs - first_input;
    const ptrdiff_t count = num_left < TILE_INPUTS ? num_left : TILE_INPUTS;
    for (ptrdiff_t i = 0; i < TILE_ROWS; i++, to += TILE_INPUTS) {
        const ptrdiff_t row = row_tile * TILE_ROWS + i;
        if (row < p->rows && count == TILE_INPUTS) {
            memcpy(to, p->x + row * p->x_stride + first_input, TILE_ROW_BYTES);
            continue;
        }
        memset(to, 0, TILE_ROW_BYTES);
        if (row < p->rows) memcpy(to, p->x + row * p->x_stride + first_input, (size_t)count * sizeof(uint16_t));
    }
}

static void pack_part(const Phase *phase, ptrdiff_t part) {
    const Bf16Product *p = phase->arguments;
    const ptrdiff_t input_tiles = p->inputs / TILE_INPUTS, num_tiles = divide_up(p->rows, TILE_ROWS) * input_tiles;
    const ptrdiff_t end = num_tiles * (part + 1) / phase->num_parts;
    for (ptrdiff_t tile = num_tiles * part / phase->num_parts; tile < end; tile++)
        pack_tile(p, tile / input_tiles, tile % input_tiles, p->tiles + tile * TILE_SIZE);
}

/* Widens the codes of `count` tiles of inputs into tiles of weights, and reads half of as many codes ahead; the other half
 * is read ahead while the tiles are multiplied. */
TARGET static void widen_codes(const int8_t *codes, ptrdiff_t count, uint16_t *to) {
    const __m512i high_halves = _mm512_set1_epi32((int)0xffff0000u);
    const char *ahead = (const char *)codes + BLOCK_AHEAD_BYTES;
    for (ptrdiff_t group = 0; group < count * TILE_INPUTS; group++, codes += 2 * TILE_ROWS, to += TILE_INPUTS) {
        if (group % 4 == 0) _mm_prefetch(ahead + group / 4 * LINE_BYTES, _MM_HINT_T1);
        const __m128i *halves = (const __m128i *)codes;
        const __m512 first = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(halves)));
        const __m512 second = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(halves + 1)));
        /* the low halves of small whole numbers are zeros */
        _mm512_store_si512(to, _mm512_ternarylogic_epi32(_mm512_srli_epi32(_mm512_castps_si512(first), 16),
                                                         _mm512_castps_si512(second), high_halves, A_OR_B_AND_C));
    }
}

/* A block of a panel, and one or two tiles of rows. */
typedef struct {
    const uint16_t *rows[2]; /* the tiles of the block's inputs */
    const uint16_t *weight;
    const float *bias;       /* what the sums begin with if this is the first block, or NULL */
    ptrdiff_t count;         /* tiles of inputs */
    int is_first;
    const char *ahead;       /* the address that is read ahead */
    ptrdiff_t lines_ahead;   /* lines for each tile of inputs */
} Block;

#define START_SUM(TILE, PLACE, BIAS_OFFSET)                                                        \
    if (!block->is_first)                                                                           \
        _tile_loadd(TILE, sums + (PLACE) * SUMS_SIZE, TILE_ROW_BYTES);                              \
    else if (block->bias != NULL)                                                                   \
        _tile_loadd(TILE, block->bias + (BIAS_OFFSET), 0); /* the same for all rows */               \
    else                                                                                            \
        _tile_zero(TILE)

/* Adds a block to sums. */
TARGET static inline __attribute__((always_inline)) void sum_block(const Block *block, int has_two, float *sums) {
    START_SUM(0, 0, 0);
    START_SUM(1, 1, TILE_ROWS);
    if (has_two) {
        START_SUM(2, 2, 0);
        START_SUM(3, 3, TILE_ROWS);
    }
    const uint16_t *first = block->rows[0], *second = block->rows[1], *weight = block->weight;
    const char *ahead = block->ahead;
    for (ptrdiff_t tile = 0; tile < block->count; tile++) {
        for (ptrdiff_t line = 0; line < block->lines_ahead; line++, ahead += LINE_BYTES) _mm_prefetch(ahead, _MM_HINT_T1);
        _tile_loadd(6, weight, 2 * TILE_ROW_BYTES);
        _tile_loadd(4, first, TILE_ROW_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, weight + TILE_INPUTS, 2 * TILE_ROW_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        if (has_two) {
            _tile_loadd(5, second, TILE_ROW_BYTES);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        first += TILE_SIZE, second += TILE_SIZE, weight += 2 * TILE_SIZE;
    }
    _tile_stored(0, sums, TILE_ROW_BYTES);
    _tile_stored(1, sums + SUMS_SIZE, TILE_ROW_BYTES);
    if (has_two) {
        _tile_stored(2, sums + 2 * SUMS_SIZE, TILE_ROW_BYTES);
        _tile_stored(3, sums + 3 * SUMS_SIZE, TILE_ROW_BYTES);
    }
}

/* Writes the sums of some rows of a panel, from `row` on. */
TARGET static void write_rows(const Bf16Product *p, const float *sums, ptrdiff_t row, ptrdiff_t count, ptrdiff_t panel) {
    for (ptrdiff_t i = 0; i < count; i++) {
        const float *from = sums + i / TILE_ROWS * 2 * SUMS_SIZE + i % TILE_ROWS * TILE_ROWS;
        const ptrdiff_t to = (row + i) * p->y_stride + panel * PANEL_OUTPUTS;
        for (ptrdiff_t half = 0; half < PANEL_OUTPUTS / TILE_ROWS; half++) {
            const ptrdiff_t output = panel * PANEL_OUTPUTS + half * TILE_ROWS;
            __m512 numbers = _mm512_loadu_ps(from + half * SUMS_SIZE);
            if (p->codes != NULL)
                numbers = _mm512_fmadd_ps(numbers, _mm512_loadu_ps(p->scales + output),
                                          p->bias == NULL ? _mm512_setzero_ps() : _mm512_loadu_ps(p->bias + output));
            if (p->rounded != NULL) _mm256_storeu_si256((__m256i *)(p->rounded + to + half * TILE_ROWS),
                                                        (__m256i)_mm512_cvtneps_pbh(numbers));
            else _mm512_storeu_ps(p->y + to + half * TILE_ROWS, numbers);
        }
    }
}

/* Computes panels first_panel to last_panel - 1 of some tiles of rows. */
TARGET static void multiply_row_tiles(const Bf16Product *p, ptrdiff_t first_panel, ptrdiff_t last_panel,
                                      ptrdiff_t first_tile, ptrdiff_t last_tile) {
    const ptrdiff_t input_tiles = p->inputs / TILE_INPUTS, panel_stride = p->inputs * PANEL_OUTPUTS;
    const ptrdiff_t num_pairs = divide_up(last_tile - first_tile, 2), row_tile_stride = input_tiles * TILE_SIZE;
    const ptrdiff_t tile_lines = (p->codes == NULL ? 2 * TILE_BYTES : HALF_CODES_BYTES) / LINE_BYTES;
    const ptrdiff_t lines = divide_up(tile_lines, num_pairs);
    const ptrdiff_t block_tiles = num_pairs == 1 && p->codes == NULL ? input_tiles : BLOCK_TILES;
    _Alignas(LINE_BYTES) float sums[MAX_ROW_TILES_PER_CHUNK / 2][PAIR_SIZE];
    _Alignas(LINE_BYTES) uint16_t widened[BLOCK_TILES * 2 * TILE_SIZE];
    const float *const first_sums = p->codes == NULL ? p->bias : NULL;
    for (ptrdiff_t panel = first_panel; panel < last_panel; panel++) {
        for (ptrdiff_t k = 0; k < input_tiles; k += block_tiles) {
            const ptrdiff_t count = k + block_tiles < input_tiles ? block_tiles : input_tiles - k;
            const int is_last = k + count == input_tiles;
            const ptrdiff_t first_weight = panel * panel_stride + k * 2 * TILE_SIZE;
            if (p->codes != NULL) {
                widen_codes(p->codes + first_weight, count, widened);
                __asm__ volatile("" : : "r"(widened) : "memory"); /* compilers do not know that tiles are loaded from it */
            }
            const uint16_t *weight = p->codes == NULL ? p->weight + first_weight : widened;
            const char *ahead = p->codes == NULL
                                    ? (const char *)weight + (num_pairs == 1 ? READ_AHEAD_BYTES : BLOCK_AHEAD_BYTES)
                                    : (const char *)(p->codes + first_weight) + BLOCK_AHEAD_BYTES + count * HALF_CODES_BYTES;
            for (ptrdiff_t pair = 0; pair < num_pairs; pair++) {
                const ptrdiff_t tile = first_tile + 2 * pair, row = tile * TILE_ROWS;
                const int has_two = tile + 1 < last_tile;
                const uint16_t *rows = p->tiles + tile * row_tile_stride + k * TILE_SIZE;
                const Block block = {
                    {rows, rows + row_tile_stride}, weight, first_sums == NULL ? NULL : first_sums + panel * PANEL_OUTPUTS,
                    count, k == 0, ahead + pair * count * lines * LINE_BYTES, lines};
                if (has_two) sum_block(&block, 1, sums[pair]);
                else sum_block(&block, 0, sums[pair]);
                const ptrdiff_t rows_left = p->rows - row, most_rows = has_two ? 2 * TILE_ROWS : TILE_ROWS;
                if (is_last)
                    write_rows(p, sums[pair], row, rows_left < most_rows ? rows_left : most_rows, panel);
            }
        }
    }
}

TARGET static void multiply_part(const Phase *phase, ptrdiff_t part) {
    const Bf16Product *p = phase->arguments;
    const ptrdiff_t num_tiles = divide_up(p->rows, TILE_ROWS), num_chunks = divide_up(num_tiles, MAX_ROW_TILES_PER_CHUNK);
    const uint8_t first = (uint8_t)(p->rows < TILE_ROWS ? p->rows : TILE_ROWS); /* rows of the first tile of a pair */
    const uint8_t second = (uint8_t)(num_tiles == 2 ? p->rows - TILE_ROWS : TILE_ROWS);
    configure_tiles((const uint8_t[NUM_TILES]){first, first, second, second, first, second, TILE_ROWS, TILE_ROWS});
    for (ptrdiff_t chunk = 0; chunk < num_chunks; chunk++)
        multiply_row_tiles(p, p->panels * part / phase->num_parts, p->panels * (part + 1) / phase->num_parts,
                           num_tiles * chunk / num_chunks, num_tiles * (chunk + 1) / num_chunks);
    _tile_release();
}

/* As weft_prepare_product in products.c. Needs AMX with BF16, and AVX-512 with BF16. */
EXPORT int weft_prepare_amx_bf16_product(const Bf16Product *product, unsigned threads, Phase *phases) {
    const ptrdiff_t num_row_tiles = divide_up(product->rows, TILE_ROWS);
    phases[0] = (Phase){pack_part, product, NULL, count_parts(num_row_tiles, threads)};
    phases[1] = (Phase){multiply_part, product, NULL, num_row_tiles > 0 ? count_parts(product->panels, threads) : 0};
    return 2;
}

#else

/* Never called: weft_instruction_sets says that there are no instructions for it. */
EXPORT int weft_prepare_amx_bf16_product(const Bf16Product *product, unsigned threads, Phase *phases) {
    (void)product;
    (void)threads;
    (void)phases;
    return 0;
}

#endif
