"""What the code inside a check can reach, tried from inside. Every refusal is the kernel's, not the test's."""

import ast
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm_rig import Warm, open_warm, parse_report

ATTACKS = '''
import ctypes, json, os, resource, socket, sys

LIBC = ctypes.CDLL(None, use_errno=True)


def attempt(action):
    try:
        return repr(action())
    except OSError as error:
        return error.errno
    except Exception as error:
        return type(error).__name__


def call(name, *arguments):
    result = getattr(LIBC, name)(*arguments)
    return f"done {result}" if result >= 0 else ctypes.get_errno()


def tell(**found):
    return 1.0, json.dumps(found)


def look(response, gold, args):
    """`response` names places, one a line."""
    places = {}
    for path in response.split():
        places[path] = attempt(lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(64))
    return tell(places=places, uid=os.getuid(), pid=os.getpid(), environ=dict(os.environ), cwd=os.getcwd())


def write(response, gold, args):
    places = {path: attempt(lambda: open(os.path.join(path, "planted"), "w").close()) for path in response.split()}
    return tell(places=places, tmp=os.listdir("/tmp"))


def fill(response, gold, args):
    def one(number):
        with open(f"/tmp/{number}", "wb") as file:
            file.write(bytes(2**20))
    sizes = [attempt(lambda: one(number)) for number in range(4)]
    names = [attempt(lambda: open(f"/tmp/name{number}", "w").close()) for number in range(1000)]
    return tell(sizes=sizes, refused=sum(isinstance(name, int) for name in names))


def connect(response, gold, args):
    port, path, abstract = response.split()
    families = {}
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, 40):
        families[int(family)] = attempt(lambda: socket.socket(family))
    pair = socket.socketpair()[0]
    ring = call("syscall", 425, 8, ctypes.create_string_buffer(256))
    return tell(families=families, ring=ring, pair=pair.family.name,
                tcp=attempt(lambda: socket.create_connection(("127.0.0.1", int(port)), 1)))


def descriptors(response, gold, args):
    open_fds = {}
    for fd in range(64):
        try:
            open_fds[fd] = os.fstat(fd).st_rdev
        except OSError:
            pass
    return tell(fds=open_fds, null=os.stat("/dev/null").st_rdev)


def escape(response, gold, args):
    NEWUSER, NEWNS, NEWPID = 0x10000000, 0x20000, 0x20000000
    pidfd = call("syscall", 434, 1, 0)
    return tell(
        unshare_user=call("unshare", NEWUSER), unshare_mount=call("unshare", NEWNS),
        setns=call("setns", 0, NEWPID), mount=call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
        umount=call("umount2", b"/proc", 2), chroot=call("chroot", b"/tmp"),
        clone=call("syscall", 56, NEWUSER | 17, None, None, None, None),
        clone3=call("syscall", 435, ctypes.create_string_buffer(88), 88),
        ptrace=[call("ptrace", 16, pid, 0, 0) for pid in (0, 1, 2, os.getppid())],
        vm=call("syscall", 310, 1, None, 0, None, 0, 0), keys=call("syscall", 250, 0, -4, 0),
        memory=call("syscall", 319, b"x", 0), shm=call("shmget", 7, 4096, 0o1600),
        bpf=call("syscall", 321, 0, None, 0), nodes=attempt(lambda: os.mknod("/tmp/null", 0o20666, os.makedev(1, 3))),
        hostname=call("sethostname", b"x", 1),
    )


def privileges(response, gold, args):
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    LIBC.capget(header, sets)
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT")}
    return tell(capabilities=list(sets), bounding=[LIBC.prctl(23, n, 0, 0, 0) for n in range(41)],
                no_new_privs=LIBC.prctl(39, 0, 0, 0, 0), seccomp=LIBC.prctl(21, 0, 0, 0, 0),
                dumpable=LIBC.prctl(3, 0, 0, 0, 0), limits=limits,
                raised=attempt(lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))))


def setuid(response, gold, args):
    """Run a set-user-id program: it gains nothing."""
    import subprocess
    code = "import os; print(os.geteuid(), os.getuid())"
    out = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    return tell(out=out.stdout.split(), err=out.stderr[-300:])
'''
NAMES = ("look", "write", "fill", "connect", "descriptors", "escape", "privileges", "setuid")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin directory that holds a run directory, beside a home with a secret."""
    place = tmp_path_factory.mktemp("walls")
    for name in ("plugins/run", "home", "scratch"):
        (place / name).mkdir(parents=True)
    for name in ("plugins/run/token", "home/id_rsa", "plugins/secret.pem"):
        (place / name).write_text("hunter2")
    return place


@pytest.fixture(scope="module")
def warm(place: Path) -> Iterator[Warm]:
    hide = [str(place / "plugins/run"), str(place / "plugins/secret.pem")]
    limits = {"tmp_bytes": 3 * 2**20 // 2}
    with open_warm(place / "plugins", ATTACKS, NAMES, hide=hide, limits=limits) as warm:
        yield warm


def test_a_check_sees_no_process_no_secret_and_nobody(warm: Warm, place: Path) -> None:
    hidden = ["/proc", "/sys", "/run", "/root", "/home", "/var/tmp", str(place / "plugins/run")]
    gone = [
        str(place / "home"),
        str(place / "home/id_rsa"),
        str(place / "plugins/run/token"),
        os.path.expanduser("~/x"),
    ]
    secret = str(place / "plugins/secret.pem")
    report = parse_report(warm.take().tell("look", " ".join([*hidden, *gone, secret, "/dev"])))
    places = report["places"]
    assert {path: places[path] for path in hidden} == dict.fromkeys(hidden, "[]")
    assert {path: places[path] for path in gone} == dict.fromkeys(gone, 2)
    assert places[secret] in ("b''", 13)
    assert set(ast.literal_eval(places["/dev"])) <= {"null", "zero", "full", "random", "urandom"}
    assert report["pid"] == 1
    assert report["cwd"] == "/"
    assert set(report["environ"]) == {"LANG", "LC_ALL", "PATH", "HOME", "TMPDIR"}


def test_a_check_reads_its_own_plugin_directory_below_all_that_is_hidden(warm: Warm, place: Path) -> None:
    report = parse_report(warm.take().tell("look", str(place / "plugins/awkward.py")))
    assert "import ctypes" in report["places"][str(place / "plugins/awkward.py")]


def test_a_check_writes_nowhere_but_in_its_own_tmp(warm: Warm, place: Path) -> None:
    import sys

    refused = ["/", "/etc", "/usr", "/var/tmp", "/home", "/dev", "/proc", str(place / "plugins"), sys.prefix]
    report = parse_report(warm.take().tell("write", " ".join([*refused, "/tmp"])))
    assert {path: report["places"][path] for path in refused} == dict.fromkeys(refused, 30)
    assert "planted" in report["tmp"]
    again = parse_report(warm.take().tell("write", "/var/tmp"))
    assert "planted" not in again["tmp"]
    assert not (place / "plugins/planted").exists()


def test_tmp_ends_at_its_size_and_at_its_number_of_files(warm: Warm) -> None:
    report = parse_report(warm.take().tell("fill"))
    assert report["sizes"][0] == "None"
    assert report["sizes"][1:] == [28, 28, 28]
    assert report["refused"] > 100


def test_a_check_connects_to_nothing_by_any_family(warm: Warm, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        report = parse_report(warm.take().tell("connect", f"{server.getsockname()[1]} {tmp_path}/s x"))
        with pytest.raises(BlockingIOError):
            server.accept()
    assert set(report["families"].values()) == {13}
    assert report["tcp"] == 13
    assert report["ring"] == 38
    assert report["pair"] == "AF_UNIX"


def test_a_check_has_its_own_socket_and_otherwise_the_null_device(warm: Warm) -> None:
    report = parse_report(warm.take().tell("descriptors"))
    assert {fd: report["fds"][fd] for fd in ("0", "1", "2")} == dict.fromkeys(("0", "1", "2"), report["null"])
    assert set(report["fds"]) == {"0", "1", "2", "3"}


def test_a_check_can_neither_make_nor_enter_a_namespace_nor_touch_a_process(warm: Warm) -> None:
    report = parse_report(warm.take().tell("escape"))
    for name in ("unshare_user", "unshare_mount", "setns", "mount", "umount", "chroot", "clone", "vm", "keys", "bpf"):
        assert report[name] == 1, name
    assert report["ptrace"] == [1, 1, 1, 1]
    assert report["clone3"] == report["memory"] == 38
    assert report["shm"] == 13
    assert report["nodes"] == 1
    assert report["hostname"] == 1


def test_a_check_has_no_capability_and_no_way_to_one(warm: Warm) -> None:
    report = parse_report(warm.take().tell("privileges"))
    assert not any(report["capabilities"])
    assert not any(report["bounding"])
    assert report["no_new_privs"] == 1
    assert report["seccomp"] == 2
    assert report["dumpable"] == 0
    assert report["raised"] == "ValueError"
    limits = report["limits"]
    assert limits["RLIMIT_NOFILE"] == [64, 64]
    assert limits["RLIMIT_CORE"] == limits["RLIMIT_MEMLOCK"] == [0, 0]
    assert limits["RLIMIT_CPU"] == [10, 11]
    assert limits["RLIMIT_FSIZE"] == [3 * 2**20 // 2] * 2
    if os.geteuid():
        assert limits["RLIMIT_NPROC"] == [32, 32]


@pytest.mark.skipif(os.geteuid() == 0, reason="cannot here: as root no check may start a process")
def test_a_program_that_a_check_runs_is_as_nobody_as_itself(warm: Warm) -> None:
    report = parse_report(warm.take().tell("setuid"))
    assert report["out"] == ["65534", "65534"], report["err"]
