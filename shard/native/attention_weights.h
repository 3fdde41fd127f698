/* Weights of attention, for one kind of vectors: included after vectors.h, once for each instruction set. */

/* Returns the sum of sixteen numbers: of halves, until one is left. All instruction sets give the same bits. */
TARGET static inline float NAME(sum_sixteen)(const float *numbers) {
    const __m256 eight = _mm256_add_ps(_mm256_loadu_ps(numbers), _mm256_loadu_ps(numbers + SUM_LANES / 2));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* Returns the largest of some lanes. */
TARGET static inline float NAME(find_largest_lane)(VECTOR x) {
    float lanes[LANES];
    STORE(lanes, x);
    __m256 eight = _mm256_loadu_ps(lanes);
    if (LANES > 8) eight = _mm256_max_ps(eight, _mm256_loadu_ps(lanes + LANES - 8));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* Turns scores of one row into weights, and returns their sum. Keys from `first` to `end` - 1 of the block count. */
TARGET static float NAME(make_weights)(float *scores, ptrdiff_t first, ptrdiff_t end, float softcap, float *maximum) {
    if (softcap != 0.0f) /* softcap * tanh(score / softcap); the scores are divided by it */
        for (int key = 0; key < KEYS; key += LANES) {
            const VECTOR power = NAME(exponential)(MULTIPLY(LOAD(scores + key), BROADCAST(2.0f)));
            const VECTOR tanh = SUBTRACT(BROADCAST(1.0f), DIVIDE(BROADCAST(2.0f), ADD(power, BROADCAST(1.0f))));
            STORE(scores + key, MULTIPLY(tanh, BROADCAST(softcap)));
        }
    if (first > 0 || end < KEYS) {
        float mask[KEYS];
        for (int key = 0; key < KEYS; key++) mask[key] = key >= first && key < end ? 0.0f : -INFINITY;
        for (int key = 0; key < KEYS; key += LANES) STORE(scores + key, ADD(LOAD(scores + key), LOAD(mask + key)));
    }
    VECTOR largest = BROADCAST(*maximum);
    for (int key = 0; key < KEYS; key += LANES) largest = MAXIMUM(largest, LOAD(scores + key));
    const float largest_score = NAME(find_largest_lane)(largest);
    if (largest_score > *maximum) *maximum = largest_score;
    float sums[SUM_LANES];
    for (int part = 0; part < SUM_LANES; part += LANES) {
        VECTOR sum = BROADCAST(0.0f);
        for (int key = part; key < KEYS; key += SUM_LANES) {
            const VECTOR weight = NAME(exponential)(SUBTRACT(LOAD(scores + key), BROADCAST(*maximum)));
            STORE(scores + key, weight);
            sum = ADD(sum, weight);
        }
        STORE(sums + part, sum);
    }
    return NAME(sum_sixteen)(sums);
}
