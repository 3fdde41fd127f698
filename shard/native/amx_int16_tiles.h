/* Rows of 16-bit numbers for the tiles of AMX, which multiply bytes: a number is 256 * high + low, with high signed and low
 * unsigned. Include int16_rows.h before it.
 */

#include "amx_tiles.h"

enum { TILE_INPUTS = 64 };

/* Writes the codes of a row, first high and then low bytes, into tiles of 16 rows and 64 inputs:
 * [rows / 16 rounded up, inputs / 64, 2, 16, 64]. */
__attribute__((unused)) static void split_row_into_tiles(const Int16Rows *rows, ptrdiff_t row, uint8_t *tiles) {
    const ptrdiff_t input_tiles = rows->inputs / TILE_INPUTS;
    const int16_t *codes = rows->codes + row * rows->inputs;
    uint8_t *to = tiles + (row / TILE_ROWS * input_tiles * 2 * TILE_ROWS + row % TILE_ROWS) * TILE_ROW_BYTES;
    for (ptrdiff_t tile = 0; tile < input_tiles; tile++, codes += TILE_INPUTS, to += 2 * TILE_BYTES)
        for (int i = 0; i < TILE_INPUTS; i++) {
            to[i] = (uint8_t)(codes[i] >> 8);
            to[TILE_BYTES + i] = (uint8_t)codes[i];
        }
}

#if HAS_AMX
/* Multiplies a tile of rows by tiles of two panels, and stores the sums: of each panel those of the high and of the low
 * bytes. Uses all registers. `lines_ahead` lines from `ahead` on are read ahead for each tile of inputs. */
__attribute__((target("amx-tile,amx-int8"), always_inline, unused)) static inline void sum_tiles(
    const uint8_t *x, const int8_t *first, const int8_t *second, ptrdiff_t num_tiles, const char *ahead,
    ptrdiff_t lines_ahead, int32_t (*sums)[TILE_ROWS][TILE_ROWS]) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (ptrdiff_t tile = 0; tile < num_tiles; tile++) {
        for (ptrdiff_t line = 0; line < lines_ahead; line++, ahead += LINE_BYTES) _mm_prefetch(ahead, _MM_HINT_T1);
        _tile_loadd(6, first, TILE_ROW_BYTES);
        _tile_loadd(4, x, TILE_ROW_BYTES);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(5, x + TILE_BYTES, TILE_ROW_BYTES);
        _tile_dpbusd(1, 5, 6);
        _tile_loadd(7, second, TILE_ROW_BYTES);
        _tile_dpbssd(2, 4, 7);
        _tile_dpbusd(3, 5, 7);
        first += TILE_BYTES, second += TILE_BYTES, x += 2 * TILE_BYTES;
    }
    _tile_stored(0, sums[0], TILE_ROW_BYTES);
    _tile_stored(1, sums[1], TILE_ROW_BYTES);
    _tile_stored(2, sums[2], TILE_ROW_BYTES);
    _tile_stored(3, sums[3], TILE_ROW_BYTES);
}
#endif
