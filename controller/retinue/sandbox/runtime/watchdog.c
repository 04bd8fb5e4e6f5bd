#include "watchdog.h"

#include <signal.h>

#include "clock.h"

/* The less is left, the sooner the next look: memory is written at a few GiB/s at most. */
enum { SHORTEST_MS = 50, LONGEST_MS = 1000, BYTES_PER_MS = 4 * 1024 * 1024 };
/* Walking page tables may take this part of pid 1's time and no more. */
enum { MEASURE_SHARE = 10 };

static uint64_t limit_bytes;
static uint64_t next_ms;
static int is_awake;

void watchdog_limit(uint64_t bytes) {
    limit_bytes = bytes;
}

void watchdog_wake(void) {
    uint64_t soon = now_ms() + SHORTEST_MS;
    if (!limit_bytes || (is_awake && next_ms <= soon)) return;
    is_awake = 1;
    next_ms = soon;
}

int watchdog_wait_ms(void) {
    uint64_t now = now_ms();
    if (!is_awake) return -1;
    return next_ms > now ? (int)(next_ms - now) : 0;
}

static uint64_t choose_wait_ms(uint64_t used, uint64_t spent_ms) {
    uint64_t wait = used < limit_bytes ? (limit_bytes - used) / BYTES_PER_MS : 0;
    if (wait > LONGEST_MS) wait = LONGEST_MS;
    if (wait < SHORTEST_MS) wait = SHORTEST_MS;
    return wait < spent_ms * MEASURE_SHARE ? spent_ms * MEASURE_SHARE : wait;
}

void watchdog_look(void (*blame)(uint64_t used, uint64_t limit)) {
    uint64_t started = now_ms();
    if (!is_awake || started < next_ms) return;
    struct memory_use use = memory_estimate();
    if (use.bytes > limit_bytes) use = memory_measure();
    if (use.bytes > limit_bytes) {
        kill(-1, SIGKILL);
        blame(use.bytes, limit_bytes);
    }
    is_awake = use.process_count > 0;
    uint64_t now = now_ms();
    next_ms = now + choose_wait_ms(use.bytes, now - started);
}
