/* What the host and this program say to each other. The Python side is wire.py; a test compares the two.
 *
 * Each message is one packet of a SOCK_SEQPACKET socket, all integers little endian:
 *
 *     struct wire_header, number_count x u64, field_count x (u32 length, bytes, one NUL)
 *
 * Numbers and fields come in the order of the enums below; a number that is not sent reads as 0. Descriptors ride
 * along as SCM_RIGHTS. A packet of kind IN_FILE is empty: the whole message is the content of its first descriptor
 * (a packet cannot be larger than net.core.wmem_default, about 200 KB). An answer carries the id of its request.
 * Only the host asks; the sockets are close-on-exec and held by processes that nothing inside a sandbox can trace.
 */
#ifndef RETINUE_WIRE_H
#define RETINUE_WIRE_H

#include <stdint.h>

enum {
    WIRE_PACKET_MAX = 256 * 1024,
    WIRE_FILE_MAX = 16 * 1024 * 1024,
    WIRE_FDS_MAX = 8,
};

struct wire_header {
    uint32_t kind;
    uint32_t id;
    uint32_t number_count;
    uint32_t field_count;
};

enum wire_kind {
    WIRE_IN_FILE = 1,
    /* To the space. */
    WIRE_SPACE = 10,       /* fields: base directory -> READY */
    WIRE_ZYGOTE = 11,      /* numbers: those of FLAGS_OF_FILTER that its sandboxes have; fd: its socket -> STARTED */
    WIRE_HELPER = 12,      /* numbers: enum wire_helper; fields: argv, env; fds: 0, 1, 2 -> STARTED, later GONE */
    WIRE_UNMOUNT = 13,     /* fields: absolute path -> DONE */
    WIRE_SIGNAL_CHILD = 14, /* numbers: pid as in STARTED, signal -> DONE */
    /* To a zygote. */
    WIRE_IMAGE = 21,       /* fields: directory for upper layers or "", lower directories -> READY. Before any CREATE */
    WIRE_CREATE = 20,      /* numbers: enum wire_config; fields: enum wire_config_field; fd: the sandbox's socket -> STARTED */
    /* To a sandbox. */
    WIRE_EXEC = 30,        /* numbers: enum wire_exec; fields: cwd, argv, env; fds: those of WIRE_EXEC_FDS -> EXITED */
    WIRE_SIGNAL = 31,      /* numbers: exec id, signal, enum wire_target -> DONE with how many were signalled */
    WIRE_KILL = 32,        /* numbers: exec id, patience in ms -> KILLED once nothing of that exec is alive */
    WIRE_STATS = 33,       /* -> USAGE */
    /* To a space or a sandbox. */
    WIRE_ROOT = 40,        /* -> DONE with an O_PATH descriptor: base directory of the space, "/" of the sandbox */
    /* To the host. */
    WIRE_READY = 50,
    WIRE_FAILED = 51,      /* numbers: errno; fields: the step that failed. For EXEC: it never ran */
    WIRE_STARTED = 52,     /* numbers: pid, as the space sees it */
    WIRE_GONE = 53,        /* numbers: pid, wait status. Id 0 */
    WIRE_DONE = 54,        /* numbers: a count */
    WIRE_EXITED = 55,      /* numbers: enum wire_exited. Id: the exec's */
    WIRE_KILLED = 56,      /* numbers: processes still there when patience ended */
    WIRE_USAGE = 57,       /* numbers: enum wire_usage */
    WIRE_MEMORY = 58,      /* numbers: used, limit. Id 0: all processes were killed for it */
};

enum wire_helper { HELPER_ARGV_COUNT, HELPER_ENV_COUNT, HELPER_NUMBERS };

enum wire_flag {
    FLAG_NET = 1,          /* own network namespace with lo up; without it no sockets but connected pairs */
    FLAG_FAKE_IDS = 2,     /* chown, setuid and their kin say yes and do nothing */
    FLAG_NO_USERXATTR = 4, /* for diagnosis only: rm -rf of an image directory fails with EIO */
    FLAG_MEMFD = 8,        /* memfd_create, whose pages no limit of the sandbox counts */
};

/* A filter is shared by all sandboxes of a node that have the same of these. */
enum { FLAGS_OF_FILTER = FLAG_NET | FLAG_FAKE_IDS | FLAG_MEMFD };

/* Bytes and counts; 0 leaves the limit alone. */
enum wire_config {
    CONFIG_FLAGS,
    CONFIG_DISK_BYTES,
    CONFIG_INODE_COUNT,
    CONFIG_SHM_BYTES,      /* 0: /dev/shm shares the disk's limit */
    CONFIG_MEMORY_BYTES,   /* anonymous and shared memory of all processes, watched by pid 1 */
    CONFIG_PID_COUNT,      /* RLIMIT_NPROC; per sandbox from Linux 5.14 on */
    CONFIG_PID_MAX,        /* kernel.pid_max of the sandbox, from Linux 6.14 on */
    CONFIG_DATA_BYTES,
    CONFIG_FILE_BYTES,
    CONFIG_OPEN_FILES,
    CONFIG_QUEUE_BYTES,    /* POSIX message queues */
    CONFIG_LOCKED_BYTES,
    CONFIG_SIGNAL_COUNT,
    CONFIG_SYSV_BYTES,     /* SysV shared memory in all */
    CONFIG_INOTIFY_COUNT,
    CONFIG_PTY_COUNT,
    CONFIG_UID,
    CONFIG_GID,
    CONFIG_NICE,
    CONFIG_NUMBERS
};

enum wire_config_field {
    CONFIG_HOSTNAME,
    CONFIG_UPPER,          /* name below the zygote's directory for upper layers; "": the capped tmpfs */
    CONFIG_CPUS,           /* affinity mask as sched_setaffinity(2) takes it; empty: all */
    CONFIG_FIELDS
};

enum wire_exec {
    EXEC_ARGV_COUNT,
    EXEC_ENV_COUNT,
    EXEC_FDS,              /* bit n: descriptor n is sent; the others are /dev/null */
    EXEC_CPU_S,            /* RLIMIT_CPU of each process */
    EXEC_NUMBERS
};

enum wire_target { TARGET_LEADER, TARGET_GROUP, TARGET_TREE };

enum wire_why { WHY_EXITED, WHY_SIGNALLED, WHY_MEMORY, WHY_KILLED };

enum wire_exited {
    EXITED_STATUS,         /* as wait(2) gives it */
    EXITED_WHY,            /* enum wire_why */
    EXITED_UTIME_US,       /* of the tree, as far as it was reaped */
    EXITED_STIME_US,
    EXITED_MAXRSS_KIB,     /* of the largest process */
    EXITED_NUMBERS
};

enum wire_usage {
    USAGE_MEMORY_BYTES,
    USAGE_PROCESS_COUNT,
    USAGE_DISK_BYTES,
    USAGE_DISK_MAX_BYTES,
    USAGE_INODE_COUNT,
    USAGE_INODE_MAX_COUNT,
    USAGE_NUMBERS
};

#endif
