"""Where namespaces are refused a filter and Landlock are the wall; where they are nested they still work."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from warm_rig import Warm, build_env, kill, open_warm, parse_report

from retinue.checks.jail import landlock
from retinue.checks.records import Judge, Seal, WarmConfig
from retinue.node.kernel import read_pidfd_pid

SOURCE = '''
import ctypes, fcntl, json, os, resource, socket, subprocess, threading

LIBC = ctypes.CDLL(None, use_errno=True)


def attempt(action):
    try:
        return repr(action())
    except OSError as error:
        return error.errno


def call(name, *arguments):
    return "done" if getattr(LIBC, name)(*arguments) >= 0 else ctypes.get_errno()


def bare(response, gold, args):
    """`response`: pid of a sibling, and a file with a secret."""
    sibling, secret = response.split()
    sibling, parent, me = int(sibling), os.getppid(), os.getpid()
    lines = {}
    for name, pid in (("sibling", sibling), ("parent", parent)):
        lines[name] = [
            attempt(lambda: os.kill(pid, 9)), attempt(lambda: os.kill(pid, 0)), call("syscall", 234, pid, pid, 9),
            call("syscall", 200, pid, 9), call("syscall", 129, pid, 9, ctypes.create_string_buffer(128)),
            call("syscall", 434, pid, 0), attempt(lambda: os.setpriority(os.PRIO_PROCESS, pid, 19)),
            attempt(lambda: os.sched_setaffinity(pid, {0})), call("ptrace", 16, pid, 0, 0),
            call("syscall", 302, pid, 7, None, None), call("syscall", 310, pid, None, 0, None, 0, 0),
        ]
    pair = socket.socketpair()
    thread = threading.Thread(target=lambda: lines.update(thread="ran"))
    thread.start()
    thread.join()
    lines["all"] = [attempt(lambda: os.kill(-1, 9)), attempt(lambda: os.kill(0, 9)),
                    attempt(lambda: os.setpriority(os.PRIO_USER, 0, 19)),
                    attempt(lambda: fcntl.fcntl(pair[0].fileno(), fcntl.F_SETOWN, parent))]
    lines["self"] = [attempt(lambda: os.kill(me, 0)), attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, 1))]
    lines["start"] = [attempt(os.fork), attempt(lambda: subprocess.run(["/bin/true"])),
                      attempt(lambda: os.execv("/bin/true", ["true"])), attempt(socket.socket)]
    lines["write"] = [attempt(lambda: open(path + "/planted", "w")) for path in ("/tmp", os.path.dirname(secret))]
    lines["change"] = [attempt(lambda: os.chmod(secret, 0o777)), attempt(lambda: os.utime(secret)),
                       attempt(lambda: os.unlink(secret)), attempt(lambda: os.truncate(secret, 0)),
                       attempt(lambda: os.mkdir("/tmp/planted")), attempt(lambda: os.rename(secret, secret + "x"))]
    private = (secret, f"/proc/{parent}/environ", "/proc/1/stat")
    lines["read"] = [attempt(lambda: open(path, "rb").read()) for path in private]
    lines["null"] = attempt(lambda: open("/dev/null", "w").write("x"))
    lines["immortal"] = call("prctl", 1, 0, 0, 0, 0)
    return 1.0, json.dumps(lines)


def hang(response, gold, args):
    while True:
        pass


def report(response, gold, args):
    return 1.0, json.dumps([os.getpid(), os.listdir("/proc"), os.listdir("/home")])
'''
NO_NAMESPACES = ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"', "sh")
LIKE_THE_KEEPER = ("unshare", "-U", "--map-current-user", "-pf", "--kill-child", "-m", "-i", "--mount-proc")


def open_bare(directory: Path, prefix: tuple[str, ...] = NO_NAMESPACES, **config: object) -> Warm:
    (directory / "awkward.py").write_text(SOURCE)
    verifiers = {name: f"awkward:{name}" for name in ("bare", "hang", "report")}
    path = [str(directory)]
    return Warm(WarmConfig(verifiers=verifiers, path=path, **config), prefix, build_env())  # type: ignore[arg-type]


def test_a_site_without_user_namespaces_is_told_what_is_weaker(tmp_path: Path) -> None:
    with open_bare(tmp_path) as warm:
        rung = warm.hear_warmed().rung
        assert "No space left on device" in rung
        assert "start no process" in rung
        words = "hidden by Landlock" if landlock.read_abi() else "no Landlock"
        assert words in rung


@pytest.mark.parametrize("prefix", [NO_NAMESPACES, ()], ids=["refused", "switched off"])
def test_without_namespaces_a_check_touches_nobody_starts_nothing_and_reads_no_secret(
    tmp_path: Path, prefix: tuple[str, ...]
) -> None:
    plugins, secrets = tmp_path / "plugins", tmp_path / "secrets"
    plugins.mkdir()
    secrets.mkdir()
    (secrets / "token").write_text("hunter2")
    with open_bare(plugins, prefix, rung="" if prefix else "fallback") as warm:
        warm.hear_warmed()
        warm.want(2)
        sibling = warm.take()
        pid = read_pidfd_pid(sibling.pidfd)
        lines = parse_report(warm.take().tell("bare", f"{pid} {secrets}/token"))
        assert lines["sibling"] == lines["parent"] == [1] * 11
        assert lines["all"] == [1] * 4
        assert lines["self"] == ["None"] * 2
        assert lines["start"] == [1, 1, 1, 13]
        assert lines["thread"] == "ran"
        assert set(lines["write"]) <= {13, 30}
        assert lines["change"] == [1, 1, 30, 30, 30, 30]
        if landlock.read_abi():
            assert lines["read"] == [13, 13, 13]
            assert lines["null"] == "1"
        assert lines["immortal"] == 1
        assert (secrets / "token").read_text() == "hunter2"
        assert warm.process.poll() is None
        assert sibling.number not in warm.ended


def test_without_namespaces_children_still_end_with_the_warm_parent(tmp_path: Path) -> None:
    with open_bare(tmp_path) as warm:
        warm.hear_warmed()
        warm.want(2)
        children = [warm.take(), warm.take()]
        assert children[0].prepare("hang").rejected is None
        children[0].send(Judge(""), Seal("s"))
        kill(warm.process.pid)
        for child in children:
            child.wait_gone()


def test_inside_the_keepers_namespaces_it_still_gets_its_own(tmp_path: Path) -> None:
    with open_bare(tmp_path, LIKE_THE_KEEPER) as warm:
        assert warm.hear_warmed().rung.startswith("namespaces")
        warm.want(1)
        assert parse_report(warm.take().tell("report")) == [1, [], []]


def test_a_plugin_below_a_link_in_a_hidden_place_can_still_import_at_check_time(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "home").mkdir()
    link = tmp_path / "home" / "plugins"
    link.symlink_to(real)
    (real / "late_one.py").write_text("VALUE = 42")
    source = "def late(response, gold, args):\n    import late_one\n    return late_one.VALUE, late_one.__file__"
    with open_warm(real, source, ["late"], path=[str(link)]) as warm:
        assert warm.take().ask("late").score == 42


OLD_KERNEL = """
import errno, os, sys
from retinue.checks.jail import syscalls
from retinue.checks.jail.namespaces import enter_namespaces
from retinue.checks.jail.root import enter_root
from retinue.checks.jail.view import build_view


def refuse(number):
    def call(*_):
        raise OSError(number, os.strerror(number))
    return call


if "mount_setattr" in sys.argv:
    syscalls.make_tree_read_only = refuse(errno.ENOSYS)
if "pivot_root" in sys.argv:
    syscalls.pivot_root = refuse(errno.EINVAL)
view = build_view([], os.environ)
enter_namespaces()
enter_root(view)
seen = sorted(os.listdir("/proc") + os.listdir("/tmp/..") + os.listdir("/sys"))
try:
    open(sys.argv[-1], "w")
except OSError as error:
    print(error.errno, os.getcwd(), "usr" in seen, "retinue-checks" in seen, os.listdir("/home"))
"""


@pytest.mark.parametrize("missing", ["", "mount_setattr", "pivot_root"])
def test_an_older_or_diskless_node_hides_and_seals_as_well(tmp_path: Path, missing: str) -> None:
    """The file is in a directory of ours that is bound back: nothing but the mount refuses it."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(tmp_path))))
    argv = [sys.executable, "-P", "-c", OLD_KERNEL, missing, str(tmp_path / "planted")]
    done = subprocess.run(argv, env=build_env(PYTHONPATH=path), capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[0] == "30 / True False []", done.stderr


def test_a_listening_socket_in_a_visible_place_is_out_of_reach(tmp_path: Path) -> None:
    """Read-only mounts do not stop connect(2); the filter does."""
    path = tmp_path / "s"
    source = (
        "import socket, os\ndef knock(response, gold, args):\n    seen = os.path.exists(response)\n"
        "    try:\n        socket.socket(socket.AF_UNIX).connect(response)\n"
        "    except OSError as error:\n        return seen, str(error.errno)\n    return seen, 'connected'"
    )
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with open_warm(tmp_path, source, ["knock"]) as warm:
            judged = warm.take().ask("knock", str(path))
            assert (judged.score, judged.reason) == (1.0, "13")


@pytest.mark.root
def test_as_root_no_check_starts_a_process(tmp_path: Path) -> None:
    source = "import os\ndef fork(response, gold, args):\n    return os.fork()"
    with open_warm(tmp_path, source, ["fork"]) as warm:
        assert "BlockingIOError" in (warm.take().ask("fork").error or "")
