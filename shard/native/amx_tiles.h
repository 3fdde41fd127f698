/* Registers of AMX: eight tiles of up to 16 rows of 64 bytes. */

#include <immintrin.h>
#include <stdint.h>

enum { TILE_ROWS = 16, TILE_ROW_BYTES = 64, TILE_BYTES = TILE_ROWS * TILE_ROW_BYTES, NUM_TILES = 8, LINE_BYTES = 64 };

#if HAS_AMX
/* Gives each register its number of rows. */
__attribute__((target("amx-tile"))) static inline void configure_tiles(const uint8_t *num_rows) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int tile = 0; tile < NUM_TILES; tile++) {
        config.row_bytes[tile] = TILE_ROW_BYTES;
        config.rows[tile] = num_rows[tile];
    }
    _tile_loadconfig(&config);
}
#endif
