#ifndef RETINUE_ZYGOTE_H
#define RETINUE_ZYGOTE_H

/* What the paths of a zygote's small root are. A sandbox is set up from there. */
#define ROOT_IMAGES "/img"   /* img0, img1, ...: lower directories, the first on top */
#define ROOT_DEVICES "/dev"
#define ROOT_EMPTY "/empty"  /* read-only, for what nobody shall see */
#define ROOT_STAGE "/stage"  /* where each sandbox mounts its own */
#define ROOT_UPPERS "/disk"  /* upper layers on a disk, where asked for */

/* Becomes the zygote of one image: a small root of its own, then one sandbox per request. The filter of these flags is
 * on. Never returns.
 */
_Noreturn void zygote_main(int sock, unsigned flags);

#endif
