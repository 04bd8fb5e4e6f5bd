/* Setting something up, step by step: the first step that fails ends the process, and the host is told which it was. */
#ifndef RETINUE_STEP_H
#define RETINUE_STEP_H

#include <stdint.h>

enum { STEP_SOCK = 3 };

/* Where to report, and the request that it is about. */
void step_report_to(int sock, uint32_t id);
/* Ends the process, as FAILED with errno, when ok is 0. */
void step(int ok, const char *what);
/* As mount(2). */
int try_mount(const char *source, const char *target, const char *type, unsigned long flags, const char *options);
void step_mount(const char *source, const char *target, const char *type, unsigned long flags, const char *options);
/* Binds what is there onto target and makes it read-only, without set-id and programs; extra: more MS_ flags. */
void step_bind_read_only(const char *source, const char *target, unsigned long extra);
void step_make_directory(const char *path, unsigned mode);
void step_write(const char *path, const char *text);
/* Makes the current directory the root of this mount namespace and lets go of the old one. */
void step_pivot_here(void);
/* Maps the caller's one user to an inner one. */
void step_map_ids(unsigned inner_uid, unsigned outer_uid, unsigned inner_gid, unsigned outer_gid);
/* Writes what older kernels may not have; says whether it worked. */
int try_write(const char *path, const char *text);
/* As fork, into new namespaces. */
int clone_into(unsigned long flags);
/* Keeps this socket, as STEP_SOCK, and /dev/null as 0, 1 and 2; closes everything else. */
void step_keep_only(int sock);

#endif
