/* Pid 1 of a sandbox: starts commands, reaps everything, keeps memory below its limit, kills whole trees. What runs
 * beside it is hostile: nothing here waits for a process, and an answer that the host does not read yet is kept.
 */
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exec.h"
#include "message.h"
#include "outbox.h"
#include "purge.h"
#include "step.h"
#include "tree.h"
#include "watchdog.h"

struct exec {
    struct exec *next;
    uint32_t id;
    pid_t pid;
    enum wire_why why; /* what we did to it; EXITED: nothing */
    uint64_t utime_us; /* of orphans that we reaped for it */
    uint64_t stime_us;
};

static int sock;
static uint64_t process_max;
static struct exec *running;

static void answer(uint32_t kind, uint32_t id, uint64_t number) {
    outbox_send(&(struct answer){.kind = kind, .id = id, .number_count = 1, .numbers = {number}}, -1);
}

static void answer_failure(uint32_t id, const char *what) {
    outbox_send(&(struct answer){.kind = WIRE_FAILED, .id = id, .number_count = 1, .numbers = {(uint64_t)errno}, .text = what},
                -1);
}

static struct exec *find_exec(uint32_t id) {
    struct exec *e = running;
    while (e && e->id != id) e = e->next;
    return e;
}

static void start_exec(struct message *m) {
    struct exec *e = calloc(1, sizeof *e);
    pid_t pid = -1;
    if (e) pid = exec_start(m, sock, process_max);
    if (pid < 0) {
        answer_failure(m->id, "start a process");
        free(e);
        return;
    }
    e->id = m->id;
    e->pid = pid;
    e->next = running;
    running = e;
}

static uint64_t microseconds(struct timeval t) {
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec;
}

static void report_exit(struct exec **link, int status, const struct rusage *used) {
    struct exec *e = *link;
    struct answer a = {.kind = WIRE_EXITED, .id = e->id, .number_count = EXITED_NUMBERS};
    a.numbers[EXITED_STATUS] = (uint64_t)(unsigned)status;
    a.numbers[EXITED_WHY] = WIFEXITED(status) ? WHY_EXITED : e->why ? e->why : WHY_SIGNALLED;
    a.numbers[EXITED_UTIME_US] = e->utime_us + microseconds(used->ru_utime);
    a.numbers[EXITED_STIME_US] = e->stime_us + microseconds(used->ru_stime);
    a.numbers[EXITED_MAXRSS_KIB] = (uint64_t)used->ru_maxrss;
    outbox_send(&a, -1);
    *link = e->next;
    free(e);
}

static void account(pid_t pid, uint64_t mark, int status, const struct rusage *used) {
    for (struct exec **link = &running; *link; link = &(*link)->next) {
        if ((*link)->pid == pid) {
            report_exit(link, status, used);
            return;
        }
        if (TREE_MARK((*link)->id) != mark) continue;
        (*link)->utime_us += microseconds(used->ru_utime);
        (*link)->stime_us += microseconds(used->ru_stime);
        return;
    }
}

static void reap(void) {
    siginfo_t ended = {0};
    while (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid) {
        struct rusage used;
        int status;
        uint64_t mark = tree_read_mark(ended.si_pid);
        if (wait4(ended.si_pid, &status, 0, &used) == ended.si_pid) account(ended.si_pid, mark, status, &used);
        ended.si_pid = 0;
    }
}

static void signal_exec(const struct message *m) {
    uint32_t id = (uint32_t)message_number(m, 0);
    int signo = (int)message_number(m, 1);
    struct exec *e = find_exec(id);
    int count = 0;
    switch (message_number(m, 2)) {
    case TARGET_LEADER: count = e && kill(e->pid, signo) == 0; break;
    case TARGET_GROUP: count = e && kill(-e->pid, signo) == 0; break;
    default: count = tree_signal(TREE_MARK(id), signo);
    }
    answer(WIRE_DONE, m->id, (uint64_t)count);
}

static void kill_exec(const struct message *m) {
    uint32_t id = (uint32_t)message_number(m, 0);
    struct exec *e = find_exec(id);
    if (e && e->why == WHY_EXITED) e->why = WHY_KILLED;
    /* A leader that was just forked may not have its mark yet. */
    if (e) kill(e->pid, SIGKILL);
    if (purge_begin(m->id, id, message_number(m, 1))) answer_failure(m->id, "kill");
}

static void blame_memory(uint64_t used, uint64_t limit) {
    for (struct exec *e = running; e; e = e->next) e->why = WHY_MEMORY;
    outbox_send(&(struct answer){.kind = WIRE_MEMORY, .number_count = 2, .numbers = {used, limit}}, -1);
}

static void send_root(uint32_t id) {
    int fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    outbox_send(&(struct answer){.kind = WIRE_DONE, .id = id, .number_count = 1}, fd);
    close(fd);
}

static void send_usage(uint32_t id) {
    struct answer a = {.kind = WIRE_USAGE, .id = id, .number_count = USAGE_NUMBERS};
    struct statvfs disk = {0};
    struct memory_use use = memory_measure();
    statvfs("/", &disk);
    a.numbers[USAGE_MEMORY_BYTES] = use.bytes;
    a.numbers[USAGE_PROCESS_COUNT] = use.process_count;
    a.numbers[USAGE_DISK_BYTES] = (disk.f_blocks - disk.f_bfree) * disk.f_frsize;
    a.numbers[USAGE_DISK_MAX_BYTES] = disk.f_blocks * disk.f_frsize;
    a.numbers[USAGE_INODE_COUNT] = disk.f_files - disk.f_ffree;
    a.numbers[USAGE_INODE_MAX_COUNT] = disk.f_files;
    outbox_send(&a, -1);
}

static void obey(struct message *m) {
    switch (m->kind) {
    case WIRE_EXEC: start_exec(m); break;
    case WIRE_SIGNAL: signal_exec(m); break;
    case WIRE_KILL: kill_exec(m); break;
    case WIRE_ROOT: send_root(m->id); break;
    case WIRE_STATS: send_usage(m->id); break;
    default: errno = ENOSYS; answer_failure(m->id, "unknown request");
    }
}

static int shorter(int a, int b) {
    return a < 0 ? b : b < 0 || a < b ? a : b;
}

_Noreturn static void serve_sandbox(int deaths) {
    struct pollfd watched[2] = {{sock, POLLIN, 0}, {deaths, POLLIN, 0}};
    for (;;) {
        struct signalfd_siginfo ignored;
        struct message m;
        watched[0].events = outbox_is_empty() ? POLLIN : POLLIN | POLLOUT;
        if (poll(watched, 2, shorter(watchdog_wait_ms(), purge_wait_ms())) < 0 && errno != EINTR) _exit(1);
        while (read(deaths, &ignored, sizeof ignored) > 0) continue;
        reap();
        watchdog_look(blame_memory);
        purge_look();
        outbox_flush();
        int got = message_receive(sock, &m);
        if (got == 0) _exit(0);
        if (got < 0) continue;
        obey(&m);
        message_release(&m);
        watchdog_wake();
    }
}

_Noreturn void init_main(int control, const struct message *config) {
    sigset_t children;
    sock = control;
    process_max = message_number(config, CONFIG_PID_COUNT);
    prctl(PR_SET_NAME, "sandbox-init", 0, 0, 0);
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_SETMASK, &children, NULL);
    int deaths = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    step(deaths >= 0 && tree_open() == 0, "open what pid 1 needs");
    watchdog_limit(message_number(config, CONFIG_MEMORY_BYTES));
    outbox_open(sock);
    answer(WIRE_READY, config->id, 0);
    serve_sandbox(deaths);
}
