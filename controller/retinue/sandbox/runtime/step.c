#include "step.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "key.h"
#include "message.h"

static int report_sock = -1;
static uint32_t report_id;

void step_report_to(int sock, uint32_t id) {
    report_sock = sock;
    report_id = id;
}

void step(int ok, const char *what) {
    if (ok) return;
    struct answer a = {.kind = WIRE_FAILED, .id = report_id, .number_count = 1, .numbers = {(uint64_t)errno}, .text = what};
    answer_send(report_sock, &a, -1, 0);
    _exit(1);
}

int try_mount(const char *source, const char *target, const char *type, unsigned long flags, const char *options) {
    return (int)call_as_setup(SYS_mount, (long)source, (long)target, (long)type, (long)flags, (long)options);
}

void step_mount(const char *source, const char *target, const char *type, unsigned long flags, const char *options) {
    char what[256];
    snprintf(what, sizeof what, "mount %s", target);
    step(try_mount(source, target, type, flags, options) == 0, what);
}

void step_bind_read_only(const char *source, const char *target, unsigned long extra) {
    step_mount(source, target, NULL, MS_BIND | (extra & MS_REC), NULL);
    step_mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | (extra & ~MS_REC), NULL);
}

void step_make_directory(const char *path, unsigned mode) {
    step(mkdir(path, mode) == 0 && chmod(path, mode) == 0, path);
}

int try_write(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t written = write(fd, text, strlen(text));
    close(fd);
    return written == (ssize_t)strlen(text);
}

void step_write(const char *path, const char *text) {
    step(try_write(path, text), path);
}

void step_pivot_here(void) {
    step(call_as_setup(SYS_pivot_root, (long)".", (long)".", 0, 0, 0) == 0, "pivot_root");
    step(call_as_setup(SYS_umount2, (long)".", MNT_DETACH, 0, 0, 0) == 0, "detach the old root");
    step(chdir("/") == 0, "chdir /");
}

void step_map_ids(unsigned inner_uid, unsigned outer_uid, unsigned inner_gid, unsigned outer_gid) {
    char line[64];
    step_write("/proc/self/setgroups", "deny");
    snprintf(line, sizeof line, "%u %u 1\n", inner_uid, outer_uid);
    step_write("/proc/self/uid_map", line);
    snprintf(line, sizeof line, "%u %u 1\n", inner_gid, outer_gid);
    step_write("/proc/self/gid_map", line);
}

int clone_into(unsigned long flags) {
    return (int)call_as_setup(SYS_clone, (long)(flags | SIGCHLD), 0, 0, 0, 0);
}

void step_keep_only(int sock) {
    step(sock == STEP_SOCK || dup2(sock, STEP_SOCK) == STEP_SOCK, "keep the socket");
    step_report_to(STEP_SOCK, report_id);
    step(fcntl(STEP_SOCK, F_SETFD, FD_CLOEXEC) == 0 && close_range(STEP_SOCK + 1, ~0U, 0) == 0, "close descriptors");
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    step(null >= 0, "open /dev/null");
    for (int i = 0; i < STEP_SOCK; i++) step(dup2(null, i) == i, "place a descriptor");
    close(null);
}
