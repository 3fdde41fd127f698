/* Products of int16 rows with weights of four bits, for one kind of vectors: int4_products.c includes this file once for
 * each instruction set. Sums over a group of inputs are exact integers; the groups' sums are added as float32, in order. */

#define DEFINE_TILE(ROWS)                                                                                              \
    TARGET static void NAME(int4_tile_##ROWS)(const Int4Product *p, ptrdiff_t row, ptrdiff_t panel) {                  \
        const ptrdiff_t inputs = p->rows.inputs, group_inputs = p->rows.group_inputs, groups = inputs / group_inputs;  \
        const uint8_t *weight = p->weight + panel * inputs * (PANEL_OUTPUTS / 2);                                      \
        const float *scales = p->scales + panel * groups * PANEL_OUTPUTS;                                              \
        const int8_t *zeros = p->zeros + panel * groups * PANEL_OUTPUTS;                                               \
        const int16_t *x = p->rows.codes + row * inputs;                                                               \
        VECTOR results[ROWS][PARTS];                                                                                   \
        _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++)                                                        \
            _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) results[i][part] = ZERO();                \
        for (ptrdiff_t group = 0; group < groups; group++, scales += PANEL_OUTPUTS, zeros += PANEL_OUTPUTS) {          \
            INTEGERS chains[ROWS][CHAINS(ROWS)][PARTS];                                                                \
            _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++)                                                    \
                _Pragma("GCC unroll 4") for (int chain = 0; chain < CHAINS(ROWS); chain++)                             \
                    _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++)                                   \
                        chains[i][chain][part] = ZERO_INTEGERS();                                                      \
            for (ptrdiff_t k = 0; k < group_inputs; k += 8, weight += 4 * PANEL_OUTPUTS) {                             \
                __builtin_prefetch(weight + READ_AHEAD_BYTES);                                                         \
                _Pragma("GCC unroll 2") for (int four = 0; four < 2; four++) {                                         \
                    INTEGERS bytes[PARTS];                                                                             \
                    WIDEN(_mm256_loadu_si256((const __m256i *)weight + four), bytes);                                  \
                    _Pragma("GCC unroll 2") for (int half = 0; half < 2; half++) {                                     \
                        INTEGERS codes[PARTS];                                                                         \
                        _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++)                               \
                            codes[part] = half ? HIGH_NIBBLES(bytes[part]) : LOW_NIBBLES(bytes[part]);                 \
                        _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++) {                                      \
                            const ptrdiff_t input = k + 4 * four + 2 * half;                                           \
                            const INTEGERS pairs = BROADCAST_INTEGER(read_pair(x + i * inputs + input));               \
                            _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) {                         \
                                INTEGERS *sum = &chains[i][(2 * four + half) % CHAINS(ROWS)][part];                    \
                                *sum = MULTIPLY_ADD_PAIRS(*sum, codes[part], pairs);                                   \
                                KEEP_ORDER(*sum);                                                                      \
                            }                                                                                          \
                        }                                                                                              \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            INTEGERS sums[ROWS][PARTS];                                                                                \
            _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++)                                                    \
                _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) {                                     \
                    sums[i][part] = chains[i][0][part];                                                                \
                    _Pragma("GCC unroll 4") for (int chain = 1; chain < CHAINS(ROWS); chain++)                         \
                        sums[i][part] = ADD_INTEGERS(sums[i][part], chains[i][chain][part]);                           \
                }                                                                                                      \
            x += group_inputs;                                                                                         \
            _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++) {                                                  \
                const VECTOR scale = BROADCAST(p->rows.scales[(row + i) * groups + group]);                            \
                const INTEGERS sum_of_row = BROADCAST_INTEGER(p->rows.sums[(row + i) * groups + group]);               \
                _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) {                                     \
                    const ptrdiff_t first = part * (PANEL_OUTPUTS / PARTS);                                            \
                    const INTEGERS sum = SUBTRACT_INTEGERS(                                                            \
                        ORDER_OUTPUTS(sums[i][part]), MULTIPLY_INTEGERS(LOAD_BYTES(zeros + first), sum_of_row));       \
                    results[i][part] = MULTIPLY_ADD(TO_FLOAT(sum), MULTIPLY(LOAD(scales + first), scale),              \
                                                    results[i][part]);                                                 \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++)                                                        \
            _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) {                                         \
                const ptrdiff_t first = panel * PANEL_OUTPUTS + part * (PANEL_OUTPUTS / PARTS);                        \
                const VECTOR bias = p->bias == NULL ? ZERO() : LOAD(p->bias + first);                                  \
                STORE(p->y + (row + i) * p->y_stride + first, ADD(results[i][part], bias));                            \
            }                                                                                                          \
    }
DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(3)
DEFINE_TILE(4)
DEFINE_TILE(5)
DEFINE_TILE(6)
#if MAX_TILE_ROWS > 6
DEFINE_TILE(7)
DEFINE_TILE(8)
DEFINE_TILE(9)
DEFINE_TILE(10)
DEFINE_TILE(11)
DEFINE_TILE(12)
#endif
#undef DEFINE_TILE

static const Int4Tile NAME(INT4_TILES)[] = {
    NAME(int4_tile_1), NAME(int4_tile_2), NAME(int4_tile_3), NAME(int4_tile_4),  NAME(int4_tile_5),  NAME(int4_tile_6),
#if MAX_TILE_ROWS > 6
    NAME(int4_tile_7), NAME(int4_tile_8), NAME(int4_tile_9), NAME(int4_tile_10), NAME(int4_tile_11), NAME(int4_tile_12),
#endif
};
static const Int4Tiles NAME(INT4) = {NAME(INT4_TILES), MAX_TILE_ROWS};
