"""What only the node has: a block of inner ports per replica, and the run's token as a key."""

import itertools
import random
import socket
from pathlib import Path

from agent_stage import open_stage

from retinue.node.ports import BLOCK, Ports, read_ephemeral_range


def test_two_replicas_never_share_a_block_and_a_replica_keeps_its_own() -> None:
    ports = Ports(random.Random(1))
    blocks = {replica: ports.lend_block(replica) for replica in ("j/0", "j/1", "j/2")}
    low, high = read_ephemeral_range()
    starts = sorted(blocks.values())
    assert all(later - earlier >= BLOCK for earlier, later in itertools.pairwise(starts))
    assert all(start + BLOCK <= low or start > high for start in starts)
    assert ports.lend_block("j/1") == blocks["j/1"]


def test_a_block_whose_first_ports_a_stranger_has_is_not_lent() -> None:
    first = Ports(random.Random(7)).lend_block("j/0")
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", first))
        assert Ports(random.Random(7)).lend_block("j/0") != first


async def test_a_service_gets_both_and_its_log_shows_no_token(tmp_path: Path) -> None:
    script = "import os; print(os.environ['KEY']); open('{where}/seen', 'w').write(os.environ['BASE'] + '\\n')"
    async with open_stage(tmp_path) as stage:
        spec = stage.build_spec(script, token_env=("KEY",), env={"BASE": "{inner_port}"}, wants_inner_port=True)
        await stage.start(spec)
        seen = await stage.wait_file("seen")
        await stage.wait_exit("svc/0")
    assert int(seen) % BLOCK == 0
    assert stage.log_text(spec) == "[redacted]\n"
