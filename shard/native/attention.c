/* Attention of a step's tokens to the keys and values of their sequences in the paged cache: attention.h. */

#include "parallel.h"

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* KEYS: of a block. COLUMNS: that a tile computes. MAX_ROWS: heads times tokens of a piece. */
enum { KEYS = 64, COLUMNS = 16, TILE_ROWS = 6, MAX_ROWS = 48, MAX_HEAD_DIM = 256 };
enum { FLOAT32, BFLOAT16, FLOAT16 };

typedef struct { /* consecutive tokens of one sequence; rows count from the step's first token */
    int64_t first_row, start, length, first_block;
} Piece;

typedef struct {
    const float *queries; /* [tokens, kv_heads * group, head_dim] */
    const char *keys;     /* [slots, kv_heads, head_dim] of `format`, a slot every `slot_bytes` bytes */
    const char *values;
    float *output; /* [tokens, kv_heads * group * head_dim] */
    const Piece *pieces;
    const int32_t *blocks; /* of all pieces' sequences, one after the other */
    int64_t num_pieces, kv_heads, group, head_dim, block_size, slot_bytes, item_bytes, format, query_stride,
        output_stride, window; /* window: keys that a token attends to, 0: all */
    float scale, softcap;      /* softcap: 0: none */
} Attention;

#define NAME(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define VECTOR __m256
#define LANES 8
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define BROADCAST _mm256_set1_ps
#define ADD _mm256_add_ps
#define SUBTRACT _mm256_sub_ps
#define MULTIPLY _mm256_mul_ps
#define DIVIDE _mm256_div_ps
#define MULTIPLY_ADD _mm256_fmadd_ps
#define MAXIMUM _mm256_max_ps
#define MINIMUM _mm256_min_ps
#define ROUND(x) _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define ZERO_WHERE_LESS(x, limit, y) _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ), y)
#define POWER_OF_TWO(x) \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127)), 23))
#define LOAD_BFLOAT16(p) \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))), 16))
#define LOAD_FLOAT16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define TRANSPOSE transpose

/* to[d][row] = from[row][d], for eight rows and eight d. */
TARGET static inline void transpose_8x8(const float *from, ptrdiff_t stride, float *to) {
    __m256 row[8], pair[8], quad[8];
    for (int i = 0; i < 8; i++) row[i] = _mm256_loadu_ps(from + i * stride);
    for (int i = 0; i < 8; i += 2) {
        pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        quad[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
        quad[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
        quad[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
        quad[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * KEYS, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * KEYS, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31));
    }
}

/* to[d][key] = keys[key][d]; keys past `count` become zeros. */
TARGET static void transpose(const float *keys, ptrdiff_t count, ptrdiff_t head_dim, float *to) {
    const ptrdiff_t whole_keys = count / 8 * 8, whole_dims = head_dim / 8 * 8;
    for (ptrdiff_t key = 0; key < whole_keys; key += 8)
        for (ptrdiff_t d = 0; d < whole_dims; d += 8)
            transpose_8x8(keys + key * head_dim + d, head_dim, to + d * KEYS + key);
    for (ptrdiff_t d = 0; d < head_dim; d++)
        for (ptrdiff_t key = d < whole_dims ? whole_keys : 0; key < KEYS; key++)
            to[d * KEYS + key] = key < count ? keys[key * head_dim + d] : 0.0f;
}

#include "attention.h"
#undef NAME
#undef TARGET
#undef VECTOR
#undef LANES
#undef LOAD
#undef STORE
#undef BROADCAST
#undef ADD
#undef SUBTRACT
#undef MULTIPLY
#undef DIVIDE
#undef MULTIPLY_ADD
#undef MAXIMUM
#undef MINIMUM
#undef ROUND
#undef ZERO_WHERE_LESS
#undef POWER_OF_TWO
#undef LOAD_BFLOAT16
#undef LOAD_FLOAT16

#define NAME(name) name##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#define VECTOR __m512
#define LANES 16
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define BROADCAST _mm512_set1_ps
#define ADD _mm512_add_ps
#define SUBTRACT _mm512_sub_ps
#define MULTIPLY _mm512_mul_ps
#define DIVIDE _mm512_div_ps
#define MULTIPLY_ADD _mm512_fmadd_ps
#define MAXIMUM _mm512_max_ps
#define MINIMUM _mm512_min_ps
#define ROUND(x) _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define ZERO_WHERE_LESS(x, limit, y) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), y)
#define POWER_OF_TWO(x) \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(127)), 23))
#define LOAD_BFLOAT16(p) \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
#define LOAD_FLOAT16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))

#include "attention.h"

static void (*const ATTEND[])(const Attention *, const Piece *, ptrdiff_t) = {attend_avx2, attend_avx512, attend_avx512};

typedef struct {
    const Attention *attention;
    void (*attend)(const Attention *, const Piece *, ptrdiff_t);
} Job;

static void run_part(const void *data, ptrdiff_t part) {
    const Job *job = data;
    job->attend(job->attention, job->attention->pieces + part / job->attention->kv_heads,
                part % job->attention->kv_heads);
}

EXPORT void weft_attend(const Attention *attention, int instruction_set, Parallel parallel, unsigned threads) {
    const Job job = {attention, ATTEND[instruction_set - 1]};
    run_parts(run_part, &job, attention->num_pieces * attention->kv_heads, parallel, threads);
}
