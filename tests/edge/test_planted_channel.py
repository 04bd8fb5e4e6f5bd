"""Who does not see the run directory is refused by word, not joined and found out later."""

import socket

from channel_scenes import VERSION, Agent, Desk, bind_listener, build_join, running, serving, until

from retinue.channel.messages import Hello, Refused


async def test_a_node_on_another_file_system_is_refused_before_the_controller_hears_of_it() -> None:
    desk = Desk()
    listener: socket.socket
    with bind_listener() as listener:
        agent = Agent(build_join(listener), Hello("n1", VERSION, "another run directory's nonce"))
        async with serving(listener, desk), running(agent):
            await until(lambda: agent.heard, "an answer to the Hello")
            assert isinstance(agent.heard[0], Refused)
            assert desk.hellos == []
