/* The warden: a child of the space that put the filter on, once for the whole node, and clones zygotes, which have it
 * from there. One for each combination of the flags that a filter depends on. The space itself has none, because what
 * it starts besides (squashfuse) must mount.
 *
 * A filter of its own for each sandbox would cost each create the kernel's compiler, and their end at one moment can
 * lock up a whole node (docs/decisions, 29).
 */
#include "warden.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "filter.h"
#include "key.h"
#include "message.h"
#include "space.h"
#include "step.h"
#include "zygote.h"

/* Not 0: a core_pattern with a pipe ignores 0 and stops at 1. */
enum { CORE_NEVER = 1, PATIENCE_MS = 5000, TRIES = 2 };

static const char putting_on[] = "put on the filter of system calls";
static unsigned filter_flags;
/* The space's ends of their sockets, by flags; 0: there is none. */
static int wardens[FLAGS_OF_FILTER + 1];

static void clone_zygote(struct message *m) {
    struct answer a = {.kind = WIRE_STARTED, .id = m->id, .number_count = 1};
    int sock = message_take_fd(m, 0);
    /* A child of our parent, who hears of its end and whose end is its own: we can be killed without loss. */
    int pid = clone_into(CLONE_NEWNS | CLONE_PARENT);
    if (pid == 0) zygote_main(sock, filter_flags);
    a.numbers[0] = (uint64_t)pid;
    if (pid < 0) {
        a.kind = WIRE_FAILED;
        a.numbers[0] = (uint64_t)errno;
    }
    answer_send(STEP_SOCK, &a, -1, 0);
    close(sock);
}

static void put_filter_on(void) {
    static struct filter built;
    struct filter_options options = {
        .machine = MACHINE_HERE,
        .has_net = (filter_flags & FLAG_NET) != 0,
        .fakes_ids = (filter_flags & FLAG_FAKE_IDS) != 0,
        .has_memfd = (filter_flags & FLAG_MEMFD) != 0,
    };
    step(keys_draw() == 0, "draw the keys of the filter");
    options.keys = *keys_drawn();
    filter_build(&built, &options);
    step(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "set no_new_privs");
    step(filter_install(&built) == 0, putting_on);
    /* The keys are in all of these, and pid 1 of each sandbox would inherit them. */
    explicit_bzero(&built, sizeof built);
    explicit_bzero(&options, sizeof options);
    keys_wipe_stack();
}

_Noreturn static void warden_main(int sock, unsigned flags) {
    struct rlimit never = {CORE_NEVER, CORE_NEVER};
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    prctl(PR_SET_NAME, "sandbox-warden", 0, 0, 0);
    setsid();
    step_report_to(sock, 0);
    step_keep_only(sock);
    step(setrlimit(RLIMIT_CORE, &never) == 0, "limit core files");
    filter_flags = flags;
    put_filter_on();
    serve(STEP_SOCK, clone_zygote);
    _exit(0);
}

static int start_warden(unsigned flags) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) return -1;
    pid_t pid = fork();
    if (pid == 0) warden_main(pair[1], flags);
    close(pair[1]);
    if (pid > 0) wardens[flags] = pair[0];
    else close(pair[0]);
    return pid > 0 ? 0 : -1;
}

static void forget_warden(unsigned flags) {
    close(wardens[flags]);
    wardens[flags] = 0;
}

/* The pid that answers a request; -1: refused, with errno; -2: the warden is gone. */
static int hear(unsigned flags, uint32_t id) {
    struct pollfd heard = {wardens[flags], POLLIN, 0};
    struct message m;
    for (;;) {
        errno = ETIMEDOUT;
        if (poll(&heard, 1, PATIENCE_MS) <= 0) return -1;
        if (message_receive(wardens[flags], &m) != 1) return -2;
        uint32_t answered = m.id;
        int pid = m.kind == WIRE_STARTED ? (int)message_number(&m, 0) : -1;
        int number = (int)message_number(&m, 0);
        message_release(&m);
        errno = number;
        /* Id 0: it could not become a warden. Another's: the answer to a request that was given up. */
        if (answered == id || answered == 0) return pid;
    }
}

int warden_clone_zygote(unsigned flags, int sock, const char **what) {
    static uint32_t last_id;
    struct answer request = {.kind = WIRE_ZYGOTE};
    int pid = -2;
    for (int i = 0; i < TRIES && pid == -2; i++) {
        *what = "start a warden";
        if (!wardens[flags] && start_warden(flags)) return -1;
        *what = putting_on;
        request.id = ++last_id;
        if (answer_send(wardens[flags], &request, sock, MSG_DONTWAIT) == 0) pid = hear(flags, request.id);
        else if (errno == EAGAIN) return -1;
        /* It was killed, and its zygotes go on: the next one takes over. */
        if (pid == -2) forget_warden(flags);
    }
    return pid;
}
