/* Products of int4_product.h by vectors of AVX2 or AVX-512. The part of the zeros is zero times the sum of the row's codes. */

#include "int4_product.h"

typedef void (*Int4Tile)(const Int4Product *product, ptrdiff_t row, ptrdiff_t panel);

typedef struct {
    const Int4Tile *by_rows; /* by number of rows - 1 */
    ptrdiff_t max_rows;
} Int4Tiles;

/* Into how many sums those of a row and a part are split: with few rows an addition would wait for the one before. The sums
 * are integers, so this changes no bit. */
#define CHAINS(rows) ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)

/* Products before their sums: otherwise compilers compute many products first, and run out of registers. */
#define KEEP_ORDER(sum) __asm__ volatile("" : "+v"(sum))

#define NAME(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define VECTOR __m256
#define INTEGERS __m256i
#define PARTS 2
#define MAX_TILE_ROWS 5 /* sixteen registers: two sums for each row, and a few more */
#define ZERO _mm256_setzero_ps
#define ZERO_INTEGERS _mm256_setzero_si256
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define ADD _mm256_add_ps
#define MULTIPLY _mm256_mul_ps
#define BROADCAST _mm256_set1_ps
#define BROADCAST_INTEGER _mm256_set1_epi32
#define WIDEN(bytes, words)                                            \
    words[0] = _mm256_unpacklo_epi8(bytes, _mm256_setzero_si256());     \
    words[PARTS - 1] = _mm256_unpackhi_epi8(bytes, _mm256_setzero_si256())
#define LOW_NIBBLES(words) _mm256_and_si256(words, _mm256_set1_epi16(0x0f))
#define HIGH_NIBBLES(words) _mm256_srli_epi16(words, 4)
#define ADD_INTEGERS _mm256_add_epi32
#define ORDER_OUTPUTS(sums) sums
#define MULTIPLY_ADD_PAIRS(sums, a, b) _mm256_add_epi32(sums, _mm256_madd_epi16(a, b))
#define MULTIPLY_ADD _mm256_fmadd_ps
#define MULTIPLY_INTEGERS _mm256_mullo_epi32
#define SUBTRACT_INTEGERS _mm256_sub_epi32
#define LOAD_BYTES(p) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p)))
#define TO_FLOAT _mm256_cvtepi32_ps
#include "int4_tiles.h"
#undef NAME
#undef TARGET
#undef MULTIPLY_ADD_PAIRS

#if HAS_AVX_VNNI
#define NAME(name) name##_avx2_vnni
#define TARGET __attribute__((target("avx2,fma,avxvnni")))
#define MULTIPLY_ADD_PAIRS(sums, a, b) _mm256_dpwssd_avx_epi32(sums, a, b)
#include "int4_tiles.h"
#undef NAME
#undef TARGET
#undef MULTIPLY_ADD_PAIRS
#else
#define INT4_avx2_vnni INT4_avx2 /* never used: weft_instruction_sets says that there are no instructions for it */
#endif
#undef VECTOR
#undef INTEGERS
#undef PARTS
#undef MAX_TILE_ROWS
#undef ZERO
#undef ZERO_INTEGERS
#undef LOAD
#undef STORE
#undef ADD
#undef MULTIPLY
#undef BROADCAST
#undef BROADCAST_INTEGER
#undef WIDEN
#undef LOW_NIBBLES
#undef HIGH_NIBBLES
#undef ADD_INTEGERS
#undef ORDER_OUTPUTS
#undef MULTIPLY_ADD
#undef MULTIPLY_INTEGERS
#undef SUBTRACT_INTEGERS
#undef LOAD_BYTES
#undef TO_FLOAT

#define NAME(name) name##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define VECTOR __m512
#define INTEGERS __m512i
#define PARTS 1
#define MAX_TILE_ROWS 12
#define ZERO _mm512_setzero_ps
#define ZERO_INTEGERS _mm512_setzero_si512
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define ADD _mm512_add_ps
#define MULTIPLY _mm512_mul_ps
#define BROADCAST _mm512_set1_ps
#define BROADCAST_INTEGER _mm512_set1_epi32
#define WIDEN(bytes, words) words[0] = _mm512_cvtepu8_epi16(bytes)
#define LOW_NIBBLES(words) _mm512_and_si512(words, _mm512_set1_epi16(0x0f))
#define HIGH_NIBBLES(words) _mm512_srli_epi16(words, 4)
#define ADD_INTEGERS _mm512_add_epi32
#define ORDER_OUTPUTS(sums) _mm512_shuffle_i32x4(sums, sums, 0xd8)
#define MULTIPLY_ADD_PAIRS(sums, a, b) _mm512_add_epi32(sums, _mm512_madd_epi16(a, b))
#define MULTIPLY_ADD _mm512_fmadd_ps
#define MULTIPLY_INTEGERS _mm512_mullo_epi32
#define SUBTRACT_INTEGERS _mm512_sub_epi32
#define LOAD_BYTES(p) _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define TO_FLOAT _mm512_cvtepi32_ps
#include "int4_tiles.h"
#undef NAME
#undef TARGET
#undef MULTIPLY_ADD_PAIRS

#define NAME(name) name##_avx512_vnni
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")))
#define MULTIPLY_ADD_PAIRS(sums, a, b) _mm512_dpwssd_epi32(sums, a, b)
#include "int4_tiles.h"

enum { ROWS_PER_CHUNK = 48 };

static void multiply_part(const Phase *phase, ptrdiff_t part) {
    const Int4Product *p = phase->arguments;
    const Int4Tiles *tiles = phase->kernels;
    const ptrdiff_t first_panel = p->panels * part / phase->num_parts;
    const ptrdiff_t last_panel = p->panels * (part + 1) / phase->num_parts;
    for (ptrdiff_t chunk = 0; chunk < p->rows.num_rows; chunk += ROWS_PER_CHUNK) {
        const ptrdiff_t rows = p->rows.num_rows - chunk < ROWS_PER_CHUNK ? p->rows.num_rows - chunk : ROWS_PER_CHUNK;
        const ptrdiff_t num_tiles = divide_up(rows, tiles->max_rows);
        for (ptrdiff_t panel = first_panel; panel < last_panel; panel++)
            for (ptrdiff_t tile = 0; tile < num_tiles; tile++) {
                const ptrdiff_t first = rows * tile / num_tiles, end = rows * (tile + 1) / num_tiles;
                tiles->by_rows[end - first - 1](p, chunk + first, panel);
            }
    }
}

/* As weft_prepare_product in products.c. */
EXPORT int weft_prepare_int4_product(const Int4Product *product, int instruction_set, unsigned threads, Phase *phases) {
    static const Int4Tiles *const tiles[NUM_INSTRUCTION_SETS] = {
        [AVX2] = &INT4_avx2, [AVX2_VNNI] = &INT4_avx2_vnni, [AVX512] = &INT4_avx512,
        [AVX512_VNNI] = &INT4_avx512_vnni, [AVX512_BF16] = &INT4_avx512_vnni, [AMX] = &INT4_avx512_vnni};
    phases[0] = (Phase){quantize_row, product, NULL, product->rows.num_rows};
    phases[1] = (Phase){multiply_part, product, tiles[instruction_set], count_parts(product->panels, threads)};
    return 2;
}
