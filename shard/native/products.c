/* Products of float32 rows with packed weights of 16 bits: y[row][output] = bias[output] + sum over k of x[row][k] *
 * w[output][k].
 *
 * The sum of one row and one output is made in float32 by fused multiply-adds in the order of k, whatever other rows and
 * outputs there are, and whatever their number and the number of threads.
 *
 * A panel holds the weights of 2 * LANES outputs: for each k two vectors of LANES values. bfloat16: the vectors share
 * 32-bit words, the first in the low halves. float16: one after the other.
 */

#include "phases.h"

#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>

typedef struct {
    const float *x;         /* [rows, inputs] */
    const uint16_t *weight; /* [panels, inputs, 2 * LANES] */
    const float *bias;      /* [panels * 2 * LANES], or NULL */
    float *y;               /* [rows, y_stride], y_stride >= panels * 2 * LANES */
    int64_t rows, inputs, panels, x_stride, y_stride;
} Product;

/* What a tile reads ahead: one line of memory for each k, this many bytes further each time. */
typedef struct {
    const char *start;
    ptrdiff_t step;
} ReadAhead;

typedef void (*Tile)(const float *x, ptrdiff_t x_stride, const uint16_t *weight, const float *bias, float *y,
                     ptrdiff_t y_stride, ptrdiff_t count, int is_first, ReadAhead ahead);

typedef struct {
    void (*run)(const float *x, ptrdiff_t x_stride, const uint16_t *weight, ptrdiff_t panel_stride, const float *bias,
                float *y, ptrdiff_t y_stride, ptrdiff_t inputs);
    ptrdiff_t panels;
} WideTile;

typedef struct {
    ptrdiff_t panel_outputs; /* outputs per panel */
    ptrdiff_t block_inputs;  /* inputs of a panel that stay in the cache while row after row uses them */
    ptrdiff_t max_rows;      /* of a tile */
    const Tile *tiles;       /* by number of rows - 1 */
    const WideTile *wide_tiles; /* the same for few rows, over several panels at once, or NULL */
    ptrdiff_t max_wide_rows;
} Kernels;

enum { MAX_ROWS_PER_CHUNK = 96, READ_AHEAD_BYTES = 1024 };

/* Computes panels first_panel to last_panel - 1 for one tile of rows, so that the weights are read once. Several panels at
 * once are several streams, which the processor reads ahead by itself, and faster than one. */
static void multiply_one_tile(const Product *p, const Kernels *kernels, ptrdiff_t first_panel, ptrdiff_t last_panel) {
    const ptrdiff_t panel_outputs = kernels->panel_outputs, panel_stride = p->inputs * panel_outputs;
    if (p->rows <= kernels->max_wide_rows) {
        const WideTile wide = kernels->wide_tiles[p->rows - 1];
        for (; first_panel + wide.panels <= last_panel; first_panel += wide.panels)
            wide.run(p->x, p->x_stride, p->weight + first_panel * panel_stride, panel_stride,
                     p->bias == NULL ? NULL : p->bias + first_panel * panel_outputs, p->y + first_panel * panel_outputs,
                     p->y_stride, p->inputs);
    }
    for (ptrdiff_t panel = first_panel; panel < last_panel; panel++) {
        const uint16_t *weight = p->weight + panel * panel_stride;
        const ReadAhead ahead = {(const char *)weight + READ_AHEAD_BYTES, panel_outputs * (ptrdiff_t)sizeof(uint16_t)};
        kernels->tiles[p->rows - 1](p->x, p->x_stride, weight, p->bias == NULL ? NULL : p->bias + panel * panel_outputs,
                                    p->y + panel * panel_outputs, p->y_stride, p->inputs, 1, ahead);
    }
}

/* Computes them for rows that need several tiles, which are of nearly equal size. While the tiles use one block of a
 * panel, they read the next panel's block ahead, each a part of it. */
static void multiply_tiles(const Product *p, const Kernels *kernels, ptrdiff_t first_panel, ptrdiff_t last_panel,
                           ptrdiff_t first_row, ptrdiff_t num_rows) {
    const ptrdiff_t panel_outputs = kernels->panel_outputs, panel_stride = p->inputs * panel_outputs;
    const ptrdiff_t num_tiles = divide_up(num_rows, kernels->max_rows);
    for (ptrdiff_t k = 0; k < p->inputs; k += kernels->block_inputs) {
        const ptrdiff_t count = k + kernels->block_inputs < p->inputs ? kernels->block_inputs : p->inputs - k;
        const ptrdiff_t block_bytes = count * panel_outputs * (ptrdiff_t)sizeof(uint16_t);
        for (ptrdiff_t panel = first_panel; panel < last_panel; panel++) {
            const uint16_t *weight = p->weight + panel * panel_stride + k * panel_outputs;
            const float *bias = p->bias == NULL ? NULL : p->bias + panel * panel_outputs;
            for (ptrdiff_t tile = 0; tile < num_tiles; tile++) {
                const ptrdiff_t row = first_row + num_rows * tile / num_tiles;
                const ptrdiff_t rows = first_row + num_rows * (tile + 1) / num_tiles - row;
                const ReadAhead ahead = {(const char *)(weight + panel_stride) + block_bytes * tile / num_tiles,
                                         block_bytes / num_tiles / count};
                kernels->tiles[rows - 1](p->x + row * p->x_stride + k, p->x_stride, weight, bias,
                                         p->y + row * p->y_stride + panel * panel_outputs, p->y_stride, count, k == 0,
                                         ahead);
            }
        }
    }
}

static void multiply_panels(const Product *p, const Kernels *kernels, ptrdiff_t first_panel, ptrdiff_t last_panel) {
    if (p->rows == 0) return;
    if (p->rows <= kernels->max_rows) {
        multiply_one_tile(p, kernels, first_panel, last_panel);
        return;
    }
    const ptrdiff_t num_chunks = divide_up(p->rows, MAX_ROWS_PER_CHUNK);
    for (ptrdiff_t chunk = 0; chunk < num_chunks; chunk++) {
        const ptrdiff_t first_row = p->rows * chunk / num_chunks;
        multiply_tiles(p, kernels, first_panel, last_panel, first_row, p->rows * (chunk + 1) / num_chunks - first_row);
    }
}

/* Defines the tile of ROWS rows for one kind of vectors; LOAD_PAIR reads the weights of one k. */
#define DEFINE_TILE(NAME, TARGET, VECTOR, LANES, ROWS, SET1, LOADU, STOREU, FMADD, ZERO, LOAD_PAIR)                       \
    TARGET static void NAME(const float *x, ptrdiff_t x_stride, const uint16_t *weight, const float *bias, float *y,      \
                            ptrdiff_t y_stride, ptrdiff_t count, int is_first, ReadAhead ahead) {                         \
        VECTOR sums[ROWS][2];                                                                                             \
        _Pragma("GCC unroll 16") for (int row = 0; row < ROWS; row++)                                                     \
            _Pragma("GCC unroll 2") for (int part = 0; part < 2; part++)                                                  \
                sums[row][part] = !is_first ? LOADU(y + row * y_stride + part * LANES)                                    \
                                  : bias != NULL ? LOADU(bias + part * LANES) : ZERO();                                   \
        for (ptrdiff_t k = 0; k < count; k++, ahead.start += ahead.step) {                                                \
            VECTOR low, high;                                                                                             \
            __builtin_prefetch(ahead.start);                                                                              \
            LOAD_PAIR(weight + k * 2 * LANES, low, high);                                                                 \
            _Pragma("GCC unroll 16") for (int row = 0; row < ROWS; row++) {                                               \
                const VECTOR value = SET1(x[row * x_stride + k]);                                                         \
                sums[row][0] = FMADD(value, low, sums[row][0]);                                                           \
                sums[row][1] = FMADD(value, high, sums[row][1]);                                                          \
            }                                                                                                             \
        }                                                                                                                 \
        _Pragma("GCC unroll 16") for (int row = 0; row < ROWS; row++)                                                     \
            _Pragma("GCC unroll 2") for (int part = 0; part < 2; part++)                                                  \
                STOREU(y + row * y_stride + part * LANES, sums[row][part]);                                               \
    }

/* Defines the tile of ROWS rows and PANELS panels. The sums are those of DEFINE_TILE. */
#define DEFINE_WIDE_TILE(NAME, TARGET, VECTOR, LANES, ROWS, PANELS, SET1, LOADU, STOREU, FMADD, ZERO, LOAD_PAIR)           \
    TARGET static void NAME(const float *x, ptrdiff_t x_stride, const uint16_t *weight, ptrdiff_t panel_stride,           \
                            const float *bias, float *y, ptrdiff_t y_stride, ptrdiff_t inputs) {                          \
        VECTOR sums[ROWS][PANELS][2];                                                                                     \
        _Pragma("GCC unroll 4") for (int row = 0; row < ROWS; row++)                                                      \
            _Pragma("GCC unroll 4") for (int panel = 0; panel < PANELS; panel++)                                          \
                _Pragma("GCC unroll 2") for (int part = 0; part < 2; part++)                                              \
                    sums[row][panel][part] = bias != NULL ? LOADU(bias + (panel * 2 + part) * LANES) : ZERO();            \
        for (ptrdiff_t k = 0; k < inputs; k++) {                                                                          \
            _Pragma("GCC unroll 4") for (int panel = 0; panel < PANELS; panel++) {                                        \
                VECTOR low, high;                                                                                         \
                LOAD_PAIR(weight + panel * panel_stride + k * 2 * LANES, low, high);                                      \
                _Pragma("GCC unroll 4") for (int row = 0; row < ROWS; row++) {                                            \
                    const VECTOR value = SET1(x[row * x_stride + k]);                                                     \
                    sums[row][panel][0] = FMADD(value, low, sums[row][panel][0]);                                         \
                    sums[row][panel][1] = FMADD(value, high, sums[row][panel][1]);                                        \
                }                                                                                                         \
            }                                                                                                             \
        }                                                                                                                 \
        _Pragma("GCC unroll 4") for (int row = 0; row < ROWS; row++)                                                      \
            _Pragma("GCC unroll 4") for (int panel = 0; panel < PANELS; panel++)                                          \
                _Pragma("GCC unroll 2") for (int part = 0; part < 2; part++)                                              \
                    STOREU(y + row * y_stride + (panel * 2 + part) * LANES, sums[row][panel][part]);                      \
    }

#define TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define LOAD_BF16_AVX2(ADDRESS, LOW, HIGH)                                                        \
    do {                                                                                          \
        const __m256i words = _mm256_loadu_si256((const __m256i *)(ADDRESS));                     \
        LOW = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));                                  \
        HIGH = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)));  \
    } while (0)
#define LOAD_FP16_AVX2(ADDRESS, LOW, HIGH)                                                 \
    do {                                                                                   \
        LOW = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(ADDRESS)));                \
        HIGH = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((ADDRESS) + 8)));         \
    } while (0)
#define TILE_AVX2(FORMAT, ROWS)                                                                                      \
    DEFINE_TILE(avx2_##FORMAT##_##ROWS, TARGET_AVX2, __m256, 8, ROWS, _mm256_set1_ps, _mm256_loadu_ps,                      \
                _mm256_storeu_ps, _mm256_fmadd_ps, _mm256_setzero_ps, LOAD_##FORMAT##_AVX2)

#define WIDE_TILE_AVX2(FORMAT, ROWS, PANELS)                                                                         \
    DEFINE_WIDE_TILE(avx2_##FORMAT##_wide_##ROWS, TARGET_AVX2, __m256, 8, ROWS, PANELS, _mm256_set1_ps, _mm256_loadu_ps,    \
                     _mm256_storeu_ps, _mm256_fmadd_ps, _mm256_setzero_ps, LOAD_##FORMAT##_AVX2)

#define TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define LOAD_BF16_AVX512(ADDRESS, LOW, HIGH)                                                      \
    do {                                                                                          \
        const __m512i words = _mm512_loadu_si512((const void *)(ADDRESS));                        \
        LOW = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));                                  \
        HIGH = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000)));  \
    } while (0)
#define LOAD_FP16_AVX512(ADDRESS, LOW, HIGH)                                                \
    do {                                                                                    \
        LOW = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(ADDRESS)));              \
        HIGH = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((ADDRESS) + 16)));      \
    } while (0)
#define TILE_AVX512(FORMAT, ROWS)                                                                                         \
    DEFINE_TILE(avx512_##FORMAT##_##ROWS, TARGET_AVX512, __m512, 16, ROWS, _mm512_set1_ps, _mm512_loadu_ps,                      \
                _mm512_storeu_ps, _mm512_fmadd_ps, _mm512_setzero_ps, LOAD_##FORMAT##_AVX512)

#define DEFINE_KERNELS_AVX2(FORMAT)                                                                                  \
    TILE_AVX2(FORMAT, 1) TILE_AVX2(FORMAT, 2) TILE_AVX2(FORMAT, 3) TILE_AVX2(FORMAT, 4)                              \
    TILE_AVX2(FORMAT, 5) TILE_AVX2(FORMAT, 6)                                                                        \
    static const Tile avx2_##FORMAT##_tiles[] = {                                                                    \
        avx2_##FORMAT##_1, avx2_##FORMAT##_2, avx2_##FORMAT##_3, avx2_##FORMAT##_4,                                  \
        avx2_##FORMAT##_5, avx2_##FORMAT##_6};                                                                       \
    WIDE_TILE_AVX2(FORMAT, 1, 4) WIDE_TILE_AVX2(FORMAT, 2, 2)                                                        \
    static const WideTile avx2_##FORMAT##_wide_tiles[] = {{avx2_##FORMAT##_wide_1, 4}, {avx2_##FORMAT##_wide_2, 2}};  \
    static const Kernels avx2_##FORMAT##_kernels = {16, 1024, 6, avx2_##FORMAT##_tiles, avx2_##FORMAT##_wide_tiles, 2};
#define DEFINE_KERNELS_AVX512(FORMAT)                                                                                \
    TILE_AVX512(FORMAT, 1) TILE_AVX512(FORMAT, 2) TILE_AVX512(FORMAT, 3) TILE_AVX512(FORMAT, 4)                      \
    TILE_AVX512(FORMAT, 5) TILE_AVX512(FORMAT, 6) TILE_AVX512(FORMAT, 7) TILE_AVX512(FORMAT, 8)                      \
    TILE_AVX512(FORMAT, 9) TILE_AVX512(FORMAT, 10) TILE_AVX512(FORMAT, 11) TILE_AVX512(FORMAT, 12)                   \
    static const Tile avx512_##FORMAT##_tiles[] = {                                                                  \
        avx512_##FORMAT##_1, avx512_##FORMAT##_2, avx512_##FORMAT##_3, avx512_##FORMAT##_4,                          \
        avx512_##FORMAT##_5, avx512_##FORMAT##_6, avx512_##FORMAT##_7, avx512_##FORMAT##_8,                          \
        avx512_##FORMAT##_9, avx512_##FORMAT##_10, avx512_##FORMAT##_11, avx512_##FORMAT##_12};                      \
    static const Kernels avx512_##FORMAT##_kernels = {32, 1024, 12, avx512_##FORMAT##_tiles, NULL, 0};

DEFINE_KERNELS_AVX2(BF16)
DEFINE_KERNELS_AVX2(FP16)
DEFINE_KERNELS_AVX512(BF16)
DEFINE_KERNELS_AVX512(FP16)

static const Kernels *find_kernels(int instruction_set, int is_fp16) {
    static const Kernels *const kernels[2][2] = {{&avx2_BF16_kernels, &avx2_FP16_kernels},
                                                 {&avx512_BF16_kernels, &avx512_FP16_kernels}};
    return kernels[instruction_set > AVX2_VNNI][is_fp16];
}

/* Returns whether the system lets this process use the tiles of AMX; Linux must be asked. */
static int may_use_tiles(unsigned saved_by_system) {
    const unsigned tiles = 3u << 17;
    const long request_permission = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return (saved_by_system & tiles) == tiles && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

/* Returns which instruction sets processor and system allow: a bit for each, by its number.
 * __builtin_cpu_supports would do, but not with every compiler in a shared library. */
EXPORT unsigned weft_instruction_sets(void) {
    unsigned eax, ebx, ecx, edx, more_eax = 0, saved_by_system;
    const unsigned fma = 1u << 12, xsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (~ecx & (fma | xsave | avx | f16c))) return 0;
    __asm__("xgetbv" : "=a"(saved_by_system), "=d"(edx) : "c"(0));
    if ((saved_by_system & 0x06) != 0x06) return 0;
    if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) more_eax = eax;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return 0;
    const unsigned avx2 = 1u << 5, avx512f = 1u << 16, avx512dq = 1u << 17, avx512bw = 1u << 30, avx512vl = 1u << 31;
    const unsigned avx512vnni = 1u << 11; /* of ecx */
    const unsigned amx = 1u << 22 | 1u << 24 | 1u << 25; /* of edx: BF16, tiles, INT8 */
    const unsigned avx_vnni = 1u << 4, avx512bf16 = 1u << 5; /* of more_eax */
    if (!(ebx & avx2)) return 0;
    unsigned sets = 1u << AVX2;
    if (HAS_AVX_VNNI && (more_eax & avx_vnni)) sets |= 1u << AVX2_VNNI;
    if ((saved_by_system & 0xe6) != 0xe6 || (~ebx & (avx512f | avx512dq | avx512bw | avx512vl))) return sets;
    sets |= 1u << AVX512;
    if (!(ecx & avx512vnni)) return sets;
    sets |= 1u << AVX512_VNNI;
    if (!HAS_BFLOAT16 || !(more_eax & avx512bf16)) return sets;
    sets |= 1u << AVX512_BF16;
    return HAS_AMX && !(~edx & amx) && may_use_tiles(saved_by_system) ? sets | 1u << AMX : sets;
}

/* Returns how many panels are computed at once, of which parts should be multiples. */
static ptrdiff_t count_panels_at_once(const Product *product, const Kernels *kernels) {
    return product->rows > 0 && product->rows <= kernels->max_wide_rows ? kernels->wide_tiles[product->rows - 1].panels : 1;
}

static void multiply_part(const Phase *phase, ptrdiff_t part) {
    const Product *product = phase->arguments;
    const PartRange range = cut_panels(product->panels, count_panels_at_once(product, phase->kernels), part, phase->num_parts);
    multiply_panels(product, phase->kernels, range.first, range.end);
}

/* Each function `prepare` writes the phases of a computation, and returns how many there are. The arguments must live as
 * long as the phases. */
EXPORT int weft_prepare_product(const Product *product, int instruction_set, int is_fp16, unsigned threads,
                                Phase *phases) {
    const Kernels *kernels = find_kernels(instruction_set, is_fp16);
    const ptrdiff_t units = divide_up(product->panels, count_panels_at_once(product, kernels));
    phases[0] = (Phase){multiply_part, product, kernels, count_parts(units, threads)};
    return 1;
}

/* Runs phases of any kind. */
EXPORT void weft_run_phases(const Phase *phases, int64_t count, Parallel parallel, unsigned threads) {
    run_phases(phases, count, parallel, threads);
}
