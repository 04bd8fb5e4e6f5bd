/* From fresh namespaces to a confined pid 1. The order matters: the upper layer is filled before the overlay covers it
 * (no link of a hostile image is ever followed), /proc comes before its masks, limits after the user namespace,
 * capabilities go after the last mount. The filter was there before all of it (warden.c); the key to it goes last.
 */
#include "setup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "key.h"
#include "message.h"
#include "step.h"
#include "zygote.h"

enum { INIT_SPARE_PROCESSES = 8, OPTIONS_MAX = 4096 };

static void limit(int kind, uint64_t value) {
    struct rlimit both = {value, value};
    struct rlimit now;
    if (!value || getrlimit((__rlimit_resource_t)kind, &now)) return;
    if (value > now.rlim_max) both.rlim_cur = both.rlim_max = now.rlim_max;
    step(setrlimit((__rlimit_resource_t)kind, &both) == 0, "set a resource limit");
}

static void set_limits(const struct message *m) {
    uint64_t pids = message_number(m, CONFIG_PID_COUNT);
    /* A few more for pid 1 than for what it starts (exec.c), so that a fork bomb does not lock the host out. */
    limit(RLIMIT_NPROC, pids ? pids + INIT_SPARE_PROCESSES : 0);
    limit(RLIMIT_DATA, message_number(m, CONFIG_DATA_BYTES));
    limit(RLIMIT_FSIZE, message_number(m, CONFIG_FILE_BYTES));
    limit(RLIMIT_NOFILE, message_number(m, CONFIG_OPEN_FILES));
    limit(RLIMIT_MSGQUEUE, message_number(m, CONFIG_QUEUE_BYTES));
    limit(RLIMIT_MEMLOCK, message_number(m, CONFIG_LOCKED_BYTES));
    limit(RLIMIT_SIGPENDING, message_number(m, CONFIG_SIGNAL_COUNT));
}

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    step(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0, path);
}

/* Names in an upper layer hide what the image has there, be it a file or a link, and merge with a directory. */
static void fill_upper(const char *hostname) {
    char text[512];
    step_make_directory("dev", 0755);
    step_make_directory("proc", 0755);
    step_make_directory("tmp", 01777);
    step_make_directory("etc", 0755);
    snprintf(text, sizeof text, "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t%s\n", hostname);
    write_file("etc/hosts", text);
    snprintf(text, sizeof text, "%s\n", hostname);
    write_file("etc/hostname", text);
    write_file("etc/resolv.conf", "# A sandbox has no network.\n");
}

static void mount_stage(const struct message *m) {
    const char *name = message_field(m, CONFIG_UPPER);
    char options[128];
    snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=0755",
             *name ? 65536ULL : (unsigned long long)message_number(m, CONFIG_DISK_BYTES),
             *name ? 64ULL : (unsigned long long)message_number(m, CONFIG_INODE_COUNT));
    step_mount("sandbox", ROOT_STAGE, "tmpfs", MS_NOSUID | MS_NODEV, options);
    step(chdir(ROOT_STAGE) == 0, "enter the stage");
    step_make_directory("m", 0755);
    step_make_directory("shm", 01777);
    if (*name) {
        char upper[256];
        snprintf(upper, sizeof upper, ROOT_UPPERS "/%s", name);
        step(chdir(upper) == 0, "enter the upper layer");
    }
    step_make_directory("u", 0755);
    step_make_directory("w", 0755);
    step(chdir("u") == 0, "enter the upper layer");
    fill_upper(message_field(m, CONFIG_HOSTNAME));
    step(chdir("..") == 0, "leave the upper layer");
}

static void mount_overlay(const struct message *m, unsigned lower_count) {
    char options[OPTIONS_MAX];
    int at = snprintf(options, sizeof options, "lowerdir=");
    for (unsigned i = 0; i < lower_count && at < OPTIONS_MAX - 64; i++)
        at += snprintf(options + at, sizeof options - (size_t)at, "%s" ROOT_IMAGES "%u", i ? ":" : "", i);
    const char *trusted = message_number(m, CONFIG_FLAGS) & FLAG_NO_USERXATTR ? "" : ",userxattr";
    snprintf(options + at, sizeof options - (size_t)at, ",upperdir=u,workdir=w%s", trusted);
    /* The current directory is that of the upper layer, which the options are relative to. */
    step_mount("sandbox", ROOT_STAGE "/m", "overlay", MS_NOSUID | MS_NODEV, options);
    step(chdir(ROOT_STAGE) == 0, "enter the stage");
}

static void set_kernel_limit(const char *name, uint64_t value) {
    char path[128];
    char text[32];
    if (!value) return;
    snprintf(path, sizeof path, "m/proc/sys/%s", name);
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    try_write(path, text); /* Older kernels lack some, or give them to root alone. */
}

static void set_kernel_limits(const struct message *m) {
    uint64_t sysv_bytes = message_number(m, CONFIG_SYSV_BYTES);
    set_kernel_limit("kernel/shmall", sysv_bytes / 4096);
    set_kernel_limit("kernel/shmmax", sysv_bytes);
    set_kernel_limit("kernel/shmmni", sysv_bytes ? 128 : 0);
    set_kernel_limit("kernel/msgmni", sysv_bytes ? 32 : 0);
    set_kernel_limit("fs/mqueue/queues_max", 16);
    set_kernel_limit("kernel/pid_max", message_number(m, CONFIG_PID_MAX));
    set_kernel_limit("user/max_inotify_instances", message_number(m, CONFIG_INOTIFY_COUNT));
    try_write("m/proc/sys/kernel/sem", "128\t4096\t32\t32");
    try_write("m/proc/sys/user/max_user_namespaces", "0");
    if (message_number(m, CONFIG_FLAGS) & FLAG_NET) try_write("m/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
}

static void mount_devices(const struct message *m) {
    char options[64];
    uint64_t shm_bytes = message_number(m, CONFIG_SHM_BYTES);
    step_mount(ROOT_DEVICES, "m/dev", NULL, MS_BIND | MS_REC, NULL);
    snprintf(options, sizeof options, "size=%llu,nr_inodes=65536,mode=1777", (unsigned long long)shm_bytes);
    if (shm_bytes) step_mount("shm", "m/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, options);
    else step_mount("shm", "m/dev/shm", NULL, MS_BIND, NULL);
    uint64_t ptys = message_number(m, CONFIG_PTY_COUNT);
    snprintf(options, sizeof options, "newinstance,ptmxmode=0666,mode=0620,max=%llu", (unsigned long long)ptys);
    if (!ptys) *strstr(options, ",max") = '\0';
    step_mount("devpts", "m/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options);
}

static void mask_proc(void) {
    static const char *const read_only[] = {"sys", "bus", "fs", "irq", "sysrq-trigger"};
    static const char *const files[] = {"kcore", "keys", "key-users", "timer_list", "sched_debug", "latency_stats",
                                        "kmsg", "kallsyms", "cmdline", "config.gz"};
    static const char *const directories[] = {"scsi", "acpi", "asound", "driver"};
    char path[64];
    for (size_t i = 0; i < sizeof read_only / sizeof *read_only; i++) {
        snprintf(path, sizeof path, "m/proc/%s", read_only[i]);
        if (access(path, F_OK) == 0) step_bind_read_only(path, path, MS_NODEV | MS_NOEXEC);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "m/proc/%s", files[i]);
        step(try_mount(ROOT_DEVICES "/null", path, NULL, MS_BIND, NULL) == 0 || errno == ENOENT, path);
    }
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
        snprintf(path, sizeof path, "m/proc/%s", directories[i]);
        step(try_mount(ROOT_EMPTY, path, NULL, MS_BIND, NULL) == 0 || errno == ENOENT, path);
    }
}

static void name_and_connect(const struct message *m) {
    const char *hostname = message_field(m, CONFIG_HOSTNAME);
    step(call_as_setup(SYS_sethostname, (long)hostname, (long)strlen(hostname), 0, 0, 0) == 0, "set the hostname");
    if (!(message_number(m, CONFIG_FLAGS) & FLAG_NET)) return;
    struct ifreq loopback = {.ifr_name = "lo"};
    loopback.ifr_flags = IFF_UP | IFF_RUNNING;
    int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    step(sock >= 0 && ioctl(sock, SIOCSIFFLAGS, &loopback) == 0, "bring lo up");
    close(sock);
}

static void set_schedule(const struct message *m) {
    int nice_by = (int)(int64_t)message_number(m, CONFIG_NICE);
    if (nice_by) step(setpriority(PRIO_PROCESS, 0, nice_by) == 0, "set the priority");
    if (m->field_count > CONFIG_CPUS && m->lengths[CONFIG_CPUS])
        step(syscall(SYS_sched_setaffinity, 0, m->lengths[CONFIG_CPUS], m->fields[CONFIG_CPUS]) == 0, "set the affinity");
}

static void drop_privileges(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    struct __user_cap_data_struct left[2];
    step(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1, "find no_new_privs set");
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        step(prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0, "drop the bounding set");
    step(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0, "clear ambient capabilities");
    step(call_as_setup(SYS_capset, (long)&header, (long)none, 0, 0, 0) == 0, "drop capabilities");
    /* Without its key a filter with fake ids says yes and does nothing. */
    step(syscall(SYS_capget, &header, left) == 0 && !memcmp(left, none, sizeof none), "have no capabilities");
    /* Nobody inside may trace pid 1, read its descriptors or write its files in /proc. */
    step(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0, "forbid dumps");
}

void setup_sandbox(const struct message *m, unsigned lower_count) {
    step_map_ids((unsigned)message_number(m, CONFIG_UID), 0, (unsigned)message_number(m, CONFIG_GID), 0);
    set_limits(m);
    umask(0);
    step_mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    mount_stage(m);
    mount_overlay(m, lower_count);
    step_mount("proc", "m/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    set_kernel_limits(m);
    mount_devices(m);
    mask_proc();
    step(chdir("m") == 0, "enter the new root");
    step_pivot_here();
    umask(022);
    name_and_connect(m);
    set_schedule(m);
    drop_privileges();
    step(prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == SECCOMP_MODE_FILTER, "be under the filter");
    keys_forget_setup();
}
