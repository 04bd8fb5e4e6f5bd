/* The calls that the filter knows: X(name, x86-64, aarch64), -1 where there is none.
 * Source: the kernel's unistd headers, with which a test compares these numbers.
 */

/* Refused with EPERM, as by a kernel that does not trust the caller. */
#define CALLS_DENIED(X) \
    X(chroot, 161, 51) X(setns, 308, 268) \
    X(open_tree, 428, 428) X(move_mount, 429, 429) X(fsopen, 430, 430) X(fsconfig, 431, 431) X(fsmount, 432, 432) \
    X(fspick, 433, 433) X(mount_setattr, 442, 442) X(open_tree_attr, 467, 467) \
    X(name_to_handle_at, 303, 264) X(open_by_handle_at, 304, 265) X(lookup_dcookie, 212, 18) \
    X(bpf, 321, 280) X(perf_event_open, 298, 241) X(userfaultfd, 323, 282) X(fanotify_init, 300, 262) \
    X(add_key, 248, 217) X(request_key, 249, 218) X(keyctl, 250, 219) \
    X(kexec_load, 246, 104) X(kexec_file_load, 320, 294) X(reboot, 169, 142) \
    X(init_module, 175, 105) X(finit_module, 313, 273) X(delete_module, 176, 106) \
    X(create_module, 174, -1) X(get_kernel_syms, 177, -1) X(query_module, 178, -1) \
    X(swapon, 167, 224) X(swapoff, 168, 225) X(acct, 163, 89) X(quotactl, 179, 60) X(quotactl_fd, 443, 443) \
    X(syslog, 103, 116) X(settimeofday, 164, 170) X(clock_settime, 227, 112) X(adjtimex, 159, 171) \
    X(clock_adjtime, 305, 266) X(setdomainname, 171, 162) \
    X(iopl, 172, -1) X(ioperm, 173, -1) X(modify_ldt, 154, -1) X(vhangup, 153, 58) X(nfsservctl, 180, 42) \
    X(uselib, 134, -1) X(ustat, 136, -1) X(sysfs, 139, -1) X(_sysctl, 156, -1) \
    X(mbind, 237, 235) X(set_mempolicy, 238, 237) X(set_mempolicy_home_node, 450, 450) \
    X(migrate_pages, 256, 238) X(move_pages, 279, 239) X(process_madvise, 440, 440)

/* Refused with EPERM, but for who sets a sandbox up (key.h). clone and capset are too, among other things. */
#define CALLS_OF_SETUP(X) \
    X(mount, 165, 40) X(umount2, 166, 39) X(pivot_root, 155, 41) X(sethostname, 170, 161)

/* Refused with ENOSYS, as by an older kernel: callers have another way. io_setup: its contexts are one pool of the
 * whole node, which one sandbox could empty. clone3: its flags are out of a filter's reach. seccomp: a kernel that
 * frees a thousand filters at once may never install one again, for anybody on the node (docs/faults.md).
 */
#define CALLS_ABSENT(X) \
    X(clone3, 435, 435) X(seccomp, 317, 277) X(io_setup, 206, 0) X(io_uring_setup, 425, 425) \
    X(io_uring_enter, 426, 426) X(io_uring_register, 427, 427) X(landlock_create_ruleset, 444, 444) X(landlock_add_rule, 445, 445) \
    X(landlock_restrict_self, 446, 446) X(memfd_secret, 447, 447) X(statmount, 457, 457) X(listmount, 458, 458)

/* With fake ids: answered with 0 and not done. */
#define CALLS_FAKED(X) \
    X(chown, 92, -1) X(fchown, 93, 55) X(lchown, 94, -1) X(fchownat, 260, 54) X(setgroups, 116, 159) \
    X(setuid, 105, 146) X(setgid, 106, 144) X(setreuid, 113, 145) X(setregid, 114, 143) X(setresuid, 117, 147) \
    X(setresgid, 119, 149) X(setfsuid, 122, 151) X(setfsgid, 123, 152)

/* Never on pid 1, whose first argument they take: it would watch memory no more. */
#define CALLS_NOT_ON_INIT(X) \
    X(sched_setparam, 142, 118) X(sched_setscheduler, 144, 119) X(sched_setaffinity, 203, 122) \
    X(sched_setattr, 314, 274)

/* What they may do depends on their arguments. */
#define CALLS_CONDITIONAL(X) \
    X(clone, 56, 220) X(unshare, 272, 97) X(ioctl, 16, 29) X(socket, 41, 198) X(socketpair, 53, 199) \
    X(personality, 135, 92) X(setrlimit, 160, 164) X(prlimit64, 302, 261) X(setpriority, 141, 140) \
    X(ioprio_set, 251, 30) X(memfd_create, 319, 279) X(capset, 126, 91) X(prctl, 157, 167) \
    X(setsockopt, 54, 208)
