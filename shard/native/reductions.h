/* One number from many lanes, for one kind of vectors: included after vectors.h, once for each instruction set. */

/* Returns the sum of sixteen numbers: of halves, until one is left. All instruction sets give the same bits. */
TARGET static inline __attribute__((unused)) float NAME(sum_sixteen)(const float *numbers) {
    const __m256 eight = _mm256_add_ps(_mm256_loadu_ps(numbers), _mm256_loadu_ps(numbers + SUM_LANES / 2));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* Returns the largest of some lanes. */
TARGET static inline __attribute__((unused)) float NAME(find_largest_lane)(VECTOR x) {
    float lanes[LANES];
    STORE(lanes, x);
    __m256 eight = _mm256_loadu_ps(lanes);
    if (LANES > 8) eight = _mm256_max_ps(eight, _mm256_loadu_ps(lanes + LANES - 8));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
