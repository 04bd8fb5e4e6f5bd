"""What an agent says about one incarnation, from its launch order to its one answer."""

import os
import signal
from pathlib import Path

from agent_doubles import is_alive, wait_for
from agent_stage import open_stage

from retinue.channel.messages import EndNode, NodeEnding
from retinue.terms.launch import StopSpec
from retinue.terms.replica import Exited, LaunchRefused, Started

SAY_PID = "import os; f = open('{where}/pid', 'w'); f.write(str(os.getpid()) + '\\n'); f.close()\n"
WAIT = SAY_PID + "import signal\nwhile True: signal.pause()\n"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT


async def test_an_exit_by_itself_is_told_once_with_its_code_and_last_lines(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        spec = stage.build_spec("print('first'); print('last words'); raise SystemExit(7)")
        started = await stage.start(spec)
        exited = await stage.wait_exit("svc/0")
        assert started.pid > 0
        assert (exited.code, exited.signal, exited.was_asked, exited.rung) == (7, None, False, "")
        assert exited.last_lines.endswith("last words")
        assert exited.is_quick
        assert "first\nlast words\n" in stage.log_text(spec)
        assert [type(event) for event in stage.controller.events("svc/0")] == [Started, Exited]
        assert stage.gateway.drops == [("svc/0", 1, "it exited on its node")]


async def test_a_missing_binary_is_refused_for_good_and_the_same_order_again_says_so_again(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        spec = stage.build_spec("", argv=("/nonexistent/server",))
        stage.launch(spec)
        refused = await stage.wait_refused("svc/0")
        assert not refused.retryable
        assert "/nonexistent/server" in refused.cause
        stage.launch(spec)
        await wait_for(lambda: len(stage.controller.events("svc/0")) == 2, "second answer")
        assert stage.controller.events("svc/0") == [refused, refused]


async def test_a_placeholder_nobody_fills_refuses_the_launch_by_name(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.launch(stage.build_spec("", argv=("echo", "{prot}")))
        refused = await stage.wait_refused("svc/0")
        assert "{prot}" in refused.cause
        assert not refused.retryable


async def test_a_service_that_obeys_its_stop_signal_is_not_killed_hard(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(WAIT))
        await stage.wait_file("pid")
        stage.stop("svc/0", 1)
        exited = await stage.wait_exit("svc/0")
        assert (exited.signal, exited.was_asked, exited.is_killed_hard, exited.left) == (
            signal.SIGTERM,
            True,
            False,
            (),
        )
        assert exited.rung == "subreaper"


async def test_a_service_that_ignores_its_stop_signal_is_killed_when_the_grace_is_over(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(DEAF))
        await stage.wait_file("pid")
        stage.stop("svc/0", 1, grace_s=0.2)
        exited = await stage.wait_exit("svc/0")
        assert (exited.signal, exited.is_killed_hard) == (signal.SIGKILL, True)


async def test_a_second_stop_only_makes_the_end_come_sooner(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(DEAF))
        await stage.wait_file("pid")
        stage.stop("svc/0", 1, grace_s=3600.0)
        stage.stop("svc/0", 1, grace_s=0.1)
        stage.stop("svc/0", 1, grace_s=3600.0)
        exited = await stage.wait_exit("svc/0")
        assert exited.is_killed_hard
        assert [type(event) for event in stage.controller.events("svc/0")] == [Started, Exited]


async def test_a_stopped_service_is_woken_to_die_of_its_stop_signal(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        started = await stage.start(stage.build_spec(WAIT))
        await stage.wait_file("pid")
        os.kill(started.pid, signal.SIGSTOP)
        stage.stop("svc/0", 1)
        exited = await stage.wait_exit("svc/0")
        assert (exited.signal, exited.is_killed_hard) == (signal.SIGTERM, False)


async def test_the_same_order_twice_starts_one_process(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        spec = stage.build_spec("f = open('{where}/starts', 'a'); f.write('x'); f.close()\n" + WAIT)
        stage.launch(spec)
        stage.launch(spec)
        started = await stage.start(spec)
        await stage.wait_file("pid")
        assert (tmp_path / "starts").read_text() == "x"
        pids = {event.pid for event in stage.controller.events("svc/0") if isinstance(event, Started)}
        assert pids == {started.pid}


async def test_an_order_for_an_older_incarnation_changes_nothing(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        started = await stage.start(stage.build_spec(WAIT, incarnation=2))
        stage.launch(stage.build_spec(WAIT, incarnation=1))
        stage.stop("svc/0", 1)
        stage.stop("svc/0", 2)
        assert (await stage.wait_exit("svc/0", 2)).was_asked
        assert {event.incarnation for event in stage.controller.events("svc/0")} == {2}
        assert not is_alive(started.pid)


async def test_a_newer_order_waits_until_the_older_incarnation_is_gone_tree_and_all(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        first = await stage.start(stage.build_spec(DEAF, stop=StopSpec("TERM", 0.3)))
        await stage.wait_file("pid")
        look = (
            "import os; f = open('{where}/second', 'w'); f.write(str(os.path.exists('/proc/%d')) + '\\n'); f.close()\n"
        )
        stage.launch(stage.build_spec(look % first.pid + WAIT, incarnation=2))
        await stage.wait_event("svc/0", Started, 2)
        assert await stage.wait_file("second") == "False"
        exited = await stage.wait_exit("svc/0")
        assert (exited.signal, exited.left) == (signal.SIGKILL, ())
        order = [(type(event), event.incarnation) for event in stage.controller.events("svc/0")]
        assert order == [(Started, 1), (Exited, 1), (Started, 2)]


async def test_a_stop_for_a_launch_that_never_came_is_refused_and_stays_so(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.stop("svc/0", 1)
        await stage.wait_refused("svc/0")
        stage.launch(stage.build_spec(WAIT))
        await wait_for(lambda: len(stage.controller.events("svc/0")) == 2, "second answer")
        assert {type(event) for event in stage.controller.events("svc/0")} == {LaunchRefused}


async def test_a_stop_on_the_heels_of_its_launch_gets_exactly_one_answer(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.launch(stage.build_spec(WAIT))
        stage.stop("svc/0", 1, grace_s=0.2)
        ends = (Exited, LaunchRefused)
        await wait_for(lambda: any(isinstance(e, ends) for e in stage.controller.events("svc/0")), "answer")
        await stage.start(stage.build_spec(WAIT, incarnation=2))
        answers = [e for e in stage.controller.events("svc/0") if isinstance(e, ends) and e.incarnation == 1]
        assert len(answers) == 1


async def test_what_happened_while_the_controller_was_away_is_in_the_next_hello(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        started = await stage.start(stage.build_spec(WAIT))
        stage.controller.disconnect()
        os.kill(started.pid, signal.SIGKILL)
        await wait_for(lambda: not is_alive(started.pid), "death")
        agent = stage.agent.slots
        assert agent is not None
        await agent.by_replica["svc/0"].over.wait()
        hello = stage.controller.connect()
        (seen,) = hello.observed
        assert seen.exited is not None
        assert (seen.is_running, seen.exited.signal) == (False, signal.SIGKILL)


async def test_what_happens_between_hello_and_welcome_is_not_lost(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        started = await stage.start(stage.build_spec(WAIT))
        stage.controller.disconnect()
        hello = stage.controller.build_hello()
        assert hello.observed[0].is_running
        os.kill(started.pid, signal.SIGKILL)
        agent = stage.agent.slots
        assert agent is not None
        await agent.by_replica["svc/0"].over.wait()
        stage.controller.welcome()
        assert (await stage.wait_exit("svc/0")).signal == signal.SIGKILL


async def test_end_node_leaves_nothing_and_says_so_first(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        started = await stage.start(stage.build_spec(DEAF))
        stage.controller.order(EndNode("the run is over"))
        assert stage.agent_code is not None
        assert await stage.agent_code == 0
        assert NodeEnding("the run is over") in stage.controller.said
        await wait_for(lambda: not is_alive(started.pid), "end of the service")


async def test_an_agent_without_a_controller_ends_its_node_after_the_grace(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        started = await stage.start(stage.build_spec(WAIT))
        agent = stage.agent.slots
        assert agent is not None
        agent.orphan_grace_s = 0.5
        stage.controller.disconnect()
        assert stage.agent_code is not None
        assert await stage.agent_code == 0
        await wait_for(lambda: not is_alive(started.pid), "end of the service")
