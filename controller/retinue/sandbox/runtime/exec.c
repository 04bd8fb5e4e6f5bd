#include "exec.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "message.h"
#include "step.h"
#include "tree.h"

enum { GRACE_CPU_S = 1 };

static char **copy_words(char **from, uint32_t count) {
    char **words = calloc(count + 1, sizeof *words);
    step(words != NULL, "allocate memory");
    memcpy(words, from, count * sizeof *words);
    return words;
}

static void place_descriptors(struct message *m, uint64_t sent) {
    int next = 0;
    for (int fd = 0; fd < 3; fd++) {
        int source = sent >> fd & 1 ? message_take_fd(m, next++) : open("/dev/null", O_RDWR | O_CLOEXEC);
        step(source >= 0 && dup2(source, fd) == fd, "place a descriptor");
    }
    step(close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0, "close descriptors");
}

static void limit_self(uint64_t cpu_s, uint64_t process_max) {
    struct rlimit cpu = {cpu_s, cpu_s + GRACE_CPU_S};
    struct rlimit processes = {process_max, process_max};
    if (cpu_s) step(setrlimit(RLIMIT_CPU, &cpu) == 0, "limit CPU time");
    if (process_max) step(setrlimit(RLIMIT_NPROC, &processes) == 0, "limit processes");
}

_Noreturn static void become_command(struct message *m, int sock, uint64_t process_max) {
    sigset_t none;
    uint32_t argc = (uint32_t)message_number(m, EXEC_ARGV_COUNT);
    uint32_t envc = (uint32_t)message_number(m, EXEC_ENV_COUNT);
    step_report_to(sock, m->id);
    errno = EINVAL;
    step(argc && (uint64_t)1 + argc + envc == m->field_count, "read the request");
    char **argv = copy_words(m->fields + 1, argc);
    environ = copy_words(m->fields + 1 + argc, envc);
    setsid();
    place_descriptors(m, message_number(m, EXEC_FDS));
    limit_self(message_number(m, EXEC_CPU_S), process_max);
    step(tree_mark_self(m->id) == 0, "mark the process");
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    step(chdir(message_field(m, 0)) == 0, "enter the working directory");
    execvp(argv[0], argv);
    step(0, "run the command");
    _exit(127);
}

pid_t exec_start(struct message *m, int sock, uint64_t process_max) {
    /* Not vfork: a process inside that stops the child before its exec would stop pid 1 with it. */
    pid_t pid = fork();
    if (pid == 0) become_command(m, sock, process_max);
    return pid;
}
