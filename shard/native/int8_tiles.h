/* Products of int16 rows with int8 weights, for one kind of vectors: int8_products.c includes this file once for each
 * instruction set. Sums over a group of inputs are exact integers; the groups' sums are added as float32, in their order. */

#define DEFINE_TILE(ROWS)                                                                                              \
    TARGET static void NAME(int8_tile_##ROWS)(const Int8Product *p, ptrdiff_t row, ptrdiff_t panel) {                  \
        const ptrdiff_t inputs = p->rows.inputs, groups = inputs / GROUP_INPUTS;                                       \
        const int8_t *weight = p->weight + panel * inputs * PANEL_OUTPUTS;                                             \
        const int16_t *x = p->rows.codes + row * inputs;                                                               \
        const float *x_scales = p->rows.scales + row * groups;                                                         \
        VECTOR results[ROWS][PARTS];                                                                                   \
        _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++)                                                        \
            _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) results[i][part] = ZERO();                \
        for (ptrdiff_t group = 0; group < groups; group++) {                                                             \
            INTEGERS sums[ROWS][PARTS];                                                                                \
            _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++)                                                    \
                _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) sums[i][part] = ZERO_INTEGERS();      \
            for (int k = 0; k < GROUP_INPUTS; k += 2, weight += 2 * PANEL_OUTPUTS) {                                   \
                INTEGERS codes[PARTS];                                                                                 \
                __builtin_prefetch(weight + READ_AHEAD_BYTES);                                                         \
                _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++)                                       \
                    codes[part] = WIDEN(weight + part * (2 * PANEL_OUTPUTS / PARTS));                                  \
                _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++) {                                              \
                    const INTEGERS pairs = BROADCAST_PAIR(x + i * inputs + k);                                         \
                    _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) {                                 \
                        sums[i][part] = MULTIPLY_ADD_PAIRS(sums[i][part], codes[part], pairs);                         \
                        KEEP_ORDER(sums[i][part]);                                                                     \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            x += GROUP_INPUTS;                                                                                         \
            _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++) {                                                  \
                const VECTOR scale = BROADCAST(x_scales[i * groups + group]);                                          \
                _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++)                                       \
                    results[i][part] = MULTIPLY_ADD(TO_FLOAT(sums[i][part]), scale, results[i][part]);                 \
            }                                                                                                          \
        }                                                                                                              \
        const ptrdiff_t output = panel * PANEL_OUTPUTS;                                                                \
        _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++)                                                        \
            _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) {                                         \
                const ptrdiff_t first = output + part * (PANEL_OUTPUTS / PARTS);                                       \
                const VECTOR bias = p->bias == NULL ? ZERO() : LOAD(p->bias + first);                                  \
                STORE(p->y + (row + i) * p->y_stride + first,                                                          \
                      MULTIPLY_ADD(results[i][part], LOAD(p->scales + first), bias));                                  \
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

#if HAS_WIDE_TILE
/* WIDE_PANELS panels for a single row: several streams of weights, which the processor reads ahead by itself. */
TARGET static void NAME(int8_wide_tile)(const Int8Product *p, ptrdiff_t panel) {
    const ptrdiff_t inputs = p->rows.inputs, groups = inputs / GROUP_INPUTS, stride = inputs * PANEL_OUTPUTS;
    const int8_t *weight = p->weight + panel * stride;
    VECTOR results[WIDE_PANELS][PARTS];
    _Pragma("GCC unroll 4") for (int i = 0; i < WIDE_PANELS; i++)
        _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) results[i][part] = ZERO();
    for (ptrdiff_t group = 0; group < groups; group++) {
        const int16_t *x = p->rows.codes + group * GROUP_INPUTS;
        INTEGERS sums[WIDE_PANELS][PARTS];
        _Pragma("GCC unroll 4") for (int i = 0; i < WIDE_PANELS; i++)
            _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) sums[i][part] = ZERO_INTEGERS();
        for (int k = 0; k < GROUP_INPUTS; k += 2, weight += 2 * PANEL_OUTPUTS) {
            const INTEGERS pairs = BROADCAST_PAIR(x + k);
            _Pragma("GCC unroll 4") for (int i = 0; i < WIDE_PANELS; i++)
                _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) {
                    const INTEGERS codes = WIDEN(weight + i * stride + part * (2 * PANEL_OUTPUTS / PARTS));
                    sums[i][part] = MULTIPLY_ADD_PAIRS(sums[i][part], codes, pairs);
                    KEEP_ORDER(sums[i][part]);
                }
        }
        const VECTOR scale = BROADCAST(p->rows.scales[group]);
        _Pragma("GCC unroll 4") for (int i = 0; i < WIDE_PANELS; i++)
            _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++)
                results[i][part] = MULTIPLY_ADD(TO_FLOAT(sums[i][part]), scale, results[i][part]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < WIDE_PANELS; i++)
        _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) {
            const ptrdiff_t first = (panel + i) * PANEL_OUTPUTS + part * (PANEL_OUTPUTS / PARTS);
            const VECTOR bias = p->bias == NULL ? ZERO() : LOAD(p->bias + first);
            STORE(p->y + first, MULTIPLY_ADD(results[i][part], LOAD(p->scales + first), bias));
        }
}
#endif

static const Int8Tile NAME(INT8_TILES)[] = {
    NAME(int8_tile_1), NAME(int8_tile_2), NAME(int8_tile_3), NAME(int8_tile_4),  NAME(int8_tile_5),  NAME(int8_tile_6),
#if MAX_TILE_ROWS > 6
    NAME(int8_tile_7), NAME(int8_tile_8), NAME(int8_tile_9), NAME(int8_tile_10), NAME(int8_tile_11), NAME(int8_tile_12),
#endif
};
#if HAS_WIDE_TILE
static const Int8Tiles NAME(INT8) = {NAME(INT8_TILES), MAX_TILE_ROWS, NAME(int8_wide_tile)};
#else
static const Int8Tiles NAME(INT8) = {NAME(INT8_TILES), MAX_TILE_ROWS, NULL};
#endif
