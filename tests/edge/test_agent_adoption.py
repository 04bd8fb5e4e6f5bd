"""An agent that dies is followed by one that knows: same pids, real exit codes, nothing said twice."""

import os
import signal
from pathlib import Path

from agent_doubles import is_alive, wait_for
from agent_stage import PYTHON, open_stage

from retinue.terms.launch import ProbeKind, ProbeSpec
from retinue.terms.replica import Exited, LivenessLost, ReadinessChanged, Started

SAY_PID = "import os, signal; f = open('{where}/pid', 'w'); f.write(str(os.getpid()) + '\\n'); f.close()\n"
WAIT = SAY_PID + "while True: signal.pause()\n"
ON_TERM = "import os, signal\nsignal.signal(signal.SIGTERM, lambda *args: (print('bye', flush=True), os._exit(5)))\n"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT
READY = ProbeSpec(ProbeKind.READINESS, exec_argv=("test", "!", "-e", "sick"), period_s=0.05, timeout_s=20.0)


async def test_a_running_service_keeps_its_pid_its_log_and_its_readiness(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        talk = "import os, time\nprint('one', flush=True)\nwhile not os.path.exists('{where}/go'): time.sleep(0.01)\n"
        spec = stage.build_spec(talk + "print('two', flush=True)\n" + ON_TERM + WAIT, probes=(READY,))
        started = await stage.start(spec)
        await stage.wait_event("svc/0", ReadinessChanged)
        await wait_for(lambda: stage.log_text(spec) == "one\n", "first line")
        await stage.kill_agent()
        (tmp_path / "go").touch()
        await stage.wait_file("pid")
        await stage.start_agent()
        (seen,) = stage.controller.hellos[0].observed
        assert (seen.pid, seen.is_running, seen.is_ready) == (started.pid, True, True)
        assert stage.controller.hellos[0].agent_starts == 2
        await wait_for(lambda: stage.log_text(spec) == "one\ntwo\n", "line written while no agent lived")
        stage.stop("svc/0", 1)
        exited = await stage.wait_exit("svc/0")
        assert exited.code == 5
        assert stage.log_text(spec) == "one\ntwo\nbye\n"
        assert [type(event) for event in stage.controller.events("svc/0")] == [Exited]


async def test_probes_go_on_where_they_were(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(WAIT, probes=(READY,)))
        await stage.wait_event("svc/0", ReadinessChanged)
        await stage.kill_agent()
        await stage.start_agent()
        (tmp_path / "sick").touch()
        change = await stage.wait_event("svc/0", ReadinessChanged)
        assert not change.is_ready


async def test_an_exit_while_no_agent_lived_is_told_with_its_real_code_after_the_sweep(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        child = (
            f"import subprocess, time; p = subprocess.Popen([{PYTHON!r}, '-S', '-c', 'import signal; signal.pause()'],"
        )
        child += " start_new_session=True)\n"
        child += "with open('{where}/child', 'w') as f: f.write(str(p.pid) + '\\n')\n"
        wait = "while not os.path.exists('{where}/go'): time.sleep(0.01)\nos._exit(42)\n"
        started = await stage.start(stage.build_spec("import os\n" + child + wait))
        escapee = int(await stage.wait_file("child"))
        await stage.kill_agent()
        (tmp_path / "go").touch()
        await wait_for(lambda: not is_alive(started.pid), "end of the service")
        await stage.start_agent()
        exited = await stage.wait_exit("svc/0")
        assert (exited.code, exited.escapees, exited.was_asked) == (42, 1, False)
        assert not is_alive(escapee)


async def test_a_stop_under_way_is_carried_on(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(DEAF))
        await stage.wait_file("pid")
        stage.stop("svc/0", 1, grace_s=2.0)
        await wait_for(
            lambda: '"stop_number":15' in (tmp_path / "node" / "agent.json").read_text(), "memory of the stop"
        )
        await stage.kill_agent()
        await stage.start_agent()
        assert stage.controller.hellos[0].observed[0].is_stopping
        exited = await stage.wait_exit("svc/0")
        assert (exited.signal, exited.was_asked, exited.is_killed_hard) == (signal.SIGKILL, True, True)


async def test_an_end_that_was_told_is_known_and_not_told_again_as_news(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec("raise SystemExit(9)"))
        exited = await stage.wait_exit("svc/0")
        await stage.kill_agent()
        await stage.start_agent()
        (seen,) = stage.controller.hellos[0].observed
        assert seen.exited == exited
        await stage.start(stage.build_spec(WAIT, incarnation=2))
        assert [type(event) for event in stage.controller.events("svc/0")] == [Started]


async def test_a_refused_launch_is_refused_again_by_the_next_agent(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.launch(stage.build_spec("", argv=("/nonexistent/server",)))
        refused = await stage.wait_refused("svc/0")
        await stage.kill_agent()
        await stage.start_agent()
        assert await stage.wait_refused("svc/0") == refused


async def test_an_exec_probe_of_a_dead_agent_is_ended(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        hang = f"import os, signal; open('{tmp_path}/probe', 'a').write('%d\\n' % os.getpid()); signal.pause()"
        liveness = ProbeSpec(ProbeKind.LIVENESS, exec_argv=(PYTHON, "-S", "-c", hang), period_s=0.1, timeout_s=600.0)
        started = await stage.start(stage.build_spec(WAIT, probes=(liveness,)))
        probe = int((await stage.wait_file("probe")).split()[0])
        agent_before = stage.agent
        # Its death is a SIGKILL: no task of it may still send the probe's end to the keeper.
        agent_before._keeper.send = lambda *args: None  # type: ignore[method-assign,assignment]
        await stage.kill_agent()
        assert is_alive(probe)
        await stage.start_agent()
        await wait_for(lambda: not is_alive(probe), "end of the old probe")
        assert is_alive(started.pid)


async def test_without_the_memory_file_readiness_is_told_anew(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(WAIT, probes=(READY,)))
        await stage.wait_event("svc/0", ReadinessChanged)
        await stage.kill_agent()
        (tmp_path / "node" / "agent.json").write_text("{ half writ")
        await stage.start_agent()
        assert not stage.controller.hellos[0].observed[0].is_ready
        assert (await stage.wait_event("svc/0", ReadinessChanged)).is_ready


async def test_a_lost_liveness_survives_the_agent(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        liveness = ProbeSpec(ProbeKind.LIVENESS, exec_argv=("false",), period_s=0.05, timeout_s=20.0, failures=1)
        await stage.start(stage.build_spec(WAIT, probes=(liveness,)))
        lost = await stage.wait_event("svc/0", LivenessLost)
        await wait_for(lambda: '"liveness_lost":"live' in (tmp_path / "node" / "agent.json").read_text(), "memory")
        await stage.kill_agent()
        await stage.start_agent()
        assert await stage.wait_event("svc/0", LivenessLost) == lost
        os.kill(stage.controller.hellos[0].observed[0].pid, signal.SIGKILL)
        await stage.wait_exit("svc/0")
