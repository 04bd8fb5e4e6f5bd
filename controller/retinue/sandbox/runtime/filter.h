/* Which system calls a sandbox may make. The numbers of both architectures are in filter_calls.h. */
#ifndef RETINUE_FILTER_H
#define RETINUE_FILTER_H

#include <linux/filter.h>

enum { FILTER_MAX = 512, FILTER_LAST_CALL = 469 };

enum filter_machine { MACHINE_X86_64, MACHINE_AARCH64 };

#if defined(__x86_64__)
#define MACHINE_HERE MACHINE_X86_64
#elif defined(__aarch64__)
#define MACHINE_HERE MACHINE_AARCH64
#else
#error "no table of system calls for this architecture"
#endif

struct filter_options {
    enum filter_machine machine;
    int has_net;
    int fakes_ids;
    int has_memfd;
};

struct filter {
    unsigned short size;
    struct sock_filter code[FILTER_MAX];
};

/* What pid 1 puts on itself, and all that it starts inherits. */
void filter_build(struct filter *f, const struct filter_options *options);
/* What each exec gets on top: RLIMIT_LOCKS, which says whose process it is, cannot be changed (tree.h). */
void filter_build_mark(struct filter *f, enum filter_machine machine);
/* 0, or -1 with errno. NO_NEW_PRIVS must be set. */
int filter_install(const struct filter *f);

#endif
