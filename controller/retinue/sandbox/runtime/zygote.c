/* The zygote of one image. Its mount namespace holds that image, devices and /proc and nothing else, because each
 * sandbox starts with a copy of it: with 1,000 mounts a create takes five times as long.
 */
#include "zygote.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "init.h"
#include "message.h"
#include "setup.h"
#include "space.h"
#include "step.h"

enum { SOCK = STEP_SOCK, SANDBOX_OOM_SCORE = 500 };

static unsigned filter_flags;
static unsigned lower_count; /* 0: no image yet */
/* Never written to: its end is the zygote's end, also for a sandbox that was not yet listening to PDEATHSIG. */
static int life[2];

static void bind_image(const char *source, unsigned index) {
    char target[32];
    snprintf(target, sizeof target, "img%u", index);
    step_make_directory(target, 0755);
    /* Not made read-only: the overlay never writes here, and flags that the host locked could not be kept. */
    step_mount(source, target, NULL, MS_BIND | MS_REC, NULL);
}

static void make_small_root(struct message *m) {
    step_mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    step_mount("sandbox", "root", "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=0755");
    int devices = open("dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
    char source[32];
    snprintf(source, sizeof source, "/proc/self/fd/%d", devices);
    step(devices >= 0 && chdir("root") == 0, "enter the small root");
    for (unsigned i = 1; i < m->field_count; i++) bind_image(message_field(m, i), i - 1);
    lower_count = m->field_count - 1;
    step_make_directory("dev", 0755);
    step_mount(source, "dev", NULL, MS_BIND | MS_REC, NULL);
    step_make_directory("proc", 0755);
    step_mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    step_make_directory("stage", 0755);
    step_make_directory("empty", 0755);
    if (*message_field(m, 0)) {
        step_make_directory("disk", 0755);
        step_mount(message_field(m, 0), "disk", NULL, MS_BIND | MS_REC, NULL);
    }
    step_pivot_here();
    step_mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL);
}

_Noreturn static void become_sandbox(struct message *m, int sock) {
    struct pollfd parent = {life[0], 0, 0};
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (poll(&parent, 1, 0) != 0 || dup2(sock, SOCK) < 0) _exit(1);
    fcntl(SOCK, F_SETFD, FD_CLOEXEC);
    close_range(SOCK + 1, ~0U, 0);
    setsid();
    step_report_to(SOCK, m->id);
    setup_sandbox(m, lower_count);
    init_main(SOCK, m);
}

static void create(struct message *m) {
    struct answer a = {.kind = WIRE_STARTED, .id = m->id, .number_count = 1};
    int sock = message_take_fd(m, 0);
    unsigned long flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
    if (message_number(m, CONFIG_FLAGS) & FLAG_NET) flags |= CLONE_NEWNET;
    int is_mine = (message_number(m, CONFIG_FLAGS) & FLAGS_OF_FILTER) == filter_flags;
    int pid = -1;
    errno = EINVAL;
    if (lower_count && sock >= 0 && is_mine) pid = clone_into(flags);
    if (pid == 0) {
        /* Only the sandbox may hold the life pipe's end that tells of us. */
        close(life[1]);
        become_sandbox(m, sock);
    }
    a.numbers[0] = (uint64_t)pid;
    if (pid < 0) {
        a.kind = WIRE_FAILED;
        a.numbers[0] = (uint64_t)errno;
        a.text = "clone a sandbox";
    }
    answer_send(SOCK, &a, -1, 0);
    if (sock >= 0) close(sock);
}

static void take_image(struct message *m) {
    char score[16];
    step_report_to(SOCK, m->id);
    errno = EINVAL;
    step(!lower_count && m->field_count > 1, "read the request");
    make_small_root(m);
    /* The OOM killer takes sandboxes before it takes what runs them. */
    snprintf(score, sizeof score, "%d", SANDBOX_OOM_SCORE);
    try_write("/proc/self/oom_score_adj", score);
    step(pipe2(life, O_CLOEXEC) == 0, "pipe");
    answer_send(SOCK, &(struct answer){.kind = WIRE_READY, .id = m->id}, -1, 0);
}

static void obey(struct message *m) {
    if (m->kind == WIRE_IMAGE) take_image(m);
    else if (m->kind == WIRE_CREATE) create(m);
}

_Noreturn void zygote_main(int sock, unsigned flags) {
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    prctl(PR_SET_NAME, "sandbox-zygote", 0, 0, 0);
    setsid();
    step_report_to(sock, 0);
    step_keep_only(sock);
    filter_flags = flags;
    serve(SOCK, obey);
    _exit(0);
}
