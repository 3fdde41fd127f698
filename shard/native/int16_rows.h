/* Rows quantized to int16, with one scale for each group of inputs. */

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MAX_GROUP_INPUTS = 128, MAX_INT16 = 32767 };

typedef struct {
    const void *numbers;  /* [rows, row_inputs], a row every `stride` numbers: float32, or bfloat16 */
    int16_t *codes;       /* [rows, inputs], filled: padded with zeros to whole groups */
    float *scales;        /* [rows, inputs / group_inputs], filled */
    int32_t *sums;        /* the same, filled with the sums of codes; or NULL */
    int64_t num_rows, row_inputs, stride, inputs, group_inputs; /* group_inputs: a multiple of 8, at most 128 */
    int64_t is_bfloat16;
} Int16Rows;

static inline int32_t read_pair(const int16_t *codes) {
    int32_t pair;
    memcpy(&pair, codes, sizeof pair);
    return pair;
}

/* Quantizes `count` numbers, at most a group; the codes that are left become zeros. Returns the scale. */
__attribute__((target("avx2,fma"))) static float quantize_group(const float *from, ptrdiff_t count, ptrdiff_t group_inputs,
                                                                int16_t *codes) {
    float padded[MAX_GROUP_INPUTS];
    if (count < group_inputs) {
        memset(padded, 0, sizeof padded);
        if (count > 0) memcpy(padded, from, (size_t)count * sizeof *from);
        from = padded;
    }
    const __m256 all_but_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)), infinity = _mm256_set1_ps(INFINITY);
    __m256 sizes = _mm256_setzero_ps(), are_finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    for (ptrdiff_t i = 0; i < group_inputs; i += 8) {
        const __m256 size = _mm256_and_ps(_mm256_loadu_ps(from + i), all_but_sign);
        sizes = _mm256_max_ps(sizes, size);
        are_finite = _mm256_and_ps(are_finite, _mm256_cmp_ps(size, infinity, _CMP_LT_OQ)); /* not so for NaN */
    }
    if (_mm256_movemask_ps(are_finite) != 0xff) { /* the scale alone makes the row NaN, as its products would be */
        memset(codes, 0, (size_t)group_inputs * sizeof *codes);
        return NAN;
    }
    float lanes[8], largest = 0.0f;
    _mm256_storeu_ps(lanes, sizes);
    for (int lane = 0; lane < 8; lane++) largest = lanes[lane] > largest ? lanes[lane] : largest;
    const float factor = largest == 0.0f ? INFINITY : MAX_INT16 / largest;
    if (factor == INFINITY) { /* zeros, and numbers so small that they count as such */
        memset(codes, 0, (size_t)group_inputs * sizeof *codes);
        return 0.0f;
    }
    for (ptrdiff_t i = 0; i < group_inputs; i += 8) {
        const __m256i rounded = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + i), _mm256_set1_ps(factor)));
        _mm_storeu_si128((__m128i *)(codes + i),
                         _mm_packs_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1)));
    }
    return largest / MAX_INT16;
}

/* Converts numbers from bfloat16. */
__attribute__((target("avx2"))) static void widen(const uint16_t *from, ptrdiff_t count, float *to) {
    ptrdiff_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(from + i)));
        _mm256_storeu_si256((__m256i *)(to + i), _mm256_slli_epi32(words, 16));
    }
    for (; i < count; i++) {
        const uint32_t word = (uint32_t)from[i] << 16;
        memcpy(to + i, &word, sizeof word);
    }
}

/* Quantizes a row of the Int16Rows that the arguments begin with. */
__attribute__((unused)) static void quantize_row(const Phase *phase, ptrdiff_t row) {
    const Int16Rows *r = phase->arguments;
    const ptrdiff_t num_groups = r->inputs / r->group_inputs;
    for (ptrdiff_t group = 0; group < num_groups; group++) {
        const ptrdiff_t first = group * r->group_inputs, left = r->row_inputs - first, begin = row * r->stride + first;
        const ptrdiff_t count = left < r->group_inputs ? left : r->group_inputs;
        int16_t *codes = r->codes + row * r->inputs + first;
        float widened[MAX_GROUP_INPUTS];
        if (r->is_bfloat16) widen((const uint16_t *)r->numbers + begin, count, widened);
        r->scales[row * num_groups + group] = quantize_group(
            r->is_bfloat16 ? widened : (const float *)r->numbers + begin, count, r->group_inputs, codes);
        if (r->sums != NULL) {
            int32_t sum = 0;
            for (ptrdiff_t i = 0; i < r->group_inputs; i++) sum += codes[i];
            r->sums[row * num_groups + group] = sum;
        }
    }
}
