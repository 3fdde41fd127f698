/* Vectors of float32 by one instruction set, AVX2 or, if USE_AVX512 is 1, AVX-512. Included once for each. */

#include <immintrin.h>

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
#undef STORE_BFLOAT16

#if USE_AVX512
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
#define STORE_BFLOAT16(p, x) /* rounded to the nearest, ties to even */                                        \
    do {                                                                                                        \
        const __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);                                \
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);                                 \
        const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd));           \
        const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);                                        \
        const __m512i high = _mm512_srli_epi32(_mm512_mask_mov_epi32(sum, is_nan, _mm512_set1_epi32(0x7fc00000)), 16); \
        _mm256_storeu_si256((__m256i *)(p), _mm512_cvtepi32_epi16(high));                                       \
    } while (0)
#else
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
#define STORE_BFLOAT16(p, x) /* rounded to the nearest, ties to even */                                        \
    do {                                                                                                        \
        const __m256i bits = _mm256_castps_si256(x), one = _mm256_set1_epi32(1);                                \
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);                                 \
        const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd));           \
        const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));                          \
        const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(sum, _mm256_set1_epi32(0x7fc00000), is_nan), 16); \
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);                 \
        _mm_storeu_si128((__m128i *)(p), _mm256_castsi256_si128(packed));                                       \
    } while (0)
#endif

/* e to the power of x; zero below -87, and NaN of NaN. Relative error at most 2e-7. */
TARGET static inline __attribute__((unused)) VECTOR NAME(exponential)(VECTOR x) {
    const VECTOR clamped = MINIMUM(BROADCAST(88.0f), MAXIMUM(BROADCAST(-87.0f), x)); /* NaN if the second argument is */
    const VECTOR power = ROUND(MULTIPLY(clamped, BROADCAST(1.44269504f)));
    VECTOR rest = MULTIPLY_ADD(power, BROADCAST(-0.693145752f), clamped);
    rest = MULTIPLY_ADD(power, BROADCAST(-1.42860677e-6f), rest);
    VECTOR sum = BROADCAST(1.0f / 720);
    sum = MULTIPLY_ADD(sum, rest, BROADCAST(1.0f / 120));
    sum = MULTIPLY_ADD(sum, rest, BROADCAST(1.0f / 24));
    sum = MULTIPLY_ADD(sum, rest, BROADCAST(1.0f / 6));
    sum = MULTIPLY_ADD(sum, rest, BROADCAST(0.5f));
    sum = MULTIPLY_ADD(sum, rest, BROADCAST(1.0f));
    sum = MULTIPLY_ADD(sum, rest, BROADCAST(1.0f));
    return ZERO_WHERE_LESS(x, BROADCAST(-87.0f), MULTIPLY(sum, POWER_OF_TWO(power)));
}
