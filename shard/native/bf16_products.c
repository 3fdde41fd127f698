/* Products of bfloat16 rows with bfloat16 weights, summed in float32 by the instruction VDPBF16PS, two inputs at a time in
 * the order of the inputs. A row's bits depend neither on other rows nor on threads.
 */

#include "bf16_product.h"

#include <immintrin.h>
#include <string.h>

enum { LANES = 16, MAX_TILE_ROWS = 14, BLOCK_INPUTS = 1024, MAX_ROWS_PER_CHUNK = 512 };
enum { READ_AHEAD_BYTES = 1024 };

#if HAS_BFLOAT16

typedef void (*Bf16Tile)(const uint16_t *x, ptrdiff_t x_stride, const uint16_t *weight, const float *bias, float *y,
                         ptrdiff_t y_stride, uint16_t *rounded, ptrdiff_t count, int is_first, const char *ahead, ptrdiff_t ahead_step);

static inline int32_t read_pair(const uint16_t *numbers) {
    int32_t pair;
    memcpy(&pair, numbers, sizeof pair);
    return pair;
}

#define DEFINE_TILE(ROWS)                                                                                               \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"))) static void bf16_tile_##ROWS(              \
        const uint16_t *x, ptrdiff_t x_stride, const uint16_t *weight, const float *bias, float *y, ptrdiff_t y_stride, \
        uint16_t *rounded, ptrdiff_t count, int is_first, const char *ahead, ptrdiff_t ahead_step) {                    \
        __m512 sums[ROWS][2];                                                                                           \
        _Pragma("GCC unroll 14") for (int row = 0; row < ROWS; row++)                                                   \
            _Pragma("GCC unroll 2") for (int part = 0; part < 2; part++)                                                \
                sums[row][part] = !is_first ? _mm512_loadu_ps(y + row * y_stride + part * LANES)                        \
                                  : bias != NULL ? _mm512_loadu_ps(bias + part * LANES) : _mm512_setzero_ps();          \
        for (ptrdiff_t k = 0; k < count; k += 2, weight += 2 * PANEL_OUTPUTS, ahead += ahead_step) {                    \
            __builtin_prefetch(ahead);                                                                                  \
            __builtin_prefetch(ahead + 64);                                                                             \
            const __m512bh low = (__m512bh)_mm512_loadu_si512(weight);                                                  \
            const __m512bh high = (__m512bh)_mm512_loadu_si512(weight + PANEL_OUTPUTS);                                 \
            _Pragma("GCC unroll 14") for (int row = 0; row < ROWS; row++) {                                             \
                const __m512bh pairs = (__m512bh)_mm512_set1_epi32(read_pair(x + row * x_stride + k));                  \
                sums[row][0] = _mm512_dpbf16_ps(sums[row][0], low, pairs);                                              \
                sums[row][1] = _mm512_dpbf16_ps(sums[row][1], high, pairs);                                             \
            }                                                                                                           \
        }                                                                                                               \
        _Pragma("GCC unroll 14") for (int row = 0; row < ROWS; row++)                                                   \
            _Pragma("GCC unroll 2") for (int part = 0; part < 2; part++) {                                              \
                if (rounded == NULL)                                                                                    \
                    _mm512_storeu_ps(y + row * y_stride + part * LANES, sums[row][part]);                               \
                else                                                                                                    \
                    _mm256_storeu_si256((__m256i *)(rounded + row * y_stride + part * LANES),                           \
                                        (__m256i)_mm512_cvtneps_pbh(sums[row][part]));                                  \
            }                                                                                                           \
    }
DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(3)
DEFINE_TILE(4)
DEFINE_TILE(5)
DEFINE_TILE(6)
DEFINE_TILE(7)
DEFINE_TILE(8)
DEFINE_TILE(9)
DEFINE_TILE(10)
DEFINE_TILE(11)
DEFINE_TILE(12)
DEFINE_TILE(13)
DEFINE_TILE(14)

static const Bf16Tile TILES[] = {bf16_tile_1, bf16_tile_2, bf16_tile_3, bf16_tile_4,  bf16_tile_5,  bf16_tile_6,
                                 bf16_tile_7, bf16_tile_8, bf16_tile_9, bf16_tile_10, bf16_tile_11, bf16_tile_12,
                                 bf16_tile_13, bf16_tile_14};

/* Computes panels first_panel to last_panel - 1 of some rows, in tiles of nearly equal size. While the tiles use one block
 * of a panel, they read ahead: a single tile what follows in memory, several the next panel's block, each a part of it. */
static void multiply_rows(const Bf16Product *p, ptrdiff_t first_panel, ptrdiff_t last_panel, ptrdiff_t first_row,
                          ptrdiff_t num_rows) {
    const ptrdiff_t num_tiles = divide_up(num_rows, MAX_TILE_ROWS), panel_stride = p->inputs * PANEL_OUTPUTS;
    const ptrdiff_t block_inputs = num_tiles == 1 ? p->inputs : BLOCK_INPUTS;
    for (ptrdiff_t k = 0; k < p->inputs; k += block_inputs) {
        const ptrdiff_t count = k + block_inputs < p->inputs ? block_inputs : p->inputs - k;
        const ptrdiff_t block_bytes = count * PANEL_OUTPUTS * (ptrdiff_t)sizeof(uint16_t);
        for (ptrdiff_t panel = first_panel; panel < last_panel; panel++) {
            const uint16_t *weight = p->weight + panel * panel_stride + k * PANEL_OUTPUTS;
            const float *bias = p->bias == NULL ? NULL : p->bias + panel * PANEL_OUTPUTS;
            for (ptrdiff_t tile = 0; tile < num_tiles; tile++) {
                const ptrdiff_t row = first_row + num_rows * tile / num_tiles;
                const ptrdiff_t rows = first_row + num_rows * (tile + 1) / num_tiles - row;
                const char *ahead = num_tiles == 1 ? (const char *)weight + READ_AHEAD_BYTES
                                                   : (const char *)(weight + panel_stride) + block_bytes * tile / num_tiles;
                TILES[rows - 1](p->x + row * p->x_stride + k, p->x_stride, weight, bias,
                                p->y + row * p->y_stride + panel * PANEL_OUTPUTS, p->y_stride,
                                p->rounded == NULL || k + count < p->inputs
                                    ? NULL : p->rounded + row * p->y_stride + panel * PANEL_OUTPUTS,
                                count, k == 0, ahead,
                                2 * block_bytes / num_tiles / count);
            }
        }
    }
}

static void multiply_part(const Phase *phase, ptrdiff_t part) {
    const Bf16Product *p = phase->arguments;
    const ptrdiff_t num_chunks = divide_up(p->rows, MAX_ROWS_PER_CHUNK);
    for (ptrdiff_t chunk = 0; chunk < num_chunks; chunk++) {
        const ptrdiff_t first_row = p->rows * chunk / num_chunks;
        multiply_rows(p, p->panels * part / phase->num_parts, p->panels * (part + 1) / phase->num_parts, first_row,
                      p->rows * (chunk + 1) / num_chunks - first_row);
    }
}

/* As weft_prepare_product in products.c. Needs AVX-512 with BF16. */
EXPORT int weft_prepare_bf16_product(const Bf16Product *product, unsigned threads, Phase *phases) {
    phases[0] = (Phase){multiply_part, product, NULL, count_parts(product->panels, threads)};
    return 1;
}

#else

/* Never called: weft_instruction_sets says that there are no instructions for it. */
EXPORT int weft_prepare_bf16_product(const Bf16Product *product, unsigned threads, Phase *phases) {
    (void)product;
    (void)threads;
    (void)phases;
    return 0;
}

#endif
