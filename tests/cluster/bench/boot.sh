#!/bin/sh
# The start of one host, as the first process of its namespaces:
#   boot.sh HOST STATE yes|no SHARE...       (yes: proctrack/cgroup)
# Its own hostname, /run, /dev/shm, /tmp and /var/tmp; the cluster's /etc/slurm, hosts, passwd and munge socket.
set -eu
host=$1 state=$2 cgroup=$3
shift 3

hostname "$host"
if [ "$cgroup" = yes ]; then
    # A cgroup namespace shows this host its own subtree as the root, as on a machine of its own.
    umount /sys/fs/cgroup/freezer
    mount -t cgroup -o freezer freezer /sys/fs/cgroup/freezer
fi
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 755 /run/munge /run/lock /run/tmp
mount --bind "$state/munge" /run/munge
mount --bind "$state/etc/slurm" /etc/slurm
mount --bind "$state/etc/hosts.$host" /etc/hosts
mount --bind "$state/etc/passwd" /etc/passwd
mount --bind "$state/etc/group" /etc/group
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /var/tmp
# A /tmp of its own, with what all hosts share bound back at the same paths; made aside, then moved into place.
mount -t tmpfs -o mode=1777 tmpfs /run/tmp
for share in "$state" "$@"; do
    case $share in /tmp/*)
        mkdir -p "/run/tmp/${share#/tmp/}"
        mount --rbind "$share" "/run/tmp/${share#/tmp/}" ;;
    esac
done
mount --move /run/tmp /tmp
rmdir /run/tmp
touch /run/booted
# While its first process ignores SIGCHLD the kernel reaps this host's orphans: no init program is needed.
exec env --ignore-signal=CHLD sleep infinity
