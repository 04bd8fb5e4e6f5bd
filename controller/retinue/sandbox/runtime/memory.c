#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tree.h"

static void estimate_one(const struct tree_process *p, void *context) {
    struct memory_use *use = context;
    char text[128];
    unsigned long resident = 0;
    if (tree_read(p, "statm", text, sizeof text) < 0 || sscanf(text, "%*u %lu", &resident) != 1) return;
    use->process_count++;
    use->bytes += (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t read_kib(const char *text, const char *name) {
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

static void measure_one(const struct tree_process *p, void *context) {
    struct memory_use *use = context;
    char text[4096];
    if (tree_read(p, "smaps_rollup", text, sizeof text) > 0 && strstr(text, "Pss_Anon:")) {
        use->process_count++;
        use->bytes += 1024 * (read_kib(text, "Pss_Anon:") + read_kib(text, "Pss_Shmem:"));
        return;
    }
    /* It made itself undumpable, or is about to end: then what it shares counts whole. A zombie is no process more. */
    if (tree_read(p, "status", text, sizeof text) < 0 || strstr(text, "State:\tZ")) return;
    use->process_count++;
    use->bytes += 1024 * (read_kib(text, "RssAnon:") + read_kib(text, "RssShmem:"));
}

struct memory_use memory_estimate(void) {
    struct memory_use use = {0, 0};
    tree_walk(estimate_one, &use);
    return use;
}

struct memory_use memory_measure(void) {
    struct memory_use use = {0, 0};
    tree_walk(measure_one, &use);
    return use;
}
