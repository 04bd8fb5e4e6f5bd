"""From what a sandbox shall be to what the sandbox program is told."""

import platform

from retinue.sandbox.config import BoxConfig
from retinue.sandbox.requests import BoxOrder
from retinue.sandbox.wire import Flag

_NPROC_PER_NAMESPACE = (5, 14)


def build_config(order: BoxOrder, counts_pids: bool) -> BoxConfig:
    """Build what the sandbox program is told."""
    limits = order.limits
    env = dict(BoxConfig().env) | ({} if order.uid == 0 else {"USER": "user"}) | order.env
    return BoxConfig(
        hostname=order.hostname,
        disk_bytes=limits.disk,
        inode_count=limits.inodes,
        shm_bytes=limits.shm,
        memory_bytes=limits.memory,
        pid_count=limits.pids if counts_pids else 0,
        uid=order.uid,
        gid=order.uid,
        has_net=order.net,
        env=tuple(env.items()),
    )


def find_filter(has_net: bool) -> Flag:
    """Find which zygotes can make what `build_config` builds."""
    return BoxConfig(has_net=has_net).filter_flags


def counts_pids() -> bool:
    """Say whether this kernel counts the processes of a user in each user namespace apart."""
    major, minor = platform.release().split(".")[:2]
    return (int(major), int("".join(digit for digit in minor if digit.isdigit()) or 0)) >= _NPROC_PER_NAMESPACE
