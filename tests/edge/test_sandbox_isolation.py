"""What a sandbox cannot see, reach or do, tried from inside by programs of our own."""

import os
import platform
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from sandbox_scenes import Scene, open_scene, prepare, probe, python, shell_text, until

COLUMN = {"x86_64": 0, "aarch64": 1}[platform.machine()]
REFUSED = {
    "mount": ((165, 40), "EPERM"), "umount2": ((166, 39), "EPERM"), "pivot_root": ((155, 41), "EPERM"),
    "chroot": ((161, 51), "EPERM"), "setns": ((308, 268), "EPERM"), "open_tree": ((428, 428), "EPERM"),
    "move_mount": ((429, 429), "EPERM"), "fsopen": ((430, 430), "EPERM"), "fsmount": ((432, 432), "EPERM"),
    "mount_setattr": ((442, 442), "EPERM"), "bpf": ((321, 280), "EPERM"), "perf_event_open": ((298, 241), "EPERM"),
    "userfaultfd": ((323, 282), "EPERM"), "keyctl": ((250, 219), "EPERM"), "add_key": ((248, 217), "EPERM"),
    "request_key": ((249, 218), "EPERM"), "open_by_handle_at": ((304, 265), "EPERM"),
    "name_to_handle_at": ((303, 264), "EPERM"), "io_uring_setup": ((425, 425), "ENOSYS"),
    "clone3": ((435, 435), "ENOSYS"), "io_setup": ((206, 0), "ENOSYS"), "memfd_create": ((319, 279), "ENOSYS"),
    "memfd_secret": ((447, 447), "ENOSYS"), "statmount": ((457, 457), "ENOSYS"), "reboot": ((169, 142), "EPERM"),
    "init_module": ((175, 105), "EPERM"), "swapon": ((167, 224), "EPERM"), "syslog": ((103, 116), "EPERM"),
    "kexec_load": ((246, 104), "EPERM"), "fanotify_init": ((300, 262), "EPERM"), "acct": ((163, 89), "EPERM"),
}  # fmt: skip
NEW_NAMESPACES = (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Scene, None]:
    program, image = prepare(tmp_path_factory.getbasetemp())
    async with open_scene(program, image) as opened:
        yield opened


async def test_nothing_of_the_host_is_inherited(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    box = await scene.create()
    assert set((await shell_text(box, "env")).splitlines()) >= {"LANG=C.UTF-8", "HOME=/root", "PWD=/"}
    assert "hunter2" not in await shell_text(box, "env; cat /proc/*/environ 2>/dev/null || true")
    # ls has one more open, for the directory that it lists.
    assert (await shell_text(box, "ls /proc/self/fd")).split() == ["0", "1", "2", "3"]
    assert await shell_text(box, "cat /proc/1/cmdline") == "retinue-sandbox\0--space\0"
    links = await shell_text(box, "ls -l /proc/self/fd /proc/self/cwd /proc/self/root; cat /proc/self/mountinfo")
    for word in (str(Path.home()), "/tmp", "retinue-sbx", "sandbox-image", os.getcwd()):
        assert word not in links, word


async def test_the_root_is_the_same_through_every_door(scene: Scene) -> None:
    box = await scene.create()
    code = """
import os
root = os.stat("/")
own = "/proc/self/root"
for door in ("/..", "/../../..", own, own + "/..", own + "/../..", "/proc/self/cwd", "/proc/self/task/../root"):
    found = os.stat(door)
    assert (found.st_dev, found.st_ino) == (root.st_dev, root.st_ino), door
fd = os.open("/", os.O_RDONLY)
assert os.stat("..", dir_fd=fd).st_ino == root.st_ino
for door in ("root", "cwd", "exe", "fd", "environ", "mem", "maps", "map_files", "ns/mnt", "task/1/root"):
    try:
        path = f"/proc/1/{door}"
        os.readlink(path) if door in ("root", "cwd", "exe", "ns/mnt", "task/1/root") else (
            os.listdir(path) if door in ("fd", "map_files") else open(path, "rb").read(1))
    except PermissionError:
        continue
    raise SystemExit(door)
print("same")
"""
    assert await python(box, code) == "same"


async def test_masks_and_read_only_entries_of_proc_stay_so(scene: Scene) -> None:
    box = await scene.create()
    code = """
import errno, os
for name in ("sys/kernel/core_pattern", "sys/kernel/shmmax", "sys/net/ipv4/ip_forward", "sys/user/max_user_namespaces",
             "sys/kernel/pid_max", "sysrq-trigger", "acpi/x", "fs/x", "irq/x", "bus/x", "driver/x"):
    try:
        os.open("/proc/" + name, os.O_WRONLY | os.O_CREAT)
    except OSError as error:
        assert error.errno in (errno.EROFS, errno.EACCES, errno.ENOENT, errno.EPERM), (name, error)
        continue
    raise SystemExit(name)
for name in ("kcore", "keys", "key-users", "timer_list", "sched_debug", "kmsg", "kallsyms", "cmdline"):
    path = "/proc/" + name
    assert not os.path.exists(path) or open(path, "rb").read() == b"", name
for name in ("/proc/acpi", "/proc/scsi", "/proc/driver"):
    assert not os.path.exists(name) or os.listdir(name) == [], name
try:
    os.utime("/dev/null")
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    assert await python(box, code) == "EROFS"
    assert await shell_text(box, "cat /proc/sys/user/max_user_namespaces") == "0"


async def test_calls_that_only_attack_are_refused(scene: Scene) -> None:
    box = await scene.create()
    for name, (numbers, expected) in REFUSED.items():
        assert await probe(box, "call", str(numbers[COLUMN])) == expected, name


async def test_no_namespace_is_made_by_any_call(scene: Scene) -> None:
    box = await scene.create()
    unshare = str((272, 97)[COLUMN])
    for flag in NEW_NAMESPACES:
        assert await probe(box, "clone", str(flag)) == "EPERM", hex(flag)
        assert await probe(box, "call", unshare, str(flag)) == "EPERM", hex(flag)
    assert await probe(box, "clone", "0") == "ok"


async def test_only_plain_sockets_and_no_typing_for_others(scene: Scene) -> None:
    box = await scene.create()
    for family in (17, 38, 40, 44, 9, 29, 30):
        assert await probe(box, "socket", str(family), "3", "0") == "EAFNOSUPPORT", family
    assert await probe(box, "socket", "2", "1", "132") == "EPROTONOSUPPORT"
    assert await probe(box, "socket", "2", "3", "1") == "EPERM"
    for family in (1, 2, 10, 16):
        assert await probe(box, "socket", str(family), "2", "0") == "ok", family
    assert await probe(box, "insert") == "EPERM"


async def test_no_privilege_is_held_or_regained(scene: Scene) -> None:
    box = await scene.create()
    status = await shell_text(box, "cat /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    # A set-id program of ours: the bit is kept, and does nothing.
    script = "cp /bin/cat /tmp/cat && chmod 6755 /tmp/cat && /tmp/cat /proc/self/status"
    raised = dict(line.split(":\t", 1) for line in (await shell_text(box, script)).splitlines() if ":\t" in line)
    assert raised["CapEff"] == "0" * 16
    assert raised["Uid"] == fields["Uid"]
    mounts = await shell_text(box, "cat /proc/self/mounts")
    assert all("nosuid" in line.split()[3] for line in mounts.splitlines())


async def test_pid_1_can_neither_be_traced_nor_killed_nor_starved(scene: Scene) -> None:
    box = await scene.create()
    assert await probe(box, "trace", "1") == "EPERM"
    await probe(box, "kill", "1")
    for signal in ("STOP", "TERM", "CHLD", "SEGV", "KILL"):
        await shell_text(box, f"kill -{signal} 1")
    for kind in range(16):
        assert await probe(box, "init-limit", str(kind)) == "EPERM", kind
    for call, arguments in (
        ((203, 122), ("1", "8", "0")),
        ((144, 119), ("1", "5", "0")),
        ((141, 140), ("0", "1", "19")),
    ):
        assert await probe(box, "call", str(call[COLUMN]), *arguments) == "EPERM"
    assert await shell_text(box, "echo still here") == "still here"


async def test_neighbours_and_the_host_are_not_seen_and_not_signalled(scene: Scene) -> None:
    one, other = await scene.create(), await scene.create()
    sleeper = one.start(["sleep", "600"])
    pids = (await shell_text(other, "ls -d /proc/[0-9]*")).split()
    assert len(pids) <= 3
    for pid in (os.getpid(), one.pid, scene.space.pid):
        assert await probe(other, "kill", str(pid)) == "ESRCH"
    await shell_text(other, "trap '' TERM; kill -TERM -1 || true")
    assert await probe(one, "shm", "1") == "ok"
    assert len((await shell_text(other, "cat /proc/sysvipc/shm")).splitlines()) == 1
    assert await sleeper.kill() == 0
    assert (await sleeper.wait()).exit_code == -9


async def test_abstract_sockets_of_host_and_neighbours_are_out_of_reach(scene: Scene) -> None:
    one, other, without = await scene.create(), await scene.create(), await scene.create(has_net=False)
    name = f"retinue-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        assert await probe(one, "connect", name) == "ECONNREFUSED"
        assert await probe(without, "socket", "1", "1", "0") == "EACCES"
    read, write = os.pipe()
    running = one.start(["probe", "listen", "meeting"], stdout=write)
    os.close(write)
    os.set_blocking(read, False)
    await until(lambda: is_said(read, b"ok"))
    os.close(read)
    assert await probe(one, "connect", "meeting") == "ok"
    assert await probe(other, "connect", "meeting") == "ECONNREFUSED"
    assert await probe(without, "named-pair") == "EACCES"
    await running.kill()


def is_said(fd: int, word: bytes) -> bool:
    try:
        return word in os.read(fd, 100)
    except BlockingIOError:
        return False


async def test_there_is_no_way_out_and_localhost_is_there(scene: Scene) -> None:
    box, without = await scene.create(), await scene.create(has_net=False)
    code = """
import socket, sys, os
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    sock.connect(("192.0.2.1", 53)); raise SystemExit("reached")
except OSError as error:
    import errno; print(errno.errorcode[error.errno])
server = socket.create_server(("localhost", 80))
socket.create_connection(("127.0.0.1", 80)).close()
socket.create_server(("::1", 81), family=socket.AF_INET6)
print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))
print(sys.getfilesystemencoding(), "\\u00e4\\u65e5")
"""
    out = (await python(box, code)).splitlines()
    assert out == ["ENETUNREACH", "sandbox 127.0.1.1", "utf-8 ä日"]
    assert "localhost" in await shell_text(box, "cat /etc/hosts")
    assert await shell_text(box, "cat /etc/hostname") == "sandbox"
    for each in (box, without):
        devices = (await shell_text(each, "cat /proc/net/dev")).splitlines()[2:]
        assert [line.split(":")[0].strip() for line in devices] == ["lo"]
        assert len((await shell_text(each, "cat /proc/net/route")).splitlines()) <= 1
    assert "retinue" not in await shell_text(without, "cat /proc/net/unix /proc/net/tcp")


async def test_an_image_whose_places_are_links_is_set_up_all_the_same(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program, image = prepare(tmp_path_factory.getbasetemp())
    top = tmp_path / "hostile"
    (top / "image").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    for name, target in (("proc", "/image"), ("etc", str(outside)), ("tmp", "/proc/1/root"), ("dev", "../../../dev")):
        (top / name).symlink_to(target)
    async with open_scene(program, top, image) as scene:
        box = await scene.create()
        assert (await shell_text(box, "cat /etc/hostname; echo x > /tmp/x; ls /tmp /dev/null")).split() == ["sandbox", "/dev/null", "/tmp:", "x"]  # fmt: skip # noqa: E501
        assert "sandbox-init" in await shell_text(box, "cat /proc/1/comm")
        assert await probe(box, "trace", "1") == "EPERM"
    assert list(outside.iterdir()) == []
    assert sorted(path.name for path in top.iterdir()) == ["dev", "etc", "image", "proc", "tmp"]


async def test_the_image_is_never_changed_and_neighbours_see_nothing(scene: Scene) -> None:
    one, other = await scene.create(), await scene.create()
    await shell_text(one, "rm -rf /image/deep; echo changed > /image/file; mkdir /image/deep; touch /image/deep/new")
    assert await shell_text(one, "cat /image/file; ls /image/deep") == "changed\nnew"
    assert await shell_text(other, "cat /image/file; ls /image/deep") == "of the image\nleaf"


async def test_an_inner_user_and_fake_ids_are_as_documented(scene: Scene) -> None:
    root, user, honest = (
        await scene.create(),
        await scene.create(uid=1000, gid=1000),
        await scene.create(fakes_ids=False),
    )
    assert await shell_text(root, "id -u; touch /tmp/f; chown 33:33 /tmp/f; stat -c %u /tmp/f") == "0\n0"
    assert await shell_text(user, "id -u; id -g; touch /tmp/f; stat -c %u /tmp/f") == "1000\n1000\n1000"
    assert "EINVAL" in await python(honest, "import os, errno\ntry: os.chown('/', 33, 33)\nexcept OSError as e: print(errno.errorcode[e.errno])")  # fmt: skip # noqa: E501
    assert await shell_text(root, "mkdir /tmp/a; touch /tmp/a/b; tar cf /tmp/t.tar -C /tmp a --owner=www:33; rm -r /tmp/a; tar xpf /tmp/t.tar -C /tmp; ls /tmp/a") == "b"  # fmt: skip # noqa: E501
