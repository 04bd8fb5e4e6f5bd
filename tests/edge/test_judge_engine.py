"""The judge on the CPU, really: llama.cpp's server with a model of random weights, started once."""

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.client import JudgedKind, Retinue
from retinue.judge.engine import has_avx2, load_library
from retinue.judge.main import main
from retinue.judge.settings import KEY
from retinue.lifecycle.progress import Sample
from retinue.node.engines import ENGINES, parse_samples
from support.real_run import wait_for
from support.tiny_gguf import write_tiny_gguf

API_KEY = "the-key"


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A judge that serves; ends by TERM with exit code 0."""
    directory, port = tmp_path_factory.mktemp("judge"), find_port()
    model = write_tiny_gguf(directory / "tiny.gguf")
    words = ("--port", str(port), "--model", str(model), "--context", "1024", "--parallel", "2", "--alias", "noise")
    log = (directory / "log").open("w+")
    argv = [sys.executable, "-P", "-m", "retinue.judge", *words]
    judge = subprocess.Popen(argv, env={**os.environ, KEY: API_KEY}, stderr=log)
    try:
        wait_for("the judge", lambda: judge.poll() is not None or "listening on" in Path(log.name).read_text())
        assert judge.poll() is None, Path(log.name).read_text()
        yield f"http://127.0.0.1:{port}"
        judge.send_signal(signal.SIGTERM)
        assert judge.wait(30) == 0
    finally:
        judge.kill()
        judge.wait()
        log.close()


def get(url: str, path: str, key: str = API_KEY) -> tuple[int, str]:
    request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_it_answers_in_the_form_that_was_asked_for(url: str) -> None:
    async with Retinue({"judge": url}, token=API_KEY) as r:
        judged = await r.judge("judge", "Is it so?", schema={"enum": ["yes", "no"]}, max_tokens=32)
    assert judged.outcome is JudgedKind.ANSWERED, judged.reason
    assert judged.answer in ("yes", "no")


async def test_the_same_question_gets_the_same_answer(url: str) -> None:
    async with Retinue({"judge": url}, token=API_KEY) as r:
        texts = {(await r.judge("judge", "Say something.", max_tokens=12, seed=3)).text for _ in range(2)}
    assert len(texts) == 1


async def test_a_prompt_longer_than_the_context_is_the_callers_to_shorten(url: str) -> None:
    async with Retinue({"judge": url}, token=API_KEY) as r:
        judged = await r.judge("judge", "word " * 2000, max_tokens=4)
    assert judged.outcome is JudgedKind.REJECTED
    assert "context" in judged.reason


def test_only_its_health_is_for_everybody(url: str) -> None:
    assert get(url, "/health", key="")[0] == 200
    assert {get(url, path, key="")[0] for path in ("/metrics", "/v1/models")} == {401}
    assert "noise" in get(url, "/v1/models")[1]


async def test_its_metrics_are_what_the_probe_reads_and_move_with_its_work(url: str) -> None:
    [before] = parse_samples(get(url, "/metrics")[1], ENGINES["llamacpp"]).values()
    async with Retinue({"judge": url}, token=API_KEY) as r:
        await r.judge("judge", "Once more.", max_tokens=4)
    [after] = parse_samples(get(url, "/metrics")[1], ENGINES["llamacpp"]).values()
    assert isinstance(before, Sample)
    assert after.marks > before.marks


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ("/nowhere/x.gguf", "no such file"),
        ("smollm3", "no model is called 'smollm3'"),
        ("smollm2", "retinue models fetch smollm2"),
        (__file__, "it is no GGUF file"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_before_anything_is_loaded(
    model: str, what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RETINUE_MODELS", str(tmp_path))
    assert main(["--port", "1", "--model", model]) == 2
    assert what in capsys.readouterr().err


def test_a_cpu_that_cannot_run_the_wheel_is_told_apart() -> None:
    assert load_library().__name__ == "xllamacpp"
    assert has_avx2("flags\t\t: fpu sse4_2 avx2 bmi2\n")
    assert not has_avx2("flags\t\t: fpu sse4_2 avx\n")
    assert has_avx2("Features\t: fp asimd\n")
