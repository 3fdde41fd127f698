/* activation(gate) * up, for one kind of vectors: activations.c includes this file once for each instruction set. */

TARGET static void NAME(gate)(const Gating *g, ptrdiff_t row, ptrdiff_t first, ptrdiff_t end) {
    const float *gates = g->gates_and_ups + row * g->stride, *ups = gates + g->width;
    for (ptrdiff_t column = first; column < end; column += LANES) {
        float tail[3][LANES]; /* gates, ups and results of the last, incomplete vector */
        const ptrdiff_t left = end - column;
        const float *gate_from = gates + column, *up_from = ups + column;
        if (left < LANES) {
            memset(tail, 0, sizeof tail);
            memcpy(tail[0], gate_from, (size_t)left * sizeof(float));
            memcpy(tail[1], up_from, (size_t)left * sizeof(float));
            gate_from = tail[0];
            up_from = tail[1];
        }
        const VECTOR value = LOAD(gate_from);
        VECTOR exponent = value;
        if (g->activation == GELU_TANH) { /* x times the sigmoid of 2 * sqrt(2 / pi) * (x + 0.044715 * x^3) */
            const VECTOR square = MULTIPLY(value, value);
            const VECTOR factor = MULTIPLY_ADD(square, BROADCAST(0.044715f), BROADCAST(1.0f));
            exponent = MULTIPLY(MULTIPLY(factor, value), BROADCAST(1.5957691216f));
        }
        const VECTOR power = NAME(exponential)(SUBTRACT(BROADCAST(0.0f), exponent));
        const VECTOR result = DIVIDE(MULTIPLY(value, LOAD(up_from)), ADD(power, BROADCAST(1.0f)));
        if (left < LANES) {
            STORE(tail[2], result);
            if (g->rounded == NULL) memcpy(g->results + row * g->width + column, tail[2], (size_t)left * sizeof(float));
            else {
                uint16_t rounded[LANES];
                STORE_BFLOAT16(rounded, result);
                memcpy(g->rounded + row * g->width + column, rounded, (size_t)left * sizeof *rounded);
            }
        } else if (g->rounded == NULL) STORE(g->results + row * g->width + column, result);
        else STORE_BFLOAT16(g->rounded + row * g->width + column, result);
    }
}
