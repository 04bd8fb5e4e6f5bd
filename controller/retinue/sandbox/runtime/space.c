/* The node space: one user, mount, pid, ipc, uts and (empty) network namespace per node, in which image mounts, zygotes
 * and sandboxes live. The caller of space_main is only its parent; pid 1 of the new pid namespace does the work, so
 * whatever ends it ends everything below.
 */
#include "space.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "message.h"
#include "step.h"
#include "warden.h"

enum { HOST = 0 };

static void make_devices(void) {
    static const char *const devices[] = {"null", "zero", "full", "random", "urandom", "tty"};
    static const char *const links[][2] = {
        {"/proc/self/fd", "dev/fd"},       {"/proc/self/fd/0", "dev/stdin"}, {"/proc/self/fd/1", "dev/stdout"},
        {"/proc/self/fd/2", "dev/stderr"}, {"pts/ptmx", "dev/ptmx"},
    };
    char source[64];
    char target[64];
    step_make_directory("dev", 0755);
    step_mount("sandbox", "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,nr_inodes=64,mode=0755");
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        snprintf(source, sizeof source, "/dev/%s", devices[i]);
        snprintf(target, sizeof target, "dev/%s", devices[i]);
        int fd = open(target, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
        step(fd >= 0 && close(fd) == 0, target);
        /* Read-only: a device can be written all the same, but the host's node keeps its times. */
        step_bind_read_only(source, target, MS_NOEXEC);
    }
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        step(symlink(links[i][0], links[i][1]) == 0, links[i][1]);
    step_make_directory("dev/pts", 0755);
    step_make_directory("dev/shm", 01777);
    step_mount(NULL, "dev", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NOEXEC, NULL);
}

static void make_base(struct message *m) {
    step_report_to(HOST, m->id);
    step_mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL);
    step_mount("sandbox", message_field(m, 0), "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,mode=0700");
    step(chdir(message_field(m, 0)) == 0, "enter the base directory");
    step_make_directory("mnt", 0755);
    step_make_directory("root", 0755);
    make_devices();
    answer_send(HOST, &(struct answer){.kind = WIRE_READY, .id = m->id}, -1, 0);
}

static void answer_started(uint32_t id, int pid, const char *what) {
    struct answer a = {.kind = WIRE_STARTED, .id = id, .number_count = 1, .numbers = {(uint64_t)pid}};
    if (pid < 0) {
        a.kind = WIRE_FAILED;
        a.numbers[0] = (uint64_t)errno;
        a.text = what;
    }
    answer_send(HOST, &a, -1, 0);
}

static void start_zygote(struct message *m) {
    uint32_t id = m->id;
    const char *what = "read the request";
    int sock = message_take_fd(m, 0);
    int pid = -1;
    errno = EINVAL;
    if (sock >= 0) pid = warden_clone_zygote((unsigned)message_number(m, 0) & FLAGS_OF_FILTER, sock, &what);
    answer_started(id, pid, what);
    if (sock >= 0) close(sock);
}

static void run_helper(struct message *m) {
    uint32_t argc = (uint32_t)message_number(m, HELPER_ARGV_COUNT);
    char **argv = calloc(argc + 1, sizeof *argv);
    sigset_t none;
    sigemptyset(&none);
    if (!argv || !argc || argc > m->field_count) _exit(127);
    memcpy(argv, m->fields, argc * sizeof *argv);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    setsid();
    for (int i = 0; i < 3; i++)
        if (dup2(m->fds[i], i) < 0) _exit(127);
    close_range(3, ~0U, 0);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (chdir("/") == 0) execve(argv[0], argv, m->fields + argc);
    _exit(errno == ENOENT ? 127 : 126);
}

static void start_helper(struct message *m) {
    int pid = -1;
    errno = EINVAL;
    if (m->fd_count == 3) pid = fork();
    if (pid == 0) run_helper(m);
    answer_started(m->id, pid, "start a helper");
}

static void answer_outcome(uint32_t id, int ok, const char *what) {
    struct answer a = {.kind = WIRE_DONE, .id = id, .number_count = 1};
    if (!ok) {
        a.kind = WIRE_FAILED;
        a.numbers[0] = (uint64_t)errno;
        a.text = what;
    }
    answer_send(HOST, &a, -1, 0);
}

static void send_base(uint32_t id) {
    int fd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    answer_send(HOST, &(struct answer){.kind = WIRE_DONE, .id = id}, fd, 0);
    close(fd);
}

static void obey(struct message *m) {
    switch (m->kind) {
    case WIRE_SPACE: make_base(m); break;
    case WIRE_ZYGOTE: start_zygote(m); break;
    case WIRE_HELPER: start_helper(m); break;
    case WIRE_UNMOUNT: answer_outcome(m->id, umount2(message_field(m, 0), MNT_DETACH) == 0, "unmount"); break;
    case WIRE_SIGNAL_CHILD:
        /* Pid 1 and 0 would be us and all of us. */
        errno = ESRCH;
        answer_outcome(m->id, message_number(m, 0) > 1 && kill((pid_t)message_number(m, 0), (int)message_number(m, 1)) == 0,
                       "signal");
        break;
    case WIRE_ROOT: send_base(m->id); break;
    default: errno = ENOSYS; answer_outcome(m->id, 0, "unknown request");
    }
}

static void reap_and_report(int sock) {
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        struct answer a = {.kind = WIRE_GONE, .number_count = 2, .numbers = {(uint64_t)pid, (uint64_t)(unsigned)status}};
        answer_send(sock, &a, -1, 0);
    }
}

void serve(int sock, void (*obey_one)(struct message *)) {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_SETMASK, &children, NULL);
    int deaths = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    struct pollfd watched[2] = {{sock, POLLIN, 0}, {deaths, POLLIN, 0}};
    for (;;) {
        struct signalfd_siginfo ignored;
        struct message m;
        if (poll(watched, 2, -1) < 0 && errno != EINTR) _exit(1);
        while (read(deaths, &ignored, sizeof ignored) > 0) continue;
        reap_and_report(sock);
        int got = message_receive(sock, &m);
        if (got == 0) _exit(0);
        if (got < 0) continue;
        obey_one(&m);
        message_release(&m);
    }
}

int space_main(void) {
    unsigned uid = geteuid();
    unsigned gid = getegid();
    step_report_to(HOST, 0);
    fcntl(HOST, F_SETFD, FD_CLOEXEC);
    /* What the host ignores (Python: SIGPIPE, SIGXFSZ) would be ignored by every command too. */
    for (int signo = 1; signo < NSIG; signo++) signal(signo, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    int pid = clone_into(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS);
    step(pid >= 0, "new namespaces");
    if (pid > 0) {
        int status = 0;
        close(HOST);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    /* Parent gone before this line: then the host is gone too, and its end of the socket says so. */
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    prctl(PR_SET_NAME, "sandbox-space", 0, 0, 0);
    setsid();
    step_map_ids(0, uid, 0, gid);
    umask(0);
    serve(HOST, obey);
    return 0;
}
