"""Probes are answered by the replica itself, or they fail; what hangs is cut off."""

import asyncio
import os
import socket
from pathlib import Path

import pytest
from agent_doubles import is_alive, wait_for
from agent_stage import PYTHON, open_stage

from retinue.channel.messages import Report
from retinue.node.facts import LagMeter
from retinue.node.listeners import Holder, Ownership, find_answering, parse_listeners
from retinue.node.probe import Answer, Target, parse_status_line, probe_port
from retinue.terms.launch import ProbeKind, ProbeSpec
from retinue.terms.replica import LivenessLost, ReadinessChanged, StartupPassed, Verdict

READY_HTTP = ProbeSpec(ProbeKind.READINESS, http_path="/health", period_s=0.05, timeout_s=5.0)
SERVE = """
import http.server, os, socket
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if os.path.exists('{where}/sick') else 200); self.end_headers(); self.wfile.write(b'x')
    def log_message(self, *args): pass
class Server(http.server.HTTPServer):
    address_family = FAMILY
    allow_reuse_address = True
Server((HOST, int('{port}')), Handler).serve_forever()
"""
SERVE_4 = SERVE.replace("FAMILY", "socket.AF_INET").replace("HOST", "'127.0.0.1'")
SERVE_6 = SERVE.replace("FAMILY", "socket.AF_INET6").replace("HOST", "'::1'")
OURS = Ownership(Holder(1, 1, 1))


async def check_ours(port: int, address: str) -> Ownership:
    return OURS


async def test_readiness_follows_the_service_and_names_the_answer(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(SERVE_4, wants_port=True, probes=(READY_HTTP,)))
        assert (await stage.wait_event("svc/0", ReadinessChanged)).is_ready
        (tmp_path / "sick").touch()
        changes = lambda: [e for e in stage.controller.events("svc/0") if isinstance(e, ReadinessChanged)]  # noqa: E731
        await wait_for(lambda: len(changes()) == 2, "loss of readiness")
        assert not changes()[1].is_ready
        assert "answered 503" in changes()[1].cause


async def test_a_server_on_the_ipv6_loopback_only_becomes_ready(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(SERVE_6, wants_port=True, probes=(READY_HTTP,)))
        assert (await stage.wait_event("svc/0", ReadinessChanged)).is_ready


async def test_a_proxy_in_the_environment_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(SERVE_4, wants_port=True, probes=(READY_HTTP,)))
        assert (await stage.wait_event("svc/0", ReadinessChanged)).is_ready


async def test_a_strangers_answer_on_our_port_is_not_healthy_and_names_the_stranger(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        with socket.socket() as stranger:
            stranger.bind(("127.0.0.1", 0))
            stranger.listen()
            port = stranger.getsockname()[1]
            probe = ProbeSpec(ProbeKind.LIVENESS, tcp=True, port=port, period_s=0.05, timeout_s=5.0, failures=2)
            await stage.start(stage.build_spec("import signal; signal.pause()", probes=(probe,)))
            lost = await stage.wait_event("svc/0", LivenessLost)
        assert f"port {port} is answered by pid {os.getpid()} (not ours)" in lost.cause


async def test_nothing_is_ready_before_the_startup_probe_passed(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        startup = ProbeSpec(
            ProbeKind.STARTUP, exec_argv=("test", "-e", f"{tmp_path}/loaded"), period_s=0.05, timeout_s=5.0
        )
        await stage.start(stage.build_spec(SERVE_4, wants_port=True, probes=(READY_HTTP, startup)))
        agent = stage.agent.slots
        assert agent is not None
        prober = await wait_for(lambda: agent.by_replica["svc/0"].prober, "prober")
        await wait_for(lambda: prober.last_causes.get(ProbeKind.STARTUP), "failed startup probe")
        assert not [e for e in stage.controller.events("svc/0") if isinstance(e, ReadinessChanged)]
        (tmp_path / "loaded").touch()
        assert (await stage.wait_event("svc/0", ReadinessChanged)).is_ready
        kinds = [type(event) for event in stage.controller.events("svc/0")]
        assert kinds.index(StartupPassed) < kinds.index(ReadinessChanged)


async def test_an_exec_probe_that_hangs_is_killed_with_its_group_and_delays_no_other(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        hang = f"import os, signal; open('{tmp_path}/probe', 'w').write('%d\\n' % os.getpid()); signal.pause()"
        liveness = ProbeSpec(
            ProbeKind.LIVENESS, exec_argv=(PYTHON, "-S", "-c", hang), period_s=0.1, timeout_s=1.0, failures=1
        )
        await stage.start(stage.build_spec(SERVE_4, wants_port=True, probes=(liveness, READY_HTTP)))
        probe = int(await stage.wait_file("probe"))
        lost = await stage.wait_event("svc/0", LivenessLost)
        assert "did not end within 1 s" in lost.cause
        await wait_for(lambda: not is_alive(probe), "end of the probe")
        kinds = [type(event) for event in stage.controller.events("svc/0")]
        assert kinds.index(ReadinessChanged) < kinds.index(LivenessLost)


async def test_an_exec_probe_under_way_ends_with_its_service_and_is_no_escapee(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        hang = f"import os, signal; open('{tmp_path}/probe', 'w').write('%d\\n' % os.getpid()); signal.pause()"
        liveness = ProbeSpec(ProbeKind.LIVENESS, exec_argv=(PYTHON, "-S", "-c", hang), period_s=0.1, timeout_s=600.0)
        await stage.start(stage.build_spec("import signal; signal.pause()", probes=(liveness,)))
        probe = int(await stage.wait_file("probe"))
        stage.stop("svc/0", 1)
        exited = await stage.wait_exit("svc/0")
        assert not is_alive(probe)
        assert exited.escapees == 0


async def test_an_exec_probe_sees_the_replicas_environment_and_its_words_are_redacted(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        code = "import os; print(os.environ['RETINUE_REPLICA'], os.environ['KEY']); raise SystemExit(4)"
        liveness = ProbeSpec(
            ProbeKind.LIVENESS, exec_argv=(PYTHON, "-S", "-c", code), period_s=0.05, timeout_s=20.0, failures=1
        )
        spec = stage.build_spec("import signal; signal.pause()", probes=(liveness,), secrets={"KEY": "hush-hush"})
        await stage.start(spec)
        lost = await stage.wait_event("svc/0", LivenessLost)
        assert "exited 4: svc/0 [redacted]" in lost.cause


async def test_a_lost_liveness_is_told_again_to_a_controller_that_comes_back(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        liveness = ProbeSpec(ProbeKind.LIVENESS, exec_argv=("false",), period_s=0.05, timeout_s=20.0, failures=1)
        await stage.start(stage.build_spec("import signal; signal.pause()", probes=(liveness,)))
        lost = await stage.wait_event("svc/0", LivenessLost)
        stage.controller.disconnect()
        stage.controller.said.clear()
        stage.controller.connect()
        assert Report("svc/0", lost) in stage.controller.said


async def test_a_server_that_accepts_and_says_nothing_fails_at_its_timeout() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        spec = ProbeSpec(ProbeKind.READINESS, http_path="/", timeout_s=0.1)
        target = Target(("127.0.0.1",), server.getsockname()[1], check_ours)
        assert (await probe_port(spec, target, lambda: 0.0)).verdict is Verdict.FAIL
        late = await probe_port(spec, target, lambda: 1.5)
        assert late == Answer(Verdict.UNKNOWN, "this agent's own loop was late")


async def test_a_probe_for_which_we_have_no_descriptor_left_says_nothing_about_the_replica() -> None:
    async def no_descriptor(port: int, address: str) -> Ownership:
        raise OSError(24, "Too many open files")

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        spec = ProbeSpec(ProbeKind.READINESS, tcp=True, timeout_s=5.0)
        answer = await probe_port(spec, Target(("127.0.0.1",), server.getsockname()[1], no_descriptor), lambda: 0.0)
    assert answer.verdict is Verdict.UNKNOWN
    refused = await probe_port(spec, Target(("127.0.0.1",), server_port_that_is_closed(), check_ours), lambda: 0.0)
    assert refused.verdict is Verdict.FAIL


def server_port_that_is_closed() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


async def test_a_loop_that_was_held_up_knows_how_late_it_was() -> None:
    meter = LagMeter()
    task = asyncio.create_task(meter.run())
    began_s = asyncio.get_running_loop().time()
    await asyncio.sleep(0)
    held_until_s = began_s + 0.4
    while asyncio.get_running_loop().time() < held_until_s:
        pass
    assert meter.worst_since(began_s) > 0.2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("line", [b"220 smtp ready\r\n", b"HTTP/1.1\r\n", b"HTTP/1.1 abc OK\r\n", b"\x16\x03\x01\n"])
def test_what_is_no_http_is_refused_with_what_came(line: bytes) -> None:
    with pytest.raises(ValueError, match="got"):
        parse_status_line(line)


def test_the_more_exact_listener_is_the_one_that_answers() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 00000000:1FBB 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 111 1 0\n"
        "   1: 0100007F:1FBB 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 222 1 0\n"
        "   2: 0100007F:1FBB 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1001        0 333 1 0\n"
    )
    found = parse_listeners(table, 0x1FBB)
    assert [item.inode for item in found] == [111, 222]
    assert [item.inode for item in find_answering(found, "127.0.0.1")] == [222]
    assert [item.inode for item in find_answering(found, "127.0.0.2")] == [111]
    assert find_answering(found, "::1") == []
