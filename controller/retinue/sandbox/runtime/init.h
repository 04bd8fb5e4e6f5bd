#ifndef RETINUE_INIT_H
#define RETINUE_INIT_H

struct message;

/* Serves the host as pid 1 of a sandbox that is set up; ends, and the sandbox with it, when the host's end closes. */
_Noreturn void init_main(int sock, const struct message *config);

#endif
