/* Attention of a step's tokens to the keys and values of their sequences in the paged cache: attention.h. */

#include "attention_arguments.h"

#include <math.h>

/* COLUMNS: that a tile computes. */
enum { COLUMNS = 16, TILE_ROWS = 6 };

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

#include "attention_weights.h"

#include "attention.h"

#undef USE_AVX512
#define USE_AVX512 1
#include "vectors.h"
#include "attention_weights.h"
#include "attention.h"

typedef void (*Attend)(const Attention *, const Piece *, ptrdiff_t);

static void attend_part(const Phase *phase, ptrdiff_t part) {
    const Attention *a = phase->arguments;
    const Piece *piece = a->pieces + part / a->kv_heads;
    if (piece->length > 0) (*(const Attend *)phase->kernels)(a, piece, part % a->kv_heads);
}

/* As weft_prepare_product in products.c. */
EXPORT int weft_prepare_attention(const Attention *attention, int instruction_set, Phase *phases) {
    static const Attend attend[] = {attend_avx2, attend_avx512, attend_by_amx};
    const int kernel = instruction_set <= AVX2_VNNI ? 0 : can_attend_by_amx(attention, instruction_set) ? 2 : 1;
    phases[0] = (Phase){attend_part, attention, attend + kernel, attention->num_pieces * attention->kv_heads};
    return 1;
}
