/* Whose process is it? Each exec has a mark that everything it starts inherits and nothing can change: the hard limit
 * RLIMIT_LOCKS, which the kernel keeps and has ignored since Linux 2.4.25. The filter lets nobody set it without pid 1's
 * key (key.h); a process cannot leave its exec by setsid, double fork, a subreaper or by killing a parent. No process
 * per exec is needed to hold a tree together, and none could be killed to lose it.
 */
#ifndef RETINUE_TREE_H
#define RETINUE_TREE_H

#include <stdint.h>
#include <sys/types.h>

/* 64 bits above the exec's id, so that no ordinary limit looks like a mark. */
#define TREE_MARK(id) ((uint64_t)0x5EA1 << 32 | (uint64_t)(id))
#define TREE_NO_MARK UINT64_MAX

/* Marks the caller and all it will start, for good. 0, or -1 with errno. */
int tree_mark_self(uint32_t id);
/* The mark of a process, also of one that ended and was not reaped; TREE_NO_MARK when it has none. */
uint64_t tree_read_mark(pid_t pid);
/* Signals each living process with the mark, one pass; says how many. Signal 0 counts. */
int tree_signal(uint64_t mark, int signo);

struct tree_process {
    pid_t pid;
    int dir_fd; /* of /proc */
};
/* Calls visit for each process but pid 1. */
void tree_walk(void (*visit)(const struct tree_process *, void *), void *context);
/* Reads /proc/PID/NAME as a string; how many bytes, or -1. */
ssize_t tree_read(const struct tree_process *p, const char *name, char *text, size_t size);
/* Opens /proc once, before anybody could be in the way. 0, or -1 with errno. */
int tree_open(void);

#endif
