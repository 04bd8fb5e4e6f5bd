/* Killing all of an exec, however it hides and however fast it forks: pass after pass until none is alive. */
#ifndef RETINUE_PURGE_H
#define RETINUE_PURGE_H

#include <stdint.h>

/* Begins at once; request gets KILLED when nothing is left, or with what is left after patience_ms. -1: no memory. */
int purge_begin(uint32_t request, uint32_t exec_id, uint64_t patience_ms);
void purge_look(void);
/* How long poll may sleep; -1 for ever. */
int purge_wait_ms(void);

#endif
