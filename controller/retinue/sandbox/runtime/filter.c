#include "filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "filter_calls.h"

enum { ALLOW = SECCOMP_RET_ALLOW };
#define REFUSE(number) (SECCOMP_RET_ERRNO | (number))
#define FAKE REFUSE(0)

/* Both are the same on x86-64 and aarch64, and not in every libc's headers. */
enum { TTY_INSERT = 0x5412, TTY_LINUX = 0x541C, TTY_DISCIPLINE = 0x5423 };
enum { PERSONA_QUERY = -1, PERSONA_NO_RANDOM = 0x40000 };
enum { NETLINK_PROTOCOL_ROUTE = 0, NETLINK_PROTOCOL_DIAG = 4 };
enum { IP_ANY = 0, IP_ICMP = 1, IP_TCP = 6, IP_UDP = 17, IP_ICMPV6 = 58 };
enum { PRIORITY_OF_USER = 2, IO_PRIORITY_OF_USER = 3 };
/* CLONE_NEW*, and for unshare also the time namespace, whose bit clone uses for its signal. */
enum { CLONE_NEW = 0x7E020000, UNSHARE_NEW = CLONE_NEW | 0x80 };
enum { SOCKET_TYPE = 0xF };
enum { IGNORED_ARGUMENT = 5 };

struct call {
    int numbers[2];
};
#define ROW(name, x86_64, aarch64) {{x86_64, aarch64}},
static const struct call denied[] = {CALLS_DENIED(ROW)};
static const struct call of_setup[] = {CALLS_OF_SETUP(ROW)};
static const struct call absent[] = {CALLS_ABSENT(ROW)};
static const struct call faked[] = {CALLS_FAKED(ROW)};
static const struct call not_on_init[] = {CALLS_NOT_ON_INIT(ROW)};
#define LENGTH(list) (sizeof(list) / sizeof *(list))

#define NAME(name, x86_64, aarch64) static const struct call call_##name = {{x86_64, aarch64}};
CALLS_CONDITIONAL(NAME)

static void emit(struct filter *f, struct sock_filter line) {
    f->code[f->size++] = line;
}

static void answer(struct filter *f, uint32_t verdict) {
    emit(f, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, verdict));
}

static void load(struct filter *f, uint32_t offset) {
    emit(f, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset));
}

/* The low half, which is all that the kernel looks at in an int. Little endian. */
static void load_argument(struct filter *f, int index) {
    load(f, (uint32_t)(offsetof(struct seccomp_data, args) + 8 * (size_t)index));
}

static void answer_if_equal(struct filter *f, uint32_t value, uint32_t verdict) {
    emit(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
    answer(f, verdict);
}

static void answer_if_any_bit(struct filter *f, uint32_t mask, uint32_t verdict) {
    emit(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, mask, 0, 1));
    answer(f, verdict);
}

/* What follows, up to the matching leave, is for this value alone. */
static unsigned short enter_if_equal(struct filter *f, uint32_t value) {
    emit(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 0));
    return f->size;
}

static void leave(struct filter *f, unsigned short entered) {
    f->code[entered - 1].jf = (unsigned char)(f->size - entered);
}

/* Begins the rules of one call. They end with an answer, so what they load is never seen by the next ones. */
static unsigned short enter_call(struct filter *f, const struct filter_options *o, const struct call *c) {
    return enter_if_equal(f, (uint32_t)c->numbers[o->machine]);
}

static void answer_calls(struct filter *f, const struct filter_options *o, const struct call *list, size_t length,
                         uint32_t verdict) {
    for (size_t i = 0; i < length; i++)
        if (list[i].numbers[o->machine] >= 0) answer_if_equal(f, (uint32_t)list[i].numbers[o->machine], verdict);
}

/* Ends the rules of a call: allowed with the key, else the other answer. Takes as long for every wrong word. */
static void answer_by_key(struct filter *f, uint64_t key, uint32_t otherwise) {
    uint32_t low = (uint32_t)(offsetof(struct seccomp_data, args) + 8 * IGNORED_ARGUMENT);
    load(f, low + 4);
    emit(f, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_XOR | BPF_K, (uint32_t)(key >> 32)));
    emit(f, (struct sock_filter)BPF_STMT(BPF_MISC | BPF_TAX, 0));
    load(f, low);
    emit(f, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_XOR | BPF_K, (uint32_t)key));
    emit(f, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_OR | BPF_X, 0));
    answer_if_equal(f, 0, ALLOW);
    answer(f, otherwise);
}

static void limit_architecture(struct filter *f, const struct filter_options *o) {
    uint32_t here = o->machine == MACHINE_X86_64 ? AUDIT_ARCH_X86_64 : AUDIT_ARCH_AARCH64;
    load(f, offsetof(struct seccomp_data, arch));
    emit(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, here, 1, 0));
    answer(f, SECCOMP_RET_KILL_PROCESS);
    load(f, offsetof(struct seccomp_data, nr));
    /* x32, and whatever a kernel learns after this table was read through. */
    emit(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, FILTER_LAST_CALL, 0, 1));
    answer(f, REFUSE(ENOSYS));
}

static void limit_setup(struct filter *f, const struct filter_options *o) {
    for (size_t i = 0; i < LENGTH(of_setup); i++) {
        unsigned short in = enter_call(f, o, &of_setup[i]);
        answer_by_key(f, o->keys.setup, REFUSE(EPERM));
        leave(f, in);
    }
    if (!o->fakes_ids) return;
    unsigned short in = enter_call(f, o, &call_capset);
    answer_by_key(f, o->keys.setup, FAKE);
    leave(f, in);
}

static void limit_namespaces(struct filter *f, const struct filter_options *o) {
    unsigned short in = enter_call(f, o, &call_clone);
    load_argument(f, 0);
    emit(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_NEW, 1, 0));
    answer(f, ALLOW);
    answer_by_key(f, o->keys.setup, REFUSE(EPERM));
    leave(f, in);
    in = enter_call(f, o, &call_unshare);
    load_argument(f, 0);
    answer_if_any_bit(f, UNSHARE_NEW, REFUSE(EPERM));
    answer(f, ALLOW);
    leave(f, in);
}

static void limit_terminals(struct filter *f, const struct filter_options *o) {
    unsigned short in = enter_call(f, o, &call_ioctl);
    load_argument(f, 1);
    answer_if_equal(f, TTY_INSERT, REFUSE(EPERM));
    answer_if_equal(f, TTY_LINUX, REFUSE(EPERM));
    answer_if_equal(f, TTY_DISCIPLINE, REFUSE(EPERM));
    answer(f, ALLOW);
    leave(f, in);
}

static void limit_internet(struct filter *f) {
    static const uint32_t protocols[] = {IP_ANY, IP_ICMP, IP_TCP, IP_UDP, IP_ICMPV6};
    load_argument(f, 1);
    emit(f, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, SOCKET_TYPE));
    emit(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SOCK_RAW, 0, 1));
    answer(f, REFUSE(ESOCKTNOSUPPORT));
    load_argument(f, 2);
    for (size_t i = 0; i < LENGTH(protocols); i++) answer_if_equal(f, protocols[i], ALLOW);
    answer(f, REFUSE(EPROTONOSUPPORT));
}

static void limit_families(struct filter *f) {
    load_argument(f, 0);
    answer_if_equal(f, AF_UNIX, ALLOW);
    unsigned short in = enter_if_equal(f, AF_NETLINK);
    load_argument(f, 2);
    answer_if_equal(f, NETLINK_PROTOCOL_ROUTE, ALLOW);
    answer_if_equal(f, NETLINK_PROTOCOL_DIAG, ALLOW);
    answer(f, REFUSE(EPROTONOSUPPORT));
    leave(f, in);
    emit(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 2, 0));
    emit(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 1, 0));
    answer(f, REFUSE(EAFNOSUPPORT));
    limit_internet(f);
}

/* Without a network namespace of its own a sandbox shares an empty one with its neighbours. Connected pairs of
 * streams cannot be given a name; a datagram socket of a pair can (SO_PASSCRED names it by itself).
 */
static void limit_sockets(struct filter *f, const struct filter_options *o) {
    unsigned short in = enter_call(f, o, &call_socket);
    if (o->has_net) limit_families(f);
    else answer(f, REFUSE(EACCES));
    leave(f, in);
    if (o->has_net) return;
    in = enter_call(f, o, &call_socketpair);
    load_argument(f, 1);
    emit(f, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, SOCKET_TYPE));
    answer_if_equal(f, SOCK_STREAM, ALLOW);
    answer_if_equal(f, SOCK_SEQPACKET, ALLOW);
    answer(f, REFUSE(EACCES));
    leave(f, in);
}

/* A program of BPF is freed like a filter (filter_calls.h: seccomp), whoever it is for. */
static void limit_programs(struct filter *f, const struct filter_options *o) {
    static const uint32_t attach[] = {SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF,
                                      SO_ATTACH_REUSEPORT_EBPF};
    unsigned short in = enter_call(f, o, &call_prctl);
    load_argument(f, 0);
    answer_if_equal(f, PR_SET_SECCOMP, REFUSE(EINVAL));
    answer(f, ALLOW);
    leave(f, in);
    in = enter_call(f, o, &call_setsockopt);
    load_argument(f, 1);
    unsigned short of_socket = enter_if_equal(f, SOL_SOCKET);
    load_argument(f, 2);
    for (size_t i = 0; i < LENGTH(attach); i++) answer_if_equal(f, attach[i], REFUSE(ENOPROTOOPT));
    leave(f, of_socket);
    answer(f, ALLOW);
    leave(f, in);
}

static void limit_personality(struct filter *f, const struct filter_options *o) {
    unsigned short in = enter_call(f, o, &call_personality);
    load_argument(f, 0);
    answer_if_equal(f, 0, ALLOW);
    answer_if_equal(f, (uint32_t)PERSONA_QUERY, ALLOW);
    answer_if_equal(f, PERSONA_NO_RANDOM, ALLOW);
    answer(f, REFUSE(EPERM));
    leave(f, in);
}

/* RLIMIT_CORE stays 1: at 0 a core_pattern with a pipe would start its program on the host. RLIMIT_LOCKS says whose
 * process it is (tree.h). A limit of pid 1 is not for those inside: RLIMIT_CPU would end it.
 */
static void limit_limits(struct filter *f, const struct filter_options *o) {
    unsigned short in = enter_call(f, o, &call_setrlimit);
    load_argument(f, 0);
    answer_if_equal(f, RLIMIT_CORE, FAKE);
    answer_if_equal(f, RLIMIT_LOCKS, REFUSE(EPERM));
    answer(f, ALLOW);
    leave(f, in);
    in = enter_call(f, o, &call_prlimit64);
    load_argument(f, 2);
    unsigned short low_is_null = enter_if_equal(f, 0);
    load(f, (uint32_t)(offsetof(struct seccomp_data, args) + 8 * 2 + 4));
    answer_if_equal(f, 0, ALLOW);
    leave(f, low_is_null);
    load_argument(f, 0);
    answer_if_equal(f, 1, REFUSE(EPERM));
    load_argument(f, 1);
    answer_if_equal(f, RLIMIT_CORE, FAKE);
    unsigned short is_mark = enter_if_equal(f, RLIMIT_LOCKS);
    answer_by_key(f, o->keys.mark, REFUSE(EPERM));
    leave(f, is_mark);
    answer(f, ALLOW);
    leave(f, in);
}

static void limit_priority(struct filter *f, const struct filter_options *o, const struct call *c, uint32_t of_user) {
    unsigned short in = enter_call(f, o, c);
    load_argument(f, 0);
    answer_if_equal(f, of_user, REFUSE(EPERM));
    load_argument(f, 1);
    answer_if_equal(f, 1, REFUSE(EPERM));
    answer(f, ALLOW);
    leave(f, in);
}

static void protect_init(struct filter *f, const struct filter_options *o) {
    limit_priority(f, o, &call_setpriority, PRIORITY_OF_USER);
    limit_priority(f, o, &call_ioprio_set, IO_PRIORITY_OF_USER);
    for (size_t i = 0; i < LENGTH(not_on_init); i++) {
        unsigned short in = enter_call(f, o, &not_on_init[i]);
        load_argument(f, 0);
        answer_if_equal(f, 1, REFUSE(EPERM));
        answer(f, ALLOW);
        leave(f, in);
    }
}

void filter_build(struct filter *f, const struct filter_options *o) {
    f->size = 0;
    limit_architecture(f, o);
    answer_calls(f, o, denied, LENGTH(denied), REFUSE(EPERM));
    answer_calls(f, o, absent, LENGTH(absent), REFUSE(ENOSYS));
    limit_setup(f, o);
    if (o->fakes_ids) answer_calls(f, o, faked, LENGTH(faked), FAKE);
    if (!o->has_memfd) answer_calls(f, o, &call_memfd_create, 1, REFUSE(ENOSYS));
    limit_namespaces(f, o);
    limit_terminals(f, o);
    limit_sockets(f, o);
    limit_programs(f, o);
    limit_personality(f, o);
    limit_limits(f, o);
    protect_init(f, o);
    answer(f, ALLOW);
}

int filter_install(const struct filter *f) {
    struct sock_fprog program = {f->size, (struct sock_filter *)f->code};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}
