#ifndef RETINUE_EXEC_H
#define RETINUE_EXEC_H

#include <stdint.h>
#include <sys/types.h>

struct message;

/* Starts the command of an EXEC message as a session of its own; its pid, or -1 with errno. When the child cannot become
 * the command, it says so itself (FAILED on the socket) and exits with 126 or 127. process_max: RLIMIT_NPROC, 0: as is.
 */
pid_t exec_start(struct message *m, int sock, uint64_t process_max);

#endif
