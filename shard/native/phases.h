/* Phases of a computation, each cut into parts, on the threads of an OpenMP library that the caller has loaded.
 *
 * The parts of a phase may run at the same time, and a phase begins when all parts of the one before are done. So one
 * parallel region can run a whole decode step: its threads meet between phases without being put to sleep and woken.
 */

#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whether the compiler knows the instructions for bfloat16. */
#ifndef HAS_BFLOAT16
#if defined(__clang__) || __GNUC__ >= 10
#define HAS_BFLOAT16 1
#else
#define HAS_BFLOAT16 0
#endif
#endif

/* Whether the compiler knows the instructions of AMX and of AVX-VNNI; compiler.py says no where the assembler is too old for
 * them. */
#ifndef HAS_AMX
#if (defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11)
#define HAS_AMX 1
#else
#define HAS_AMX 0
#endif
#endif
#ifndef HAS_AVX_VNNI
#define HAS_AVX_VNNI HAS_AMX
#endif

#define EXPORT __attribute__((visibility("default")))

/* Instruction sets by their numbers in library.py. AVX2 includes FMA and F16C. */
enum { AVX2 = 1, AVX2_VNNI, AVX512, AVX512_VNNI, AVX512_BF16, AMX, NUM_INSTRUCTION_SETS };

typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel */

typedef struct Phase {
    void (*run)(const struct Phase *phase, ptrdiff_t part);
    const void *arguments; /* such as a Product */
    const void *kernels;   /* for one instruction set */
    int64_t num_parts;
} Phase;

static inline ptrdiff_t divide_up(ptrdiff_t count, ptrdiff_t divisor) { return (count + divisor - 1) / divisor; }

/* Returns into how many parts a product is cut: a few for each thread. */
static inline ptrdiff_t count_parts(ptrdiff_t panels, unsigned threads) {
    const ptrdiff_t most_parts = threads <= 1 ? 1 : (ptrdiff_t)threads * 8;
    return panels < most_parts ? panels : most_parts;
}

typedef struct {
    ptrdiff_t first, end;
} PartRange;

/* Returns the panels of a part: a multiple of `panels_at_once`, but for the last part. */
static inline PartRange cut_panels(ptrdiff_t panels, ptrdiff_t panels_at_once, ptrdiff_t part, ptrdiff_t num_parts) {
    const ptrdiff_t units = divide_up(panels, panels_at_once), end = units * (part + 1) / num_parts * panels_at_once;
    return (PartRange){units * part / num_parts * panels_at_once, end < panels ? end : panels};
}

enum { SPINS_BEFORE_SLEEP = 2000, PHASE_SHIFT = 32 };

typedef struct {
    const Phase *phases;
    int64_t count;
    /* The present phase in the high half, its next part in the low half: a thread that adds one gets a part of exactly
     * that phase. A thread whose core is taken away holds up no more than one part. */
    _Alignas(64) uint64_t ticket;
    _Alignas(64) int64_t num_done; /* parts of the present phase */
    uint32_t phase;                /* on which threads sleep */
    uint32_t sleepers;
} PhaseRun;

static inline void wait_for_phase(PhaseRun *run, uint32_t phase) {
    for (int spin = 0; spin < SPINS_BEFORE_SLEEP; spin++) {
        if (__atomic_load_n(&run->phase, __ATOMIC_ACQUIRE) != phase) return;
        __builtin_ia32_pause();
    }
    __atomic_fetch_add(&run->sleepers, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&run->phase, __ATOMIC_SEQ_CST) == phase)
        syscall(SYS_futex, &run->phase, FUTEX_WAIT_PRIVATE, phase, NULL, NULL, 0);
    __atomic_fetch_sub(&run->sleepers, 1, __ATOMIC_SEQ_CST);
}

/* Begins the first phase from `number` on that has parts. The number comes before the ticket: until then no thread can end
 * the phase, so the numbers are stored in their order. */
static inline void begin_phase(PhaseRun *run, int64_t number) {
    while (number < run->count && run->phases[number].num_parts == 0) number++;
    const uint32_t phase = (uint32_t)number;
    run->num_done = 0;
    __atomic_store_n(&run->phase, phase, __ATOMIC_SEQ_CST);
    __atomic_store_n(&run->ticket, (uint64_t)phase << PHASE_SHIFT, __ATOMIC_RELEASE);
    if (__atomic_load_n(&run->sleepers, __ATOMIC_SEQ_CST) != 0)
        syscall(SYS_futex, &run->phase, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void run_parts_of_phases(void *data) {
    PhaseRun *run = data;
    for (;;) {
        const uint64_t ticket = __atomic_fetch_add(&run->ticket, 1, __ATOMIC_ACQ_REL);
        const uint32_t number = (uint32_t)(ticket >> PHASE_SHIFT);
        if (number >= run->count) return;
        const Phase *phase = run->phases + number;
        const int64_t part = (int64_t)(uint32_t)ticket;
        if (part >= phase->num_parts) {
            wait_for_phase(run, number);
            continue;
        }
        phase->run(phase, part);
        if (__atomic_add_fetch(&run->num_done, 1, __ATOMIC_ACQ_REL) == phase->num_parts) begin_phase(run, (int64_t)number + 1);
    }
}

/* Runs the phases. */
static inline void run_phases(const Phase *phases, int64_t count, Parallel parallel, unsigned threads) {
    if (threads <= 1 || (count == 1 && phases->num_parts == 1)) {
        for (int64_t number = 0; number < count; number++)
            for (int64_t part = 0; part < phases[number].num_parts; part++) phases[number].run(phases + number, part);
        return;
    }
    PhaseRun run = {.phases = phases, .count = count};
    begin_phase(&run, 0);
    parallel(run_parts_of_phases, &run, threads, 0);
}
