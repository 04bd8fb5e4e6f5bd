"""What to change, word for word; docs/doctor.md says of each why it is safe to grant. Judges fill in `{…}`."""

YOU, ADMIN = "you", "your admin"

USER_NAMESPACES = "sysctl -w user.max_user_namespaces=65536"
DEBIAN_USER_NAMESPACES = "sysctl -w kernel.unprivileged_userns_clone=1"
OTHER_NAMESPACES = "sysctl -w user.max_{kind}_namespaces=65536"
APPARMOR = (
    "put `abi <abi/4.0>, profile retinue {python} flags=(unconfined) {{ userns, }}` into /etc/apparmor.d/retinue, "
    "then apparmor_parser -r /etc/apparmor.d/retinue"
)
CONTAINER = (
    "pod: `hostUsers: false`, `procMount: Unmasked`, `seccompProfile: {{type: Unconfined}}`; Docker, Podman: "
    "`--security-opt seccomp=unconfined --security-opt systempaths=unconfined`"
)
UNMASK = "umount what is mounted below /proc ({masks}) in the namespace where jobs start"
KERNEL = "install Linux 5.14 or newer (RHEL 9, Debian 12, Ubuntu 22.04 have it)"
KERNEL_TMPFS = "install Linux 6.6 or newer"
KERNEL_NAMESPACES = "boot a kernel with CONFIG_USER_NS=y and no security module that forbids user namespaces"
FUSE_MODULE = "modprobe fuse, and `fuse` in /etc/modules-load.d/fuse.conf"
FUSE_MODE = (
    'chmod 0666 /dev/fuse, and `KERNEL=="fuse", MODE="0666"` in /etc/udev/rules.d/99-fuse.rules; container: '
    "`--device /dev/fuse`"
)
SQUASHFUSE = (
    "apt-get install squashfuse, or dnf install squashfuse (EPEL), or without root: "
    "conda install -c conda-forge squashfuse"
)
SQUASHFUSE_ZSTD = "install a squashfuse built with zstd, 0.1.105 or newer"
FUSE_OVERLAYFS = (
    "apt-get install fuse-overlayfs, or dnf install fuse-overlayfs, or without root: "
    "conda install -c conda-forge fuse-overlayfs"
)
PID_MAX = "sysctl -w kernel.pid_max=4194304"
THREADS_MAX = "sysctl -w kernel.threads-max=1048576"
NPROC = "sbatch --propagate=NONE, or in the batch script before retinue: ulimit -u $(ulimit -H -u)"
NPROC_HARD = "raise `nproc` in /etc/security/limits.conf, or LimitNPROC=infinity for slurmd.service"
PIDS_MAX = "TasksMax=infinity for slurmd.service; container: `--pids-limit=-1`"
NOFILE = "LimitNOFILE=1048576 for slurmd.service; in /etc/security/limits.conf: * hard nofile 1048576"
INOTIFY = "sysctl -w fs.inotify.max_user_instances=65536"
PIPES = "sysctl -w fs.pipe-user-pages-soft=1048576"
SUBUID = "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}, and install uidmap (shadow-utils)"
SUBUID_NAMESPACE = "node: {{namespace: off}} in the manifest"
SHM = "mount -o remount,size=50% /dev/shm; pod: an `emptyDir: {{medium: Memory}}` there; Docker: `--shm-size=8g`"
PTRACE = "sysctl -w kernel.yama.ptrace_scope=1"
SECCOMP = "boot a kernel with CONFIG_SECCOMP_FILTER=y"
LANDLOCK = "boot with lsm=landlock,{lsm}"
SCRATCH_PLACE = "export SLURM_TMPDIR=/a/directory/on/the/node's/own/disk before retinue"
SCRATCH_SPACE = "free space or inodes in {path}, or export SLURM_TMPDIR=/a/larger/place before retinue"
COMPILER = "install a C compiler (apt-get install gcc libc6-dev), or our wheel, with the program built in"
SLURM = "load the module, or add the directory of Slurm's commands to PATH"
CLOCK = "systemctl enable --now chronyd on every node"
