#ifndef RETINUE_WARDEN_H
#define RETINUE_WARDEN_H

/* Has a zygote cloned under the filter of these flags, a child of the caller that takes its orders from sock. Its pid, or
 * -1 with errno; what: the step that failed.
 */
int warden_clone_zygote(unsigned flags, int sock, const char **what);

#endif
