"""Landlock: a list of what may be read, where there is no mount namespace to hide the rest.

Source: landlock(7). Metadata (stat, chmod, ...) is outside its reach; the system call filter has that part.
"""

import os
import struct
from collections.abc import Iterable

from retinue.checks.jail.syscalls import call

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_READ_FILE, _READ_DIR, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}


def read_abi() -> int:
    """Ask which Landlock the kernel has; 0 for none (not built, or not switched on at boot)."""
    try:
        return call(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def build_ruleset(readable: Iterable[str], writable: Iterable[str]) -> int:
    """Make a ruleset that allows reading beneath some paths and writing to some files, nothing else.

    Shape:  a descriptor for `restrict_self`; paths that do not exist are left out.
    """
    rights = _RIGHTS_BY_ABI[max(1, min(read_abi(), max(_RIGHTS_BY_ABI)))]
    attributes = struct.pack("=Q", rights)
    ruleset = call(_CREATE_RULESET, attributes, len(attributes), 0)
    for path in readable:
        _allow(ruleset, path, _READ_FILE | _READ_DIR)
    for path in writable:
        _allow(ruleset, path, _READ_FILE | _WRITE_FILE)
    return ruleset


def restrict_self(ruleset: int) -> None:
    """Bind the caller and all it starts to a ruleset; the caller has no_new_privs set."""
    call(_RESTRICT_SELF, ruleset, 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        beneath = rights if os.path.isdir(path) else rights & ~_READ_DIR
        call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", beneath, fd), 0)
    finally:
        os.close(fd)
