/* Products of int4_product.h by the tiles of AMX, with the same bits as int4_products.c. Groups are of 64 or 128 inputs.
 *
 * Codes minus zeros fit in a byte (MAX_AMX_ZERO in native_int4_linear.py). They are unpacked group by group, for a pair of
 * panels, and multiplied by high and low bytes of the rows (amx_int16_tiles.h). Panels come in pairs, so their number is
 * even.
 */

#include "int4_product.h"

#include "amx_int16_tiles.h"

enum { MAX_TILES_PER_GROUP = MAX_GROUP_INPUTS / TILE_INPUTS, MAX_ROW_TILES_PER_CHUNK = 8 };

#if HAS_AMX

#define TARGET __attribute__((target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512dq,fma")))

static void quantize_into_tiles(const Phase *phase, ptrdiff_t row) {
    const Int4Product *p = phase->arguments;
    quantize_row(phase, row);
    split_row_into_tiles(&p->rows, row, p->tiles);
}

/* Writes codes minus zeros of a group as tiles, whose columns are the outputs in the order of the panel. */
TARGET static inline void unpack_group(const uint8_t *packed, const int8_t *zeros, ptrdiff_t group_inputs, int8_t *to) {
    const __m512i low_halves = _mm512_set1_epi32(0x00000f0f), high_halves = _mm512_set1_epi32(0x0f0f0000);
    const __m512i zero = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)zeros));
    const __m512i repeated = _mm512_mullo_epi32(zero, _mm512_set1_epi32(0x01010101));
    const __m512i ordered = _mm512_shuffle_i32x4(repeated, repeated, 0xd8);
    for (ptrdiff_t k = 0; k < group_inputs; k += 4, packed += 2 * PANEL_OUTPUTS, to += TILE_ROW_BYTES) {
        _mm_prefetch((const char *)packed + READ_AHEAD_BYTES, _MM_HINT_T0);
        const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)packed));
        const __m512i codes = _mm512_or_si512(_mm512_and_si512(words, low_halves),
                                              _mm512_and_si512(_mm512_slli_epi32(words, 12), high_halves));
        _mm512_storeu_si512(to, _mm512_sub_epi8(codes, ordered));
    }
}

/* Adds the sums of a group, of `rows` rows and two panels, to their results. */
TARGET static inline void add_group(int32_t (*sums)[TILE_ROWS][PANEL_OUTPUTS], const float *row_scales,
                                    ptrdiff_t scale_stride, ptrdiff_t rows, const float *first_scales,
                                    const float *second_scales, float (*results)[2][PANEL_OUTPUTS]) {
    const __m512 scales[2] = {_mm512_loadu_ps(first_scales), _mm512_loadu_ps(second_scales)};
    for (ptrdiff_t row = 0; row < rows; row++) {
        const __m512 scale = _mm512_set1_ps(row_scales[row * scale_stride]);
        for (int panel = 0; panel < 2; panel++) {
            const __m512i high = _mm512_loadu_si512(sums[2 * panel][row]);
            const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high, 8), _mm512_loadu_si512(sums[2 * panel + 1][row]));
            const __m512 ordered = _mm512_cvtepi32_ps(_mm512_shuffle_i32x4(sum, sum, 0xd8));
            _mm512_storeu_ps(results[row][panel], _mm512_fmadd_ps(ordered, _mm512_mul_ps(scales[panel], scale),
                                                                  _mm512_loadu_ps(results[row][panel])));
        }
    }
}

/* Computes a pair of panels for some tiles of rows. */
TARGET static void multiply_pair(const Int4Product *p, ptrdiff_t panel, ptrdiff_t first_tile, ptrdiff_t last_tile) {
    const ptrdiff_t inputs = p->rows.inputs, group_inputs = p->rows.group_inputs, groups = inputs / group_inputs;
    const ptrdiff_t panel_bytes = inputs * (PANEL_OUTPUTS / 2), group_bytes = group_inputs * (PANEL_OUTPUTS / 2);
    const ptrdiff_t first_row = first_tile * TILE_ROWS, tiles_per_group = group_inputs / TILE_INPUTS;
    const ptrdiff_t rows_left = p->rows.num_rows - first_row, most_rows = (last_tile - first_tile) * TILE_ROWS;
    const ptrdiff_t rows = rows_left < most_rows ? rows_left : most_rows;
    _Alignas(64) int8_t unpacked[2][MAX_TILES_PER_GROUP * TILE_BYTES];
    _Alignas(64) int32_t sums[4][TILE_ROWS][PANEL_OUTPUTS];
    _Alignas(64) float results[MAX_ROW_TILES_PER_CHUNK * TILE_ROWS][2][PANEL_OUTPUTS];
    memset(results, 0, (size_t)rows * sizeof *results);
    for (ptrdiff_t group = 0; group < groups; group++) {
        const ptrdiff_t first_group = panel * groups + group, second_group = first_group + groups;
        for (int i = 0; i < 2; i++)
            unpack_group(p->weight + (panel + i) * panel_bytes + group * group_bytes,
                         p->zeros + (first_group + i * groups) * PANEL_OUTPUTS, group_inputs, unpacked[i]);
        __asm__ volatile("" : : "r"(unpacked) : "memory"); /* compilers do not know that tiles are loaded from it */
        for (ptrdiff_t tile = first_tile; tile < last_tile; tile++) {
            const ptrdiff_t row = (tile - first_tile) * TILE_ROWS;
            const uint8_t *x = p->tiles + (tile * (inputs / TILE_INPUTS) + group * tiles_per_group) * 2 * TILE_BYTES;
            sum_tiles(x, unpacked[0], unpacked[1], tiles_per_group, NULL, 0, sums);
            add_group(sums, p->rows.scales + (first_row + row) * groups + group, groups,
                      rows - row < TILE_ROWS ? rows - row : TILE_ROWS, p->scales + first_group * PANEL_OUTPUTS,
                      p->scales + second_group * PANEL_OUTPUTS, results + row);
        }
    }
    for (ptrdiff_t row = 0; row < rows; row++)
        for (int i = 0; i < 2; i++) {
            const ptrdiff_t output = (panel + i) * PANEL_OUTPUTS;
            const __m512 bias = p->bias == NULL ? _mm512_setzero_ps() : _mm512_loadu_ps(p->bias + output);
            _mm512_storeu_ps(p->y + (first_row + row) * p->y_stride + output,
                             _mm512_add_ps(_mm512_load_ps(results[row][i]), bias));
        }
}

TARGET static void multiply_part(const Phase *phase, ptrdiff_t part) {
    const Int4Product *p = phase->arguments;
    const ptrdiff_t num_tiles = divide_up(p->rows.num_rows, TILE_ROWS);
    const ptrdiff_t num_chunks = divide_up(num_tiles, MAX_ROW_TILES_PER_CHUNK);
    const PartRange panels = cut_panels(p->panels, 2, part, phase->num_parts);
    const uint8_t rows = (uint8_t)(p->rows.num_rows < TILE_ROWS ? p->rows.num_rows : TILE_ROWS);
    configure_tiles((const uint8_t[NUM_TILES]){rows, rows, rows, rows, rows, rows, TILE_ROWS, TILE_ROWS});
    for (ptrdiff_t chunk = 0; chunk < num_chunks; chunk++)
        for (ptrdiff_t panel = panels.first; panel < panels.end; panel += 2)
            multiply_pair(p, panel, num_tiles * chunk / num_chunks, num_tiles * (chunk + 1) / num_chunks);
    _tile_release();
}

/* As weft_prepare_product in products.c. Needs AMX with INT8, and AVX-512. */
EXPORT int weft_prepare_amx_int4_product(const Int4Product *product, unsigned threads, Phase *phases) {
    const ptrdiff_t rows = product->rows.num_rows;
    phases[0] = (Phase){quantize_into_tiles, product, NULL, rows};
    phases[1] = (Phase){multiply_part, product, NULL, rows > 0 ? count_parts(product->panels / 2, threads) : 0};
    return 2;
}

#else

/* Never called: weft_instruction_sets says that there are no instructions for it. */
EXPORT int weft_prepare_amx_int4_product(const Int4Product *product, unsigned threads, Phase *phases) {
    (void)product;
    (void)threads;
    (void)phases;
    return 0;
}

#endif
