"""One session, one replica: by header, from any node, as long as that replica is usable."""

from aiohttp import web
from far_scenes import answer_with, open_nodes
from gateway_scenes import Handle, Scene, make_backend, open_scene

from retinue.channel.messages import Backend, Route
from retinue.terms.calls import CallRules


def make_named(*backends: Backend, affinity: str = "X-Retinue-Session") -> Route:
    return Route(service="judge", backends=backends, rules=CallRules(affinity=affinity))


async def open_four(scene: Scene) -> list[Backend]:
    def name_it(number: int) -> Handle:
        async def handle(request: web.BaseRequest) -> web.Response:
            return web.Response(text=f"judge/{number}")

        return handle

    return [make_backend(await scene.open_backend(name_it(at)), f"judge/{at}") for at in range(4)]


async def ask_for(scene: Scene, session: str, header: str = "X-Retinue-Session") -> str:
    return (await scene.ask("/judge/", headers=f"{header}: {session}\r\n")).body.decode()


async def test_a_session_stays_with_its_replica_and_sessions_are_spread() -> None:
    async with open_scene() as scene:
        scene.publish(make_named(*await open_four(scene)))
        first = {f"s{number}": await ask_for(scene, f"s{number}") for number in range(24)}
        again = {session: await ask_for(scene, session) for session in first}
        assert again == first
        assert set(first.values()) == {f"judge/{number}" for number in range(4)}


async def test_only_the_sessions_of_a_replica_that_went_move_and_they_come_back_with_it() -> None:
    async with open_scene() as scene:
        backends = await open_four(scene)
        scene.publish(make_named(*backends))
        before = {f"s{number}": await ask_for(scene, f"s{number}") for number in range(16)}
        scene.proxy.table.drop("judge/2", 1, "exited")
        meanwhile = {session: await ask_for(scene, session) for session in before}
        moved = {session for session in before if meanwhile[session] != before[session]}
        assert moved == {session for session, replica in before.items() if replica == "judge/2"} != set()
        scene.publish(make_named(*backends))
        assert {session: await ask_for(scene, session) for session in before} == before


async def test_a_service_may_name_the_header_and_then_the_usual_one_means_nothing() -> None:
    async with open_scene() as scene:
        scene.publish(make_named(*await open_four(scene), affinity="X-Episode"))
        assert len({await ask_for(scene, "same", "X-Episode") for _ in range(8)}) == 1
        assert len({await ask_for(scene, "same") for _ in range(8)}) == 4


async def test_two_nodes_send_a_session_to_the_same_replica() -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        backends = [
            await node.open_replica(answer_with(f"judge/{at}"), f"judge/{at}")
            for at, node in enumerate((near, far, near, far))
        ]
        for node, other in ((near, far), (far, near)):
            node.scene.publish(make_named(*backends), peers=(other.peer(),))
        for number in range(6):
            seen = {await ask_for(node.scene, f"s{number}") for node in nodes}
            assert len(seen) == 1
