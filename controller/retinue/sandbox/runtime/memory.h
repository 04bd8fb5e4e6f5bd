/* How much memory the sandbox's processes use: anonymous pages and shared memory, not files. */
#ifndef RETINUE_MEMORY_H
#define RETINUE_MEMORY_H

#include <stdint.h>

struct memory_use {
    uint64_t bytes;
    uint32_t process_count;
};

/* Fast and never less than what is used: counts file pages too, and pages that a fork shares once per process. */
struct memory_use memory_estimate(void);
/* What is used, each page once; walks page tables. */
struct memory_use memory_measure(void);

#endif
