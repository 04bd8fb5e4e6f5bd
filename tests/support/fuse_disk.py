"""A directory behind a FUSE daemon that a test can stop: a shared file system that hangs. Root only, no library.

`python fuse_disk.py BACKING MOUNTPOINT` mounts in a mount namespace of its own, prints `up`, and passes everything on
to BACKING. After SIGUSR1 it stops itself over the next close of a file: whoever closes it cannot be killed until the
daemon goes on. The wire is that of linux/fuse.h, protocol 7.31, as far as ordinary programs use it.
"""

import ctypes
import errno
import os
import signal
import struct
import sys
from collections.abc import Callable

HEADER = struct.Struct("<IIQQIIII")
ATTR = struct.Struct("<6Q10I")
ENTRY = struct.Struct("<QQQQII")
SETATTR = struct.Struct("<IIQQQQQQIIIIIIII")
FLUSH = 25
"""What close(2) asks for; the kernel waits for its answer whatever happens to the caller."""
SILENT = (2, 36, 42)
"""FORGET, INTERRUPT, BATCH_FORGET: no answer."""
OPEN_FLAGS = os.O_ACCMODE | os.O_TRUNC | os.O_CREAT | os.O_EXCL


class Disk:
    """Node ids to paths, and one method per kind of request."""

    def __init__(self, backing: str) -> None:
        self.paths = {1: backing}
        self.ids = {backing: 1}
        self.owner = (0, 0)
        """Uid and gid of whoever asks."""
        self.stops_at_close = False
        self.take: dict[int, Callable[[str, bytes], bytes]] = {
            1: lambda path, body: self.build_entry(join(path, body)),
            3: lambda path, body: struct.pack("<QII", 0, 0, 0) + build_attr(path),
            4: self.set_attr,
            5: lambda path, body: os.fsencode(os.readlink(path)),
            6: self.symlink,
            8: lambda path, body: self.make(join(path, body[16:]), lambda new: os.mknod(new, int_at(body, 0))),
            9: lambda path, body: self.make(join(path, body[8:]), lambda new: os.mkdir(new, int_at(body, 0))),
            10: lambda path, body: nothing(os.unlink(join(path, body))),
            11: lambda path, body: nothing(os.rmdir(join(path, body))),
            12: lambda path, body: self.rename(path, body, 8),
            13: lambda path, body: self.make(
                join(path, body[8:]), lambda new: os.link(self.paths[struct.unpack_from("<Q", body)[0]], new)
            ),
            14: lambda path, body: build_open(os.open(path, int_at(body, 0) & OPEN_FLAGS)),
            15: lambda path, body: os.pread(*reversed_read(body)),
            16: lambda path, body: struct.pack("<II", os.pwrite(int_at(body, 0), body[40:], int_at(body, 8)), 0),
            17: lambda path, body: build_statfs(path),
            18: lambda path, body: nothing(os.close(int_at(body, 0))),
            20: lambda path, body: b"",
            FLUSH: self.flush,
            26: lambda path, body: struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 12, 9, 65536, 1, 0, 0, 0, *[0] * 7),
            27: lambda path, body: build_open(0),
            28: build_listing,
            29: lambda path, body: b"",
            30: lambda path, body: b"",
            35: self.create,
            45: lambda path, body: self.rename(path, body, 16),
        }

    def answer(self, request: bytes) -> bytes | None:
        _, opcode, unique, node, *self.owner, _, _ = HEADER.unpack_from(request)
        if opcode in SILENT:
            return None
        try:
            take = self.take.get(opcode)
            if take is None:
                raise OSError(errno.ENOSYS, "not passed on")
            said, code = take(self.paths[node] if node else "", request[HEADER.size :]), 0
        except OSError as error:
            said, code = b"", -(error.errno or errno.EIO)
        return struct.pack("<IiQ", 16 + len(said), code, unique) + said

    def build_entry(self, path: str) -> bytes:
        attr = build_attr(path)
        node = self.ids.setdefault(path, max(self.paths) + 1)
        self.paths[node] = path
        # Nothing is cached: each look at a file asks the daemon, as on a file system that other nodes write.
        return ENTRY.pack(node, 0, 0, 0, 0, 0) + attr

    def flush(self, path: str, body: bytes) -> bytes:
        if self.stops_at_close:
            self.stops_at_close = False
            os.kill(os.getpid(), signal.SIGSTOP)
        return b""

    def stop_at_close(self, *_: object) -> None:
        self.stops_at_close = True

    def make(self, path: str, act: Callable[[str], None]) -> bytes:
        act(path)
        os.lchown(path, *self.owner)
        return self.build_entry(path)

    def symlink(self, path: str, body: bytes) -> bytes:
        name, target = body.split(b"\0")[:2]
        return self.make(join(path, name), lambda new: os.symlink(os.fsdecode(target), new))

    def create(self, path: str, body: bytes) -> bytes:
        new = join(path, body[16:])
        opened = build_open(os.open(new, (int_at(body, 0) & OPEN_FLAGS) | os.O_CREAT, int_at(body, 4)))
        os.lchown(new, *self.owner)
        return self.build_entry(new) + opened

    def rename(self, path: str, body: bytes, start: int) -> bytes:
        old_name, new_name = body[start:].split(b"\0")[:2]
        old, new = join(path, old_name), join(self.paths[struct.unpack_from("<Q", body)[0]], new_name)
        os.rename(old, new)
        for known in [known for known in self.ids if known == old or known.startswith(old + "/")]:
            node = self.ids.pop(known)
            self.paths[node] = new + known.removeprefix(old)
            self.ids[self.paths[node]] = node
        return b""

    def set_attr(self, path: str, body: bytes) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, *_ = SETATTR.unpack_from(body)
        if valid & 1:
            os.chmod(path, mode & 0o7777)
        if valid & 8:
            os.truncate(path, size)
        if valid & 0x180:
            os.utime(path)
        elif valid & 0x30:
            os.utime(path, ns=(atime * 10**9 + atime_ns, mtime * 10**9 + mtime_ns))
        return struct.pack("<QII", 0, 0, 0) + build_attr(path)


def nothing(_: None) -> bytes:
    return b""


def int_at(body: bytes, offset: int) -> int:
    """File handles and offsets stay small here: the low half is all of them."""
    number: int = struct.unpack_from("<I", body, offset)[0]
    return number


def join(path: str, name: bytes) -> str:
    return f"{path}/{os.fsdecode(name.rstrip(bytes(1)))}"


def reversed_read(body: bytes) -> tuple[int, int, int]:
    fh, offset, size = struct.unpack_from("<QQI", body)
    return fh, size, offset


def build_open(fd: int) -> bytes:
    return struct.pack("<QII", fd, 0, 0)


def build_attr(path: str) -> bytes:
    facts = os.lstat(path)
    times = (facts.st_atime_ns, facts.st_mtime_ns, facts.st_ctime_ns)
    seconds = [time // 10**9 for time in times]
    rest = [time % 10**9 for time in times]
    who = (facts.st_mode, facts.st_nlink, facts.st_uid, facts.st_gid, 0, 4096, 0)
    return ATTR.pack(facts.st_ino, facts.st_size, facts.st_blocks, *seconds, *rest, *who)


def build_statfs(path: str) -> bytes:
    facts = os.statvfs(path)
    counts = (facts.f_blocks, facts.f_bfree, facts.f_bavail, facts.f_files, facts.f_ffree)
    return struct.pack("<5Q4I6I", *counts, facts.f_bsize, 255, facts.f_frsize, 0, *[0] * 6)


def build_listing(path: str, body: bytes) -> bytes:
    _, offset, size = struct.unpack_from("<QQI", body)
    listing = b""
    for number, entry in enumerate(sorted(os.listdir(path)), 1):
        name = os.fsencode(entry)
        item = struct.pack("<QQII", os.lstat(f"{path}/{entry}").st_ino, number, len(name), 0) + name
        item += bytes(-len(item) % 8)
        if number > offset and len(listing) + len(item) <= size:
            listing += item
    return listing


def main(backing: str, mountpoint: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    steps = (
        libc.unshare(0x20000),  # CLONE_NEWNS
        libc.mount(None, b"/", None, 0x44000, None),  # MS_REC | MS_PRIVATE
        libc.mount(b"test", mountpoint.encode(), b"fuse", 6, options),  # MS_NOSUID | MS_NODEV
    )
    if any(steps):
        sys.exit(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    disk = Disk(backing)
    signal.signal(signal.SIGUSR1, disk.stop_at_close)
    signal.siginterrupt(signal.SIGUSR1, False)
    print("up", flush=True)
    while True:
        try:
            answer = disk.answer(os.read(device, 1 << 18))
            if answer is not None:
                os.write(device, answer)
        except OSError as error:
            # ENODEV: unmounted. ENOENT, EINTR: whoever asked has gone meanwhile.
            if error.errno == errno.ENODEV:
                return


if __name__ == "__main__":
    os.umask(0)
    main(sys.argv[1], sys.argv[2])
