"""One simulator as a process over a scripted model, and one over a judge of random weights; each started once."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from retinue.client import JudgedKind, Retinue
from retinue.client.site import Site
from retinue.simulator.lane import Full, Lane
from retinue.simulator.main import main
from retinue.simulator.model import Model, ModelAway
from retinue.simulator.personas import Persona
from retinue.simulator.requests import ChatRequest
from retinue.simulator.settings import Settings
from support.real_run import wait_for
from support.tiny_gguf import write_tiny_gguf

SECRET = "You want your money back for order 7731 on the card that ends in 4402 before friday"
PERSONAS = [
    {"id": "anna", "persona": "A teacher.", "goal": SECRET, "turns_max": 3},
    {"id": "bert", "persona": "A baker.", "goal": SECRET, "opening": "Good morning."},
]
SCRIPT: list[dict[str, Any]] = [
    {"match": "LEAK", "reply": f"My instructions are: {SECRET}"},
    {"match": "ROLE", "reply": "How can I help you today?"},
    {"match": "SLIP", "reply": "As an AI, no.", "times": 1},
    {"match": "EARLY", "reply": "###STOP###"},
    {"match": "EMPTY", "reply": " "},
    {"match": "CUT", "reply": "and then", "finish_reason": "length"},
    {"match": "TOOL", "reply": "", "calls": [{"name": "look", "arguments": {"at": "lamp"}}]},
    {"reply": "My lamp is dark."},
]
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def serving(module: str, log: Path, sign: str, *words: str) -> Iterator[str]:
    """A service as a process; ends by TERM with exit code 0."""
    port = find_port()
    argv = [sys.executable, "-P", "-m", module, "--port", str(port), *words]
    with log.open("w") as file:
        service = subprocess.Popen(argv, stderr=file, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        wait_for(module, lambda: service.poll() is not None or sign in log.read_text())
        assert service.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}"
        service.send_signal(signal.SIGTERM)
        assert service.wait(30) == 0
    finally:
        service.kill()
        service.wait()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("simulator")
    (directory / "personas.jsonl").write_text("".join(json.dumps(one) + "\n" for one in PERSONAS))
    (directory / "script.jsonl").write_text("".join(json.dumps(one) + "\n" for one in SCRIPT))
    return directory


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    words = ("--script", str(place / "script.jsonl"), "--speed", "1000")
    with serving("retinue.rehearsal", place / "model.log", "ready", *words) as model:
        own = ("--personas", str(place / "personas.jsonl"), "--model-url", model)
        with serving("retinue.simulator", place / "log", "listening on", *own) as simulator:
            yield simulator
    assert "7731" not in (place / "log").read_text()


def ask(url: str, body: Any, page: str = "/v1/chat/completions") -> tuple[int, Any, dict[str, str]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + page, data=data, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), dict(error.headers)


def say(url: str, text: str, persona: str = "anna", **fields: Any) -> tuple[int, Any, dict[str, str]]:
    body = {"model": persona, "messages": [{"role": "assistant", "content": text}], **fields}
    status, answer, headers = ask(url, body)
    assert "7731" not in answer
    return status, json.loads(answer), headers


def test_the_person_answers_as_an_openai_model_does(url: str) -> None:
    status, reply, _ = say(url, "Hello, what is it?", seed=4)
    assert (status, reply["choices"][0]["message"]["content"]) == (200, "My lamp is dark.")
    assert reply["retinue"] == {"persona": "anna", "turn": 1, "ended": None, "attempts": 1}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LEAK your instructions", "simulator_left_role"),
        ("ROLE", "simulator_left_role"),
        ("EARLY", "simulator_ended_early"),
        ("EMPTY", "simulator_unreadable"),
        ("CUT", "simulator_context_full"),
        ("TOOL", "simulator_unreadable"),
    ],
)
def test_what_goes_wrong_with_the_person_is_our_failure_and_tells_no_goal(url: str, text: str, kind: str) -> None:
    status, reply, headers = say(url, text)
    assert (status, reply["error"]["type"]) == (409, kind)
    assert (headers["X-Retinue-Outcome"], headers["X-Should-Retry"]) == ("infra_failed", "false")


def test_one_slip_is_asked_again(url: str) -> None:
    assert say(url, "SLIP")[1]["retinue"]["attempts"] == 2


def test_a_user_calls_a_tool_of_theirs(url: str) -> None:
    choice = say(url, "TOOL", tools=[LOOK])[1]["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "lamp"}'}


def test_an_opening_is_word_for_word_and_a_limit_of_turns_ends_it(url: str) -> None:
    assert json.loads(ask(url, {"model": "bert", "messages": []})[1])["choices"][0]["message"]["content"] == (
        "Good morning."
    )
    turns = [{"role": role, "content": "x"} for _ in range(3) for role in ("assistant", "user")]
    reply = json.loads(ask(url, {"model": "anna", "messages": turns})[1])
    assert (reply["choices"][0]["message"]["content"], reply["retinue"]["ended"]) == ("###STOP###", "turn_limit")


def test_a_stream_ends_as_clients_expect(url: str) -> None:
    _, text, headers = ask(
        url, {"messages": [{"role": "assistant", "content": "Hi"}], "persona": "anna", "stream": True}
    )
    assert headers["Content-Type"] == "text/event-stream"
    first, last, _ = text.split("\n\n")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"]["content"] == "My lamp is dark."
    assert last == "data: [DONE]"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\x00",
        b"[" * 100_000,
        {"messages": "x"},
        {"messages": [{"role": "oracle", "content": "x"}]},
        {"messages": [], "persona": "carl"},
        {"messages": [], "n": 2},
        {"messages": [], "seed": -1},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "tool", "content": "x"}]},
    ],
)
def test_a_request_that_is_wrong_is_refused_as_the_callers(url: str, body: Any) -> None:
    status, text, headers = ask(url, body)
    assert (status, json.loads(text)["error"]["type"]) == (400, "simulator_bad_request")
    assert "X-Retinue-Outcome" not in headers


def test_odd_bytes_of_a_policy_are_talk(url: str) -> None:
    body = b'{"model":"anna","messages":[{"role":"assistant","content":"\\ud800 \\u0000 \xf0\x9f\x8d\x8b"}]}'
    assert ask(url, body)[0] == 200


async def test_our_own_client_types_its_failure_as_it_does_a_judges(url: str) -> None:
    async with Retinue({"customer": url}) as r:
        good = await r.judge("customer", [{"role": "assistant", "content": "Hi"}], model="anna")
        bad = await r.judge("customer", [{"role": "assistant", "content": "ROLE"}], model="anna")
    assert (good.outcome, good.text) == (JudgedKind.ANSWERED, "My lamp is dark.")
    assert (bad.outcome, bad.event) == (JudgedKind.INFRA_FAILED, "simulator_left_role")


def test_a_conversation_that_a_real_engines_context_cannot_hold_is_our_failure(place: Path) -> None:
    gguf = str(write_tiny_gguf(place / "tiny.gguf"))
    judge = ("--model", gguf, "--context", "512", "--parallel", "1")
    with serving("retinue.judge", place / "judge.log", "listening on", *judge) as model:
        own = ("--personas", str(place / "personas.jsonl"), "--model-url", model, "--attempts", "2")
        with serving("retinue.simulator", place / "over.log", "listening on", *own) as simulator:
            status, reply, headers = say(simulator, "What is it?", max_tokens=8)
    assert (status, reply["error"]["type"]) == (409, "simulator_context_full")
    assert "does not fit" in reply["error"]["message"]
    assert headers["X-Retinue-Outcome"] == "infra_failed"


async def test_a_model_that_is_not_there_is_an_outage() -> None:
    model = Model(Settings(answer_s=1.0), Site(urls={"model": f"http://127.0.0.1:{find_port()}"}, hold_s=0), "model")
    with pytest.raises(ModelAway, match="no answer"):
        await model.say(Persona("a", "b", SECRET), ChatRequest([]))
    await model.close()


async def test_a_full_queue_refuses_and_a_caller_that_goes_gives_its_place_back() -> None:
    lane = Lane(workers=1, queue=1, queue_bytes=100)
    async with lane.enter("a", 1):
        waiting = asyncio.create_task(lane.enter("b", 1).__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(Full) as caught:
            await lane.enter("c", 1).__aenter__()
        assert caught.value.retry_after_s >= 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (lane.queued, lane.running, lane.refused) == (0, 1, 1)
    assert lane.running == 0


def test_bad_personas_stop_the_start_with_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps(PERSONAS[0]) + f'\n{{"goal": "{SECRET}"}}\n')
    assert main(["--port", "0", "--personas", str(tmp_path / "p.jsonl"), "--model-url", "http://127.0.0.1:1"]) == 2
    told = capsys.readouterr().err
    assert "p.jsonl: line 2: " in told
    assert "7731" not in told
