"""What a guarded service is denied, by whatever call and however it is written; and that it is written down."""

from collections.abc import Iterator

import pytest
from egress_scenes import HELLO, OUTSIDE, OUTSIDE6, Guarded, Stage, needs_ip

from retinue.terms.egress import EgressRule

pytestmark = needs_ip
EACCES = 13
X86 = "os.uname().machine == 'x86_64'"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        outside = stage.start("outside/0", None)
        port = outside.ask("serve()")
        for udp in ("none", "loopback", "full"):
            rule = EgressRule(udp=udp, allow=(f"203.0.113.9/32:{port}", "not.resolved:80"))
            stage.start(f"{udp}/0", rule).ask(f"globals().update(PORT={port})")
        assert outside.ask(f"tcp('{OUTSIDE}', {port}) + tcp('{OUTSIDE6}', {port})") == HELLO * 2
        assert outside.ask(f"udp('{OUTSIDE}', {port}) + udp('{OUTSIDE6}', {port})") == HELLO * 2
        yield stage


def find(stage: Stage, udp: str) -> Guarded:
    return next(each for each in stage.guarded if each.replica == f"{udp}/0")


@pytest.mark.parametrize("udp", ["none", "full"])
@pytest.mark.parametrize(
    ("address", "known_as"),
    [
        (OUTSIDE, OUTSIDE),
        (OUTSIDE6, OUTSIDE6),
        (f"::ffff:{OUTSIDE}", OUTSIDE),
        (f"::{OUTSIDE}", "::cb00:7107"),
        ("64:ff9b::203.0.113.7", "64:ff9b::cb00:7107"),
        ("255.255.255.255", "255.255.255.255"),
        ("10.9.0.255", "10.9.0.255"),
        ("224.0.0.1", "224.0.0.1"),
        ("ff02::1", "ff02::1"),
        ("10.9.0.78", "10.9.0.78"),
    ],
)
@pytest.mark.parametrize("timeout", ["None", "0", "5"])
def test_an_address_outside_is_denied_and_written_down(
    stage: Stage, udp: str, address: str, known_as: str, timeout: str
) -> None:
    assert find(stage, udp).ask(f"tcp('{address}', PORT, timeout={timeout})") == "EACCES"
    port = find(stage, udp).ask("PORT")
    line = stage.wait_denied(f"{udp}/0", "tcp", known_as, port)
    assert line.count >= 1
    assert line.program.startswith("python")
    assert line.pid > 0


def test_an_allowed_address_is_allowed_on_its_port_only(stage: Stage) -> None:
    service = find(stage, "none")
    assert service.ask("tcp('203.0.113.9', PORT)") == HELLO
    assert service.ask("tcp('203.0.113.9', PORT + 1)") == "EACCES"


def test_a_name_that_nobody_resolved_admits_nothing(stage: Stage) -> None:
    assert find(stage, "none").ask("tcp('203.0.113.80', 80)") == "EACCES"


def test_fast_open_does_not_carry_a_first_packet_out(stage: Stage) -> None:
    service = find(stage, "full")
    outside = f"in4('{OUTSIDE}', PORT)"
    assert service.ask(f"sendto_raw(2, {outside}, flags=0x20000000, kind=1)") == "ENOTSUP"
    sent = f"[end := socket.socket(), end.sendmsg([b'x'], [], 0x20000000, ('{OUTSIDE}', PORT))]"
    assert service.ask(sent) == "ENOTSUP"
    later = f"[end := socket.socket(), end.setsockopt(6, 30, 1), end.connect(('{OUTSIDE}', PORT))]"
    assert service.ask(later) == "EACCES"


# --- datagrams --------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["2", "10"])
def test_without_udp_there_is_no_such_socket(stage: Stage, family: str) -> None:
    assert find(stage, "none").ask(f"socket.socket({family}, 2)") == "EACCES"
    assert find(stage, "none").ask(f"socket.socket({family}, 2 | 0o2000000 | 0o4000, 17)") == "EACCES"
    assert stage.wait_denied("none/0", "udp-socket").count >= 2


@pytest.mark.parametrize("udp", ["loopback", "full"])
@pytest.mark.parametrize(
    ("code", "what", "address"),
    [
        (f"udp('{OUTSIDE}', PORT)", "udp", OUTSIDE),
        (f"udp('{OUTSIDE6}', PORT)", "udp", OUTSIDE6),
        (f"udp('::ffff:{OUTSIDE}', PORT)", "udp", OUTSIDE),
        # An address that says it is of no family goes out of an IPv4 socket all the same.
        (f"sendto_raw(2, in4('{OUTSIDE}', PORT, family=0))", "udp", OUTSIDE),
        (f"sendto_raw(10, in4('{OUTSIDE}', PORT))", "udp", OUTSIDE),
        (f"connect_raw(2, 2, in4('{OUTSIDE}', PORT))", "udp-connect", OUTSIDE),
        (f"connect_raw(10, 2, in4('{OUTSIDE}', PORT))", "udp-connect", OUTSIDE),
        (f"connect_raw(10, 2, in6('{OUTSIDE6}', PORT))", "udp-connect", OUTSIDE6),
    ],
)
def test_a_datagram_to_the_outside_is_denied(stage: Stage, udp: str, code: str, what: str, address: str) -> None:
    assert find(stage, udp).ask(code) == "EACCES"
    stage.wait_denied(f"{udp}/0", what, address, find(stage, udp).ask("PORT"))


@pytest.mark.parametrize(
    "code",
    [
        f"[end := socket.socket(2, 2), end.sendmsg([b'x'], [], 0, ('{OUTSIDE}', PORT))]",
        f"send_many([in4('127.0.0.1', PORT), in4('{OUTSIDE}', PORT)])",
        f"send_many([b'', in4('{OUTSIDE}', PORT)])",
    ],
)
def test_a_message_to_the_outside_is_denied_among_others_too(stage: Stage, code: str) -> None:
    assert find(stage, "full").ask(code) == "EACCES"


def test_a_message_that_sendmsg_sends_from_a_loopback_socket_stays_on_the_node(stage: Stage) -> None:
    """Nobody looks at it, so nobody writes it down; the device leads nowhere."""
    sent = "[end := socket.socket(2, 2), end.sendmsg([b'x'], [], 0, ('10.9.0.77', PORT)), end.getsockopt(1, 25, 16)]"
    assert find(stage, "loopback").ask(f"{sent}[2] == b'lo\\0'") is True
    undo = "[end := socket.socket(2, 2), end.setsockopt(1, 25, b'\\0' * 16)]"
    assert find(stage, "loopback").ask(undo) == "EPERM"


# --- kinds of sockets ---------------------------------------------------------------------


@pytest.mark.parametrize("udp", ["none", "loopback", "full"])
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("socket.socket(40, 1)", "EAFNOSUPPORT"),  # VSOCK
        ("socket.socket(17, 3, 0)", "EAFNOSUPPORT"),  # PACKET
        ("socket.socket(38, 5)", "EAFNOSUPPORT"),  # ALG
        ("socket.socket(43, 1)", "EAFNOSUPPORT"),  # SMC
        ("socket.socket(2, 2, 1)", "EACCES"),  # ping
        ("socket.socket(10, 2, 58)", "EACCES"),
        ("socket.socket(2, 3, 255)", "EACCES"),  # RAW
        ("socket.socket(2, 1, 132)", "EACCES"),  # SCTP
        ("socket.socket(2, 5, 132)", "EACCES"),
        ("socket.socket(2, 1, 262)", "EPROTONOSUPPORT"),  # MPTCP
        ("call(425, 1, 0)", "ENOSYS"),  # io_uring
        ("call(426, 0, 0, 0, 0, 0, 0)", "ENOSYS"),
        ("call(427, 0, 0, 0, 0)", "ENOSYS"),
        (f"call(0x40000029 if {X86} else 425, 2, 1, 0)", "ENOSYS"),  # x32
    ],
)
def test_no_other_way_out_is_there(stage: Stage, udp: str, code: str, answer: str) -> None:
    assert find(stage, udp).ask(code) == answer
    if answer in ("EAFNOSUPPORT", "EACCES"):
        stage.wait_denied(f"{udp}/0", "other-socket")


def test_a_32_bit_call_is_no_call(stage: Stage) -> None:
    service = find(stage, "none")
    if not service.ask(X86):
        pytest.skip("this machine has no such calls")
    code = (
        "import mmap, ctypes, os; page = mmap.mmap(-1, 4096, prot=7); "
        r"page.write(b'\xb8\x67\x01\x00\x00\xcd\x80\xc3'); "
        "at = ctypes.addressof(ctypes.c_char.from_buffer(page)); os._exit(-ctypes.CFUNCTYPE(ctypes.c_int)(at)() & 255)"
    )
    # 38 is ENOSYS; a kernel without such calls kills who makes one.
    assert service.ask(f"subprocess.run([sys.executable, '-c', {code!r}]).returncode") in (38, -11)


# --- who calls ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix",
    ["", "'setsid'", "'unshare', '-Ur'", "'unshare', '-Urpf'", "'unshare', '-Urn'", "'setpriv', '--no-new-privs'"],
)
def test_a_descendant_is_guarded_as_its_service(stage: Stage, prefix: str) -> None:
    service = find(stage, "full")
    port = service.ask("PORT")
    assert service.ask(f"run_python('socket.create_connection((\"{OUTSIDE}\", {port}))', {prefix})") == EACCES


def test_in_a_network_of_its_own_a_descendant_may_have_any_socket(stage: Stage) -> None:
    made = 'socket.socket(2, 2).bind(("127.0.0.1", 0))'
    assert find(stage, "none").ask(f"run_python('{made}', 'unshare', '-Urn')") == 0
    assert find(stage, "none").ask(f"run_python('{made}', 'unshare', '-Ur')") == EACCES


def test_a_service_that_may_not_be_traced_is_guarded_and_not_crippled(stage: Stage) -> None:
    service = find(stage, "none")
    port = service.ask("PORT")
    hide = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); "
    assert service.ask(f"run_python('{hide}socket.create_connection((\"127.0.0.1\", {port}))')") == 0
    assert service.ask(f"run_python('{hide}socket.create_connection((\"{OUTSIDE}\", {port}))')") == EACCES


def test_another_filter_neither_undoes_the_guard_nor_takes_its_place(stage: Stage) -> None:
    service = find(stage, "none")
    port = service.ask("PORT")
    # An allow-all filter of its own, plainly and with a listener of its own.
    number = service.ask(f"317 if {X86} else 277")
    made = (
        "import ctypes, struct; libc = ctypes.CDLL(None, use_errno=True); "
        'steps = ctypes.create_string_buffer(struct.pack(\\"HBBI\\", 6, 0, 0, 0x7fff0000)); '
        'program = struct.pack(\\"HxxxxxxQ\\", 1, ctypes.addressof(steps)); '
        f"result = libc.syscall({number}, 1, FLAGS, program); "
    )
    plain = (
        made.replace("FLAGS", "0")
        + f'socket.create_connection((\\"{OUTSIDE}\\", {port})) if result == 0 else sys.exit(99)'
    )
    assert service.ask(f'run_python("{plain}")') == EACCES
    listening = made.replace("FLAGS", "8") + "sys.exit(ctypes.get_errno())"
    assert service.ask(f'run_python("{listening}")') == 16  # EBUSY


def test_a_service_holds_no_listener_and_no_right_of_its_keeper(stage: Stage) -> None:
    service = find(stage, "none")
    held = service.ask(
        "[os.readlink(fd) for each in os.listdir('/proc/self/fd') if os.path.lexists(fd := f'/proc/self/fd/{each}')]"
    )
    assert not [each for each in held if "seccomp" in each or "memfd" in each]
    status = dict(line.split(":\t", 1) for line in service.ask("open('/proc/self/status').read()").splitlines())
    assert (status["CapEff"], status["CapPrm"], status["CapAmb"]) == ("0" * 16,) * 3
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_a_service_cannot_look_into_its_supervisor(stage: Stage) -> None:
    names = "{each: open(f'/proc/{each}/comm').read() for each in os.listdir('/proc') if each.isdigit()}"
    look = f"[each for each, name in {names}.items() if name == 'retinue-egress\\n']"
    service = find(stage, "full")
    assert len(service.ask(look)) == 1
    assert service.ask(f"open('/proc/' + {look}[0] + '/mem', 'rb')") == "EACCES"
    assert service.ask(f"os.listdir('/proc/' + {look}[0] + '/fd')") == "EACCES"


def test_an_address_that_changes_while_it_is_looked_at_gets_nobody_out(stage: Stage) -> None:
    """A second thread flips the address in memory; what was checked is what is connected to."""
    assert find(stage, "none").ask(f"race('{OUTSIDE}', PORT, 300)") == 0


def test_an_unguarded_service_is_left_alone(stage: Stage) -> None:
    outside = find(stage, "outside")
    assert outside.ask("dict(line.split(':', 1) for line in open('/proc/self/status'))['Seccomp'].strip()") == "0"
    assert all(replica != "outside/0" for replica, *_ in stage.denied)
