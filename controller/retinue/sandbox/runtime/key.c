#include "key.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>

enum { STACK_OF_CALLS = 4096, ERRNO_MAX = 4095 };

static struct keys keys;

int keys_draw(void) {
    if (getrandom(&keys, sizeof keys, 0) != sizeof keys) return -1;
    errno = EAGAIN;
    return keys.setup && keys.mark ? 0 : -1;
}

const struct keys *keys_drawn(void) {
    return &keys;
}

void keys_forget_setup(void) {
    explicit_bzero(&keys.setup, sizeof keys.setup);
}

__attribute__((noinline)) void keys_wipe_stack(void) {
    char below[STACK_OF_CALLS];
    explicit_bzero(below, sizeof below);
}

/* As syscall(2), which on x86-64 would leave the key on the stack; here it is in one register, and only for the call. */
static long call_with(uint64_t key, long number, const long *words) {
    long result;
#if defined(__x86_64__)
    register long fourth __asm__("r10") = words[3];
    register long fifth __asm__("r8") = words[4];
    register uint64_t sixth __asm__("r9") = key;
    __asm__ volatile("syscall\n\txorl %%r9d, %%r9d"
                     : "=a"(result), "+r"(sixth)
                     : "0"(number), "D"(words[0]), "S"(words[1]), "d"(words[2]), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long which __asm__("x8") = number;
    register long first __asm__("x0") = words[0];
    register long second __asm__("x1") = words[1];
    register long third __asm__("x2") = words[2];
    register long fourth __asm__("x3") = words[3];
    register long fifth __asm__("x4") = words[4];
    register uint64_t sixth __asm__("x5") = key;
    __asm__ volatile("svc 0\n\tmov x5, xzr"
                     : "+r"(first), "+r"(sixth)
                     : "r"(which), "r"(second), "r"(third), "r"(fourth), "r"(fifth)
                     : "memory");
    result = first;
#endif
    if (result >= 0 || result < -ERRNO_MAX) return result;
    errno = (int)-result;
    return -1;
}

long call_as_setup(long number, long a, long b, long c, long d, long e) {
    return call_with(keys.setup, number, (const long[]){a, b, c, d, e});
}

long call_as_mark(long number, long a, long b, long c, long d) {
    return call_with(keys.mark, number, (const long[]){a, b, c, d, 0});
}
