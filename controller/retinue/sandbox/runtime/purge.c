#include "purge.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "clock.h"
#include "message.h"
#include "outbox.h"
#include "tree.h"

enum { PASSES_AT_ONCE = 4, FIRST_WAIT_MS = 1, LONGEST_WAIT_MS = 50 };

struct purge {
    struct purge *next;
    uint32_t request;
    uint32_t exec_id;
    uint64_t ends_ms;
    int wait_ms;
    uint64_t next_ms;
};

static struct purge *active;

int purge_begin(uint32_t request, uint32_t exec_id, uint64_t patience_ms) {
    struct purge *p = malloc(sizeof *p);
    if (!p) return -1;
    *p = (struct purge){active, request, exec_id, now_ms() + patience_ms, FIRST_WAIT_MS, 0};
    active = p;
    return 0;
}

/* A process that was killed starts no other: each pass leaves only what was forked while it was under way. */
static int kill_all(uint32_t exec_id) {
    int left = 0;
    for (int pass = 0; pass < PASSES_AT_ONCE; pass++) {
        left = tree_signal(TREE_MARK(exec_id), SIGKILL);
        if (!left) break;
    }
    return left;
}

void purge_look(void) {
    uint64_t now = now_ms();
    for (struct purge **link = &active; *link;) {
        struct purge *p = *link;
        if (now < p->next_ms) {
            link = &p->next;
            continue;
        }
        int left = kill_all(p->exec_id);
        if (left && now < p->ends_ms) {
            p->next_ms = now + (uint64_t)p->wait_ms;
            if (p->wait_ms < LONGEST_WAIT_MS) p->wait_ms *= 2;
            link = &p->next;
            continue;
        }
        outbox_send(&(struct answer){.kind = WIRE_KILLED, .id = p->request, .number_count = 1, .numbers = {(uint64_t)left}}, -1);
        *link = p->next;
        free(p);
    }
}

int purge_wait_ms(void) {
    uint64_t now = now_ms();
    int wait = -1;
    for (const struct purge *p = active; p; p = p->next) {
        int one = p->next_ms > now ? (int)(p->next_ms - now) : 0;
        if (wait < 0 || one < wait) wait = one;
    }
    return wait;
}
