/* retinue-sandbox --space           a node space, for the host at the other end of descriptor 0
 * retinue-sandbox --filter WHAT     prints a filter, one "code jt jf k" per line, for tests and for reading
 */
#include <stdio.h>
#include <string.h>

#include "filter.h"
#include "space.h"

/* Whoever reads a filter can tell its keys by them. Real ones are drawn at random and shown to nobody. */
static const struct keys shown = {0x5E70123456789ABC, 0x3A4BFEDCBA987654};

/* WHAT: x86_64 or aarch64, then any of +net +fake +memfd. */
static int print_filter(const char *what) {
    static struct filter built;
    struct filter_options options = {
        .machine = strncmp(what, "aarch64", 7) ? MACHINE_X86_64 : MACHINE_AARCH64,
        .has_net = strstr(what, "+net") != NULL,
        .fakes_ids = strstr(what, "+fake") != NULL,
        .has_memfd = strstr(what, "+memfd") != NULL,
        .keys = shown,
    };
    filter_build(&built, &options);
    for (unsigned i = 0; i < built.size; i++) {
        const struct sock_filter *line = &built.code[i];
        printf("%u %u %u %u\n", line->code, line->jt, line->jf, line->k);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--space")) return space_main();
    if (argc == 3 && !strcmp(argv[1], "--filter")) return print_filter(argv[2]);
    fputs("usage: retinue-sandbox --space | --filter MACHINE[+net][+fake][+memfd]\n", stderr);
    return 2;
}
