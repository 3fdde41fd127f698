/* Products of int8_products.c by the tiles of AMX, with the same bits.
 *
 * High and low bytes of the rows (amx_int16_tiles.h) are summed over a group as exact integers. The group's sum is 256
 * times the first plus the second. A panel holds the weights of 16 outputs: for every four inputs, four codes for each
 * output. Panels are computed in pairs, so their number is even.
 *
 * Phase 1 quantizes each row, and writes its bytes into tiles. Phase 2 multiplies them.
 */

#include "int8_product.h"

#include "amx_int16_tiles.h"

enum { TILES_PER_GROUP = GROUP_INPUTS / TILE_INPUTS };
enum { MAX_ROW_TILES_PER_CHUNK = 8 };

#if HAS_AMX

#define TARGET __attribute__((target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512dq,fma")))

static void quantize_into_tiles(const Phase *phase, ptrdiff_t row) {
    const Int8Product *p = phase->arguments;
    quantize_row(phase, row);
    split_row_into_tiles(&p->rows, row, p->tiles);
}

/* Adds the sums of a group, of `rows` rows and two panels, to their results. */
TARGET static void add_group(int32_t (*sums)[TILE_ROWS][PANEL_OUTPUTS], const float *row_scales, ptrdiff_t scale_stride,
                             ptrdiff_t rows, float (*results)[2][PANEL_OUTPUTS]) {
    for (ptrdiff_t row = 0; row < rows; row++) {
        const __m512 scale = _mm512_set1_ps(row_scales[row * scale_stride]);
        for (int panel = 0; panel < 2; panel++) {
            const __m512i high = _mm512_loadu_si512(sums[2 * panel][row]), low = _mm512_loadu_si512(sums[2 * panel + 1][row]);
            const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
            _mm512_storeu_ps(results[row][panel], _mm512_fmadd_ps(sum, scale, _mm512_loadu_ps(results[row][panel])));
        }
    }
}

/* Computes a pair of panels for one tile of rows. `ahead`: the address that is read ahead; `lines_ahead`: lines for each
 * tile of inputs. */
TARGET static void multiply_tile(const Int8Product *p, ptrdiff_t panel, ptrdiff_t row_tile, const char *ahead,
                                 ptrdiff_t lines_ahead) {
    const ptrdiff_t inputs = p->rows.inputs, groups = inputs / GROUP_INPUTS, row = row_tile * TILE_ROWS;
    const ptrdiff_t rows = p->rows.num_rows - row < TILE_ROWS ? p->rows.num_rows - row : TILE_ROWS;
    const uint8_t *x = p->tiles + row_tile * (inputs / TILE_INPUTS) * 2 * TILE_BYTES;
    const int8_t *first = p->weight + panel * inputs * PANEL_OUTPUTS, *second = first + inputs * PANEL_OUTPUTS;
    const float *row_scales = p->rows.scales + row * groups;
    int32_t sums[4][TILE_ROWS][PANEL_OUTPUTS];
    float results[TILE_ROWS][2][PANEL_OUTPUTS];
    memset(results, 0, (size_t)rows * sizeof *results);
    for (ptrdiff_t group = 0; group < groups; group++) {
        sum_tiles(x, first, second, TILES_PER_GROUP, ahead, lines_ahead, sums);
        first += TILES_PER_GROUP * TILE_BYTES, second += TILES_PER_GROUP * TILE_BYTES;
        x += TILES_PER_GROUP * 2 * TILE_BYTES, ahead += TILES_PER_GROUP * lines_ahead * LINE_BYTES;
        add_group(sums, row_scales + group, groups, rows, results);
    }
    for (ptrdiff_t i = 0; i < rows; i++)
        for (int part = 0; part < 2; part++) {
            const ptrdiff_t output = (panel + part) * PANEL_OUTPUTS;
            const __m512 bias = p->bias == NULL ? _mm512_setzero_ps() : _mm512_loadu_ps(p->bias + output);
            _mm512_storeu_ps(p->y + (row + i) * p->y_stride + output,
                             _mm512_fmadd_ps(_mm512_loadu_ps(results[i][part]), _mm512_loadu_ps(p->scales + output), bias));
        }
}

/* Computes pairs of panels for some tiles of rows, which together read the next pair ahead. */
static void multiply_row_tiles(const Int8Product *p, PartRange panels, ptrdiff_t first_tile, ptrdiff_t last_tile) {
    const ptrdiff_t pair_bytes = 2 * p->rows.inputs * PANEL_OUTPUTS, input_tiles = p->rows.inputs / TILE_INPUTS;
    const ptrdiff_t lines = divide_up(2 * TILE_BYTES / LINE_BYTES, last_tile - first_tile);
    for (ptrdiff_t panel = panels.first; panel < panels.end; panel += 2)
        for (ptrdiff_t tile = first_tile; tile < last_tile; tile++)
            multiply_tile(p, panel, tile,
                          (const char *)p->weight + (panel / 2 + 1) * pair_bytes
                              + (tile - first_tile) * input_tiles * lines * LINE_BYTES, lines);
}

TARGET static void multiply_part(const Phase *phase, ptrdiff_t part) {
    const Int8Product *p = phase->arguments;
    const ptrdiff_t num_tiles = divide_up(p->rows.num_rows, TILE_ROWS);
    const ptrdiff_t num_chunks = divide_up(num_tiles, MAX_ROW_TILES_PER_CHUNK);
    const uint8_t rows = (uint8_t)(p->rows.num_rows < TILE_ROWS ? p->rows.num_rows : TILE_ROWS);
    configure_tiles((const uint8_t[NUM_TILES]){rows, rows, rows, rows, rows, rows, TILE_ROWS, TILE_ROWS});
    for (ptrdiff_t chunk = 0; chunk < num_chunks; chunk++)
        multiply_row_tiles(p, cut_panels(p->panels, 2, part, phase->num_parts), num_tiles * chunk / num_chunks,
                           num_tiles * (chunk + 1) / num_chunks);
    _tile_release();
}

/* As weft_prepare_product in products.c. Needs AMX with INT8, and AVX-512. */
EXPORT int weft_prepare_amx_int8_product(const Int8Product *product, unsigned threads, Phase *phases) {
    const ptrdiff_t rows = product->rows.num_rows;
    phases[0] = (Phase){quantize_into_tiles, product, NULL, rows};
    phases[1] = (Phase){multiply_part, product, NULL, rows > 0 ? count_parts(product->panels / 2, threads) : 0};
    return 2;
}

#else

/* Never called: weft_instruction_set says that there are no instructions for it. */
EXPORT int weft_prepare_amx_int8_product(const Int8Product *product, unsigned threads, Phase *phases) {
    (void)product;
    (void)threads;
    (void)phases;
    return 0;
}

#endif
