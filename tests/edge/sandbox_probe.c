/* What a hostile program tries, one try per run: prints "ok" or the name of the errno. Compiled by the tests. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int say(long result) {
    puts(result >= 0 ? "ok" : strerrorname_np(errno));
    return 0;
}

/* probe call NUMBER ARGS...: the bare system call. */
static int try_call(int argc, char **argv) {
    long a[7] = {0};
    for (int i = 2; i < argc && i < 9; i++) a[i - 2] = (long)strtoul(argv[i], NULL, 0);
    return say(syscall(a[0], a[1], a[2], a[3], a[4], a[5], a[6]));
}

static int abstract(const char *name, struct sockaddr_un *address) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    strncpy(address->sun_path + 1, name, sizeof address->sun_path - 2);
    return (int)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

static int try_connect(const char *name) {
    struct sockaddr_un address;
    int size = abstract(name, &address);
    return say(connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&address, (socklen_t)size));
}

static int try_listen(const char *name) {
    struct sockaddr_un address;
    int size = abstract(name, &address);
    int sock = socket(AF_UNIX, SOCK_STREAM, 0);
    int result = bind(sock, (struct sockaddr *)&address, (socklen_t)size) ? -1 : listen(sock, 1);
    say(result);
    fflush(stdout);
    pause();
    return 0;
}

/* probe fork N: how many children there can be at once. */
static int try_fork(int wanted) {
    int made = 0;
    while (made < wanted) {
        pid_t pid = fork();
        if (pid < 0) break;
        if (pid == 0) pause();
        made++;
    }
    printf("%d\n", made);
    fflush(stdout);
    kill(0, SIGKILL);
    return 0;
}

/* probe bomb: forks until it is killed; each child leaves its session and forgets its parent. */
static int bomb(void) {
    for (;;) {
        if (fork() == 0) {
            setsid();
            prctl(PR_SET_CHILD_SUBREAPER, 1);
            signal(SIGTERM, SIG_IGN);
        }
    }
}

/* probe hide: a double fork, in a session of its own, that nobody waits for and that tries to lose its mark. */
static int hide(void) {
    struct rlimit none = {7, 7};
    signal(SIGTERM, SIG_IGN);
    if (fork()) return 0;
    setsid();
    if (fork()) _exit(0);
    setrlimit(10, &none);
    syscall(SYS_prlimit64, 0, 10, &none, NULL);
    syscall(SYS_prlimit64, getpid(), 10, &none, NULL);
    for (int fd = 0; fd < 3; fd++) close(fd);
    for (;;) pause();
}

/* probe eat MIB HOW: writes to that much memory, private or shared or by forks of one page set. */
static int eat(size_t mib, const char *how) {
    int flags = MAP_ANONYMOUS | (strcmp(how, "shared") ? MAP_PRIVATE : MAP_SHARED);
    if (!strcmp(how, "undumpable")) prctl(PR_SET_DUMPABLE, 0);
    char *pages = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (pages == MAP_FAILED) return say(-1);
    memset(pages, 1, mib << 20);
    if (!strcmp(how, "forks"))
        for (int i = 0; i < 8; i++)
            if (fork() == 0) {
                sleep(1);
                _exit(0);
            }
    while (wait(NULL) > 0) continue;
    if (strcmp(how, "forks")) sleep(5);
    return say(0);
}

static int try_limit_of_init(int kind) {
    struct rlimit none = {0, 0};
    return say(syscall(SYS_prlimit64, 1, kind, &none, NULL));
}

static int try_mark(int how) {
    struct rlimit none = {1, 1};
    return say(how ? syscall(SYS_prlimit64, 0, 10, &none, NULL) : setrlimit(10, &none));
}

static int try_core(void) {
    struct rlimit none = {0, 0};
    struct rlimit now;
    if (setrlimit(RLIMIT_CORE, &none) || getrlimit(RLIMIT_CORE, &now)) return say(-1);
    printf("%llu\n", (unsigned long long)now.rlim_cur);
    return 0;
}

/* probe name: give a datagram socket of a pair a name without bind. */
static int try_named_pair(void) {
    int pair[2];
    int on = 1;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair)) return say(-1);
    return say(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
}

static int try_clone(unsigned long flags) {
    long pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(0);
    return say(pid);
}

static int try_queue(void) {
    struct mq_attr attributes = {.mq_maxmsg = 10, .mq_msgsize = 8192};
    char name[32];
    int made = 0;
    for (; made < 1000; made++) {
        snprintf(name, sizeof name, "/q%d", made);
        if (mq_open(name, O_CREAT | O_RDWR, 0600, &attributes) < 0) break;
    }
    printf("%d %s\n", made, strerrorname_np(errno));
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    const char *word = argc > 2 ? argv[2] : "";
    if (!strcmp(what, "call")) return try_call(argc, argv);
    if (!strcmp(what, "connect")) return try_connect(word);
    if (!strcmp(what, "listen")) return try_listen(word);
    if (!strcmp(what, "fork")) return try_fork(atoi(word));
    if (!strcmp(what, "bomb")) return bomb();
    if (!strcmp(what, "hide")) return hide();
    if (!strcmp(what, "eat")) return eat((size_t)atoi(word), argv[3]);
    if (!strcmp(what, "init-limit")) return try_limit_of_init(atoi(word));
    if (!strcmp(what, "mark")) return try_mark(atoi(word));
    if (!strcmp(what, "core")) return try_core();
    if (!strcmp(what, "named-pair")) return try_named_pair();
    if (!strcmp(what, "clone")) return try_clone(strtoul(word, NULL, 0));
    if (!strcmp(what, "queue")) return try_queue();
    if (!strcmp(what, "trace")) return say(ptrace(PTRACE_ATTACH, atoi(word), 0, 0));
    if (!strcmp(what, "kill")) return say(kill(atoi(word), SIGKILL));
    if (!strcmp(what, "shm")) return say(shmget(IPC_PRIVATE, (size_t)atoi(word) << 20, 0600));
    if (!strcmp(what, "socket")) return say(socket(atoi(word), atoi(argv[3]), atoi(argv[4])));
    if (!strcmp(what, "insert")) return say(ioctl(open("/dev/ptmx", O_RDWR), 0x5412, "x"));
    return 2;
}
