/* Registers of AMX: eight tiles of up to 16 rows of 64 bytes. Include phases.h before it.
 *
 * gcc does not know what the intrinsics for loading a tile read. So what is loaded is written in an earlier phase, or by
 * _tile_stored, or before an empty asm volatile that clobbers memory.
 */

#include <immintrin.h>
#include <stdint.h>

#ifndef HAS_AMX
#error "phases.h says whether the compiler knows the instructions"
#endif

enum { TILE_ROWS = 16, TILE_ROW_BYTES = 64, TILE_BYTES = TILE_ROWS * TILE_ROW_BYTES, NUM_TILES = 8, LINE_BYTES = 64 };

#if HAS_AMX
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

/* Gives each register its number of rows. */
static inline void configure_tiles(const uint8_t *num_rows) {
    TileConfig config = {.palette = 1};
    for (int tile = 0; tile < NUM_TILES; tile++) {
        config.row_bytes[tile] = TILE_ROW_BYTES;
        config.rows[tile] = num_rows[tile];
    }
    /* Not _tile_loadconfig: gcc before 14 believes that it reads 8 of the 64 bytes, and may leave the others unwritten. */
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}
#endif
