/* Products of float32 rows with int8 weights: int8_product.h. A panel holds the weights of 16 outputs: for every two inputs,
 * two codes for each output.
 */

#include "int8_product.h"

enum { READ_AHEAD_BYTES = 1024, WIDE_PANELS = 4 };

typedef void (*Int8Tile)(const Int8Product *product, ptrdiff_t row, ptrdiff_t panel);

typedef struct {
    const Int8Tile *by_rows; /* by number of rows - 1 */
    ptrdiff_t max_rows;
    void (*wide)(const Int8Product *product, ptrdiff_t panel); /* WIDE_PANELS panels for a single row, or NULL */
} Int8Tiles;

/* Products before their sums: otherwise compilers compute many products first, and run out of registers. */
#define KEEP_ORDER(sum) __asm__ volatile("" : "+v"(sum))

#define NAME(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define VECTOR __m256
#define INTEGERS __m256i
#define PARTS 2
#define HAS_WIDE_TILE 1
#define MAX_TILE_ROWS 6 /* sixteen registers: two sums for each row, and a few more */
#define ZERO _mm256_setzero_ps
#define ZERO_INTEGERS _mm256_setzero_si256
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define BROADCAST _mm256_set1_ps
#define BROADCAST_PAIR(p) _mm256_set1_epi32(read_pair(p))
#define WIDEN(p) _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(p)))
#define MULTIPLY_ADD_PAIRS(sums, a, b) _mm256_add_epi32(sums, _mm256_madd_epi16(a, b))
#define MULTIPLY_ADD _mm256_fmadd_ps
#define TO_FLOAT _mm256_cvtepi32_ps
#include "int8_tiles.h"
#undef NAME
#undef TARGET
#undef MULTIPLY_ADD_PAIRS

#if HAS_AVX_VNNI
#define NAME(name) name##_avx2_vnni
#define TARGET __attribute__((target("avx2,fma,avxvnni")))
#define MULTIPLY_ADD_PAIRS(sums, a, b) _mm256_dpwssd_avx_epi32(sums, a, b)
#include "int8_tiles.h"
#undef NAME
#undef TARGET
#undef MULTIPLY_ADD_PAIRS
#else
#define INT8_avx2_vnni INT8_avx2 /* never used: weft_instruction_sets says that there are no instructions for it */
#endif
#undef VECTOR
#undef INTEGERS
#undef PARTS
#undef HAS_WIDE_TILE
#undef MAX_TILE_ROWS
#undef ZERO
#undef ZERO_INTEGERS
#undef LOAD
#undef STORE
#undef BROADCAST
#undef BROADCAST_PAIR
#undef WIDEN
#undef MULTIPLY_ADD
#undef TO_FLOAT

#define NAME(name) name##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define VECTOR __m512
#define INTEGERS __m512i
#define PARTS 1
#define HAS_WIDE_TILE 0
#define MAX_TILE_ROWS 12
#define ZERO _mm512_setzero_ps
#define ZERO_INTEGERS _mm512_setzero_si512
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define BROADCAST _mm512_set1_ps
#define BROADCAST_PAIR(p) _mm512_set1_epi32(read_pair(p))
#define WIDEN(p) _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(p)))
#define MULTIPLY_ADD_PAIRS(sums, a, b) _mm512_add_epi32(sums, _mm512_madd_epi16(a, b))
#define MULTIPLY_ADD _mm512_fmadd_ps
#define TO_FLOAT _mm512_cvtepi32_ps
#include "int8_tiles.h"
#undef NAME
#undef TARGET
#undef MULTIPLY_ADD_PAIRS

#define NAME(name) name##_avx512_vnni
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")))
#define MULTIPLY_ADD_PAIRS(sums, a, b) _mm512_dpwssd_epi32(sums, a, b)
#include "int8_tiles.h"

enum { ROWS_PER_CHUNK = 48 };

static ptrdiff_t count_panels_at_once(const Int8Product *product, const Int8Tiles *tiles) {
    return product->rows.num_rows == 1 && tiles->wide != NULL ? WIDE_PANELS : 1;
}

static void multiply_part(const Phase *phase, ptrdiff_t part) {
    const Int8Product *p = phase->arguments;
    const Int8Tiles *tiles = phase->kernels;
    const ptrdiff_t panels_at_once = count_panels_at_once(p, tiles);
    const PartRange range = cut_panels(p->panels, panels_at_once, part, phase->num_parts);
    ptrdiff_t first_panel = range.first;
    for (; panels_at_once > 1 && first_panel + panels_at_once <= range.end; first_panel += panels_at_once)
        tiles->wide(p, first_panel);
    for (ptrdiff_t chunk = 0; chunk < p->rows.num_rows; chunk += ROWS_PER_CHUNK) {
        const ptrdiff_t rows = p->rows.num_rows - chunk < ROWS_PER_CHUNK ? p->rows.num_rows - chunk : ROWS_PER_CHUNK;
        const ptrdiff_t num_tiles = divide_up(rows, tiles->max_rows);
        for (ptrdiff_t panel = first_panel; panel < range.end; panel++)
            for (ptrdiff_t tile = 0; tile < num_tiles; tile++) {
                const ptrdiff_t first = rows * tile / num_tiles, end = rows * (tile + 1) / num_tiles;
                tiles->by_rows[end - first - 1](p, chunk + first, panel);
            }
    }
}

/* As weft_prepare_product in products.c. */
EXPORT int weft_prepare_int8_product(const Int8Product *product, int instruction_set, unsigned threads, Phase *phases) {
    static const Int8Tiles *const tiles[NUM_INSTRUCTION_SETS] = {
        [AVX2] = &INT8_avx2, [AVX2_VNNI] = &INT8_avx2_vnni, [AVX512] = &INT8_avx512,
        [AVX512_VNNI] = &INT8_avx512_vnni, [AVX512_BF16] = &INT8_avx512_vnni, [AMX] = &INT8_avx512_vnni};
    phases[0] = (Phase){quantize_row, product, NULL, product->rows.num_rows};
    const ptrdiff_t units = divide_up(product->panels, count_panels_at_once(product, tiles[instruction_set]));
    phases[1] = (Phase){multiply_part, product, tiles[instruction_set], count_parts(units, threads)};
    return 2;
}
