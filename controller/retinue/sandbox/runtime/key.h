/* What our own code may do under the filter and what it starts may not. The filter lets some calls pass when the word
 * behind their last argument, which the kernel ignores, is one of two random keys:
 *
 *   setup  what makes a sandbox out of a plain child: pid 1 forgets it before it serves
 *   mark   an exec's mark (tree.h): pid 1 keeps it, and nobody inside can read pid 1 or what it forks before the exec
 */
#ifndef RETINUE_KEY_H
#define RETINUE_KEY_H

#include <stdint.h>

struct keys {
    uint64_t setup;
    uint64_t mark;
};

/* New ones, for the caller and all that it forks. 0, or -1 with errno. */
int keys_draw(void);
const struct keys *keys_drawn(void);
void keys_forget_setup(void);
/* What the caller's callees left behind on the stack, for all that it forks. */
void keys_wipe_stack(void);

/* System calls as syscall(2) makes them, with a key. Without keys (nothing is filtered) they are plain calls. */
long call_as_setup(long number, long a, long b, long c, long d, long e);
long call_as_mark(long number, long a, long b, long c, long d);

#endif
