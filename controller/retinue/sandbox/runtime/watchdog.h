/* Memory of a whole sandbox, without a cgroup: looked at while anything runs, and all of it killed above the limit. */
#ifndef RETINUE_WATCHDOG_H
#define RETINUE_WATCHDOG_H

#include <stdint.h>

#include "memory.h"

/* 0: no limit. */
void watchdog_limit(uint64_t bytes);
/* Something was started: look again soon. */
void watchdog_wake(void);
/* Looks, if it is time; over the limit everything but pid 1 is killed and blame is called. */
void watchdog_look(void (*blame)(uint64_t used, uint64_t limit));
/* How long poll may sleep; -1 for ever: nothing runs. */
int watchdog_wait_ms(void);

#endif
