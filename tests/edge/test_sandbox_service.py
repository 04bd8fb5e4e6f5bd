"""The sandbox service: what callers get for a command, a file, a request that has no meaning."""

import asyncio
import base64
import io
import tarfile
from collections.abc import AsyncIterator

import pytest
from sandbox_service import MIB, Service, real_service


@pytest.fixture
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with real_service(tmp_path_factory.getbasetemp()) as running:
        yield running


async def test_a_sandbox_lives_from_its_create_to_its_destroy_and_says_so(service: Service) -> None:
    made = await service.ask("POST", "/v1/sandboxes", {"image": service.image}, headers={"X-Retinue-Caller": "me"})
    name = made["id"]
    assert made["node"] == "n1"
    assert made["is_new"] is True
    assert made["wait_s"] == 0.0
    assert made["start_s"] > 0
    assert await service.text(name, "cat /app/file") == "of the image"
    (listed,) = (await service.ask("GET", "/v1/sandboxes?caller=me"))["sandboxes"]
    assert (listed["id"], listed["image"], listed["limits"]["pids"]) == (name, service.image, 64)
    assert (await service.ask("GET", "/v1/sandboxes?caller=other"))["sandboxes"] == []
    shown = await service.ask("GET", f"/v1/sandboxes/{name}")
    assert shown["usage"]["disk_max_bytes"] == 32 * MIB
    assert (await service.ask("DELETE", f"/v1/sandboxes/{name}"))["state"] == "destroyed"
    refusal = await service.refusal("POST", f"/v1/sandboxes/{name}/exec", {"script": "true"})
    assert (refusal.status, refusal.kind) == (410, "sandbox_destroyed")
    assert (await service.ask("DELETE", f"/v1/sandboxes/{name}"))["state"] == "destroyed"
    assert (await service.ask("GET", "/v1/sandboxes"))["sandboxes"] == []
    assert service.host.budget.used.count == 0


async def test_with_and_without_a_network_of_their_own_they_live_on_one_image(service: Service) -> None:
    script = "ls -l /proc/self/ns/net | tail -c 17; cat /app/file"
    own = {await service.text(await service.create(), script) for _ in range(3)}
    shared = {await service.text(await service.create(net=False), script) for _ in range(3)}
    assert (len(own), len(shared), own & shared) == (3, 1, set())
    assert all("of the image" in text for text in own | shared)


async def test_every_end_of_a_command_has_its_own_outcome(service: Service) -> None:
    name = await service.create(limits={"memory": "48MiB"})

    async def end(script: str, **fields: object) -> tuple[str, object, object]:
        result = await service.exec(name, script, **fields)
        return result["outcome"], result["code"], result["signal"]

    assert await end("exit 7") == ("exited", 7, None)
    assert await end("kill -11 $$") == ("signalled", None, 11)
    assert await end("sleep 60", timeout_s=0.2) == ("timed_out", None, 9)
    assert await end("while :; do :; done", cpu_s=1, timeout_s=50) == ("timed_out", None, 24)
    assert await end("head -c 300M /dev/zero | tail -c 300M", timeout_s=50) == ("memory_exceeded", None, 9)
    assert (await end("dd if=/dev/zero of=/big bs=1M count=64"))[0] == "disk_full"
    assert await end("rm /big; echo hi > /small") == ("exited", 0, None)
    assert (await end("i=0; while touch /f$i; do i=$((i+1)); done; exit 1"))[0] == "disk_full"


async def test_what_cannot_be_run_is_the_callers_and_says_why(service: Service) -> None:
    name = await service.create()
    for fields, code, words in (
        ({"argv": ["no-such-program"]}, 127, "no-such-program"),
        ({"argv": ["/app/file"]}, 126, "Permission denied"),
        ({"argv": ["/bin/true"], "cwd": "/nowhere"}, 127, "No such file"),
    ):
        result = await service.ask("POST", f"/v1/sandboxes/{name}/exec", fields)
        assert (result["outcome"], result["code"]) == ("exited", code)
        assert words in result["cause"]


async def test_a_command_returns_though_its_child_holds_the_pipe_and_the_child_is_gone(service: Service) -> None:
    name = await service.create()
    result = await service.exec(name, "sleep 1000 & echo started", timeout_s=50)
    assert (result["outcome"], result["stdout"]["head"]) == ("exited", "started\n")
    assert result["wall_s"] < 40
    assert "sleep" not in await service.text(name, "cat /proc/[0-9]*/comm 2>/dev/null; true")


async def test_what_was_asked_to_live_lives_on_after_its_command(service: Service) -> None:
    name = await service.create()
    await service.exec(name, "sleep 1000 & echo started", keep_tree=True)
    assert "sleep" in await service.text(name, "cat /proc/[0-9]*/comm 2>/dev/null; true")


async def test_partial_output_comes_back_at_the_deadline(service: Service) -> None:
    name = await service.create()
    result = await service.exec(name, "echo before; echo worse >&2; sleep 60; echo after", timeout_s=0.5)
    assert result["outcome"] == "timed_out"
    assert (result["stdout"]["head"], result["stderr"]["head"]) == ("before\n", "worse\n")
    assert "0.5 s" in result["cause"]
    assert result["left"] == 0


async def test_stdin_is_empty_unless_it_is_given_and_then_exact(service: Service) -> None:
    name = await service.create()
    assert await service.text(name, "cat; echo end") == "end"
    assert await service.text(name, "cat", stdin="héllo") == "héllo"
    data = bytes(range(256)) * 2000
    coded = base64.b64encode(data).decode()
    result = await service.exec(name, "cat", stdin_base64=coded, output=4 * MIB)
    assert result["stdout"]["encoding"] == "base64"
    assert base64.b64decode(result["stdout"]["head"]) == data
    assert await service.text(name, "true", stdin_base64=coded) == ""


async def test_environment_directory_user_and_name_are_what_was_asked(service: Service) -> None:
    name = await service.create(env={"A": "1", "B": "2"}, workdir="/some/deep", user=1234, hostname="box-7")
    assert await service.text(
        name, "echo $A$B$C; pwd; id -u; cat /proc/sys/kernel/hostname", env={"B": "3", "C": "ü"}
    ) == ("13ü\n/some/deep\n1234\nbox-7")
    assert await service.text(name, "pwd", cwd="/app") == "/app"


async def test_a_script_longer_than_a_word_may_be_runs_and_leaves_nothing(service: Service) -> None:
    name = await service.create()
    script = "# " + "x" * 300_000 + "\necho $0 done; ls -a / | head -c 4000"
    shown = await service.text(name, script)
    assert "done" in shown
    assert ".retinue-script" in shown.splitlines()[0]
    for _ in range(200):
        if ".retinue-script" not in await service.text(name, "ls -a /"):
            return
    raise AssertionError("the script is still there")


async def test_files_go_in_and_out_exactly(service: Service) -> None:
    name = await service.create()
    place, data = f"/v1/sandboxes/{name}", bytes(range(256)) * 20_000
    await service.ask_raw("PUT", f"{place}/file?path=/new/dir/f&mode=0600", io.BytesIO(data))
    assert await service.text(name, "wc -c < /new/dir/f") == str(len(data))
    assert await service.ask_raw("GET", f"{place}/file?path=/new/dir/f") == data
    assert await service.ask_raw("GET", f"{place}/file?path=/new/dir/f&offset=10&limit=5") == data[10:15]
    await service.ask_raw("PUT", f"{place}/file?path=/new/dir/f&append=1", b"more")
    entry = await service.ask("GET", f"{place}/stat?path=/new/dir/f")
    assert (entry["size"], entry["mode"]) == (len(data) + 4, 0o600)
    await service.ask("POST", f"{place}/directory?path=/a/b/c")
    names = [entry["name"] for entry in (await service.ask("GET", f"{place}/files?path=/a"))["entries"]]
    assert names == ["b"]
    assert (await service.refusal("DELETE", f"{place}/file?path=/a")).kind == "sandbox_file_refused"
    await service.ask("DELETE", f"{place}/file?path=/a&recursive=1")
    assert (await service.refusal("GET", f"{place}/stat?path=/a")).status == 404
    assert (await service.refusal("GET", f"{place}/file?path=/proc/1/environ")).status == 409
    assert (await service.refusal("GET", f"{place}/file")).status == 400


async def test_an_archive_goes_in_and_comes_out_of_another_sandbox(service: Service) -> None:
    first, second = await service.create(), await service.create()
    await service.exec(first, "mkdir -p /d/e; seq 100000 > /d/e/numbers; ln -s e /d/link")
    packed = await service.ask_raw("GET", f"/v1/sandboxes/{first}/archive?path=/d")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert {member.name.strip("./") for member in archive} >= {"e", "e/numbers", "link"}
    await service.ask_raw("PUT", f"/v1/sandboxes/{second}/archive?path=/x", io.BytesIO(packed))
    assert await service.text(second, "tail -n 1 /x/link/numbers") == "100000"
    assert (await service.refusal("PUT", f"/v1/sandboxes/{second}/archive?path=/y", data=b"no tar" * 500)).status == 400


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "argv or script"),
        ({"argv": ["a"], "script": "b"}, "argv or script"),
        ({"argv": "a"}, "argv"),
        ({"argv": ["a\0b"]}, "NUL"),
        ({"script": "x", "timeout_s": 0}, "timeout_s"),
        ({"script": "x", "cpu_s": 0.1}, "cpu_s"),
        ({"script": "x", "stdin": "a", "stdin_base64": "YQ=="}, "stdin"),
        ({"script": "x", "stdin_base64": "!"}, "base64"),
        ({"script": "x", "stream": True, "background": True}, "one is possible"),
        ({"script": "x", "env": {"A=B": "c"}}, "env"),
    ],
)
async def test_a_command_that_has_no_meaning_is_refused_by_its_field(
    service: Service, body: dict[str, object], words: str
) -> None:
    name = await service.create()
    refusal = await service.refusal("POST", f"/v1/sandboxes/{name}/exec", body)
    assert refusal.status == 400
    assert words in refusal.error["message"]


async def test_what_is_not_there_is_a_typed_404_and_names_what_is(service: Service) -> None:
    for method, path, status, kind in (
        ("GET", "/nowhere", 404, "sandbox_unknown_page"),
        ("GET", "/v1/sandboxes/sandbox.0-x", 404, "sandbox_unknown"),
        ("POST", "/v1/sandboxes/sandbox.0-x/exec", 404, "sandbox_unknown"),
        ("PUT", "/v1/sandboxes", 405, "sandbox_wrong_method"),
        ("GET", f"/v1/sandboxes/sandbox.0-{'0' * 16}", 410, "infra_failed"),
        ("GET", f"/v1/sandboxes/other.0-{'0' * 16}", 404, "sandbox_unknown"),
    ):
        refusal = await service.refusal(method, path)
        assert (refusal.status, refusal.kind) == (status, kind), path
    assert (await service.refusal("POST", "/v1/sandboxes", {"image": "/no/such/image"})).kind == "sandbox_no_image"
    assert (await service.refusal("POST", "/v1/sandboxes", {"image": "/dev/null"})).status in (404, 422)
    refusal = await service.refusal("POST", "/v1/sandboxes", {"image": service.image, "limits": {"dsik": 1}})
    assert (refusal.status, "limits.dsik" in refusal.error["message"]) == (400, True)
    assert (await service.refusal("POST", "/v1/sandboxes", ["no", "object"])).status == 400
    assert await service.create()  # None of these has left anything behind.


async def test_numbers_say_what_is_there(service: Service) -> None:
    await asyncio.gather(*(service.create() for _ in range(4)))
    text = (await service.ask_raw("GET", "/metrics")).decode()
    assert "retinue_sandbox_live 4\n" in text
    assert 'retinue_sandbox_shard_live{shard="0"} 2\n' in text
    capacity = await service.ask("GET", "/v1/capacity")
    assert (capacity["live"], capacity["used"]["count"], capacity["creates"]) == (4, 4, True)
    assert capacity["images"] == [service.image]
    health = await service.ask("GET", "/health")
    assert (health["status"], health["creates"], len(health["shards"])) == ("ok", True, 2)
