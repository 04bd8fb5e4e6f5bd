"""A service whose API key is the run's token gets it from the gateway, whatever key a client made up."""

from aiohttp import web
from gateway_scenes import TOKEN, Scene, make_backend, make_route, open_scene

from retinue.terms.record import replace


async def ask_with(scene: Scene, headers: str, *, wants_token: bool) -> tuple[list[str], list[str]]:
    """Which Authorization and X-API-Key values the backend saw."""
    seen: list[tuple[list[str], list[str]]] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        seen.append((request.headers.getall("Authorization", []), request.headers.getall("X-API-Key", [])))
        return web.Response(text="ok")

    route = make_route(make_backend(await scene.open_backend(handle)))
    scene.publish(replace(route, wants_token=wants_token))
    assert (await scene.ask("/judge/v1/models", headers=headers)).status == 200
    return seen[0]


async def test_the_token_replaces_what_a_clients_library_made_up() -> None:
    made_up = "Authorization: Bearer sk-none\r\nX-API-Key: mine\r\n"
    async with open_scene() as scene:
        for headers in ("", made_up, f"Authorization: Bearer {TOKEN}\r\n"):
            assert await ask_with(scene, headers, wants_token=True) == ([f"Bearer {TOKEN}"], [])


async def test_another_service_sees_the_clients_own_key_and_never_the_token() -> None:
    async with open_scene() as scene:
        assert await ask_with(scene, "Authorization: Bearer sk-own\r\n", wants_token=False) == (["Bearer sk-own"], [])
        assert await ask_with(scene, f"X-API-Key: {TOKEN}\r\n", wants_token=False) == ([], [])
