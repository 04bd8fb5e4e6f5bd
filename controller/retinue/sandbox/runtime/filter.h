/* Which system calls a sandbox may make. The numbers of both architectures are in filter_calls.h. */
#ifndef RETINUE_FILTER_H
#define RETINUE_FILTER_H

#include <linux/filter.h>

#include "key.h"

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
    struct keys keys;
};

struct filter {
    unsigned short size;
    struct sock_filter code[FILTER_MAX];
};

/* What a warden puts on itself, and zygotes, sandboxes and all that runs in them inherit. No other is ever installed. */
void filter_build(struct filter *f, const struct filter_options *options);
/* 0, or -1 with errno. NO_NEW_PRIVS must be set. */
int filter_install(const struct filter *f);

#endif
