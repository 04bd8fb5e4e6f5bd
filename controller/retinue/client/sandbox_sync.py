"""The same sandbox for programs without asyncio: every call is one of `Sandbox`, waited for.

`Run` waits for a coroutine on the client's own event loop. May be used by several threads at once.
"""

import os
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import Any, Protocol, TypeVar, Unpack

from retinue.client.sandbox import Sandbox
from retinue.client.sandbox_exec import Command, ExecOptions
from retinue.client.sandbox_files import ARCHIVE_S, Files
from retinue.client.sandbox_process import CommandStream, Process
from retinue.client.sandbox_records import Ended, Entry, Made, Piece, Running, Stretch, Uploaded

T = TypeVar("T")


class Run(Protocol):
    """Runs a coroutine to its end, from any thread."""

    def __call__(self, call: Coroutine[Any, Any, T], /) -> T: ...


class SyncSandbox:
    """An isolated machine of a rollout. `with retinue.sandbox(image) as box`."""

    def __init__(self, run: Run, sandbox: Sandbox) -> None:
        self._run = run
        self._sandbox = sandbox

    @property
    def made(self) -> Made:
        """As `Sandbox.made`."""
        return self._sandbox.made

    @property
    def id(self) -> str:
        """As `Sandbox.id`."""
        return self._sandbox.id

    @property
    def node(self) -> str:
        """As `Sandbox.node`."""
        return self._sandbox.node

    def __enter__(self) -> "SyncSandbox":
        """Make it, as `Sandbox` does."""
        self._run(self._sandbox.__aenter__())
        self.files = SyncFiles(self._run, self._sandbox.files)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()

    def destroy(self) -> None:
        """End it, as `Sandbox.destroy` does."""
        self._run(self._sandbox.destroy())

    def renew(self, lease_s: float | None = None) -> None:
        """Begin its lease anew, as `Sandbox.renew` does."""
        self._run(self._sandbox.renew(lease_s))

    def show(self) -> dict[str, Any]:
        """Return all that the service says of it."""
        return self._run(self._sandbox.show())

    def exec(self, command: Command, *, deadline_s: float | None = None, **options: Unpack[ExecOptions]) -> Ended:
        """Run a command and wait for its end, as `Sandbox.exec` does."""
        return self._run(self._sandbox.exec(command, deadline_s=deadline_s, **options))

    def stream(self, command: Command, **options: Unpack[ExecOptions]) -> "SyncCommandStream":
        """Run a command and read what it writes as it comes, as `Sandbox.stream` does."""
        return SyncCommandStream(self._run, self._sandbox.stream(command, **options))

    def start(self, command: Command, *, stdin_open: bool = False, **options: Unpack[ExecOptions]) -> "SyncProcess":
        """Start a command in the background, as `Sandbox.start` does."""
        return SyncProcess(self._run, self._run(self._sandbox.start(command, stdin_open=stdin_open, **options)))

    def process(self, name: str) -> "SyncProcess":
        """Return the handle of a background process by its name."""
        return SyncProcess(self._run, self._sandbox.process(name))

    def processes(self) -> list[Running]:
        """List the background processes, without their output."""
        return self._run(self._sandbox.processes())


class SyncCommandStream:
    """What a command writes, piece by piece; leaving the context ends the command."""

    def __init__(self, run: Run, stream: CommandStream) -> None:
        self._run = run
        self._stream = stream

    @property
    def ended(self) -> Ended | None:
        """Set once the last piece was read."""
        return self._stream.ended

    def __enter__(self) -> "SyncCommandStream":
        self._run(self._stream.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._stream.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        """Return the next piece, as `CommandStream` does."""
        try:
            return self._run(self._stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None


class SyncProcess:
    """A command that runs in the background of a sandbox."""

    def __init__(self, run: Run, process: Process) -> None:
        self._run = run
        self._process = process
        self.name = process.name

    def wait(self, timeout_s: float | None = None) -> Ended | None:
        """Wait for its end; None: it still runs after `timeout_s`."""
        return self._run(self._process.wait(timeout_s))

    def show(self) -> Running:
        """Return it as it is now, with what it wrote so far."""
        return self._run(self._process.show())

    def read(self, stream: str = "stdout", offset: int = 0) -> Stretch:
        """Return what it wrote from an offset on, as far as that is still kept."""
        return self._run(self._process.read(stream, offset))

    def write(self, data: bytes | str, close: bool = False) -> None:
        """Give it more to read, as `Process.write` does."""
        self._run(self._process.write(data, close))

    def signal(self, number: int | str = "TERM", to: str = "leader") -> int:
        """Signal it, as `Process.signal` does."""
        return self._run(self._process.signal(number, to))

    def kill(self) -> int:
        """End its whole tree; returns how many the kernel still holds."""
        return self._run(self._process.kill())

    def forget(self) -> None:
        """End its whole tree, and have the sandbox remember it no more."""
        self._run(self._process.forget())


class SyncFiles:
    """The files of one sandbox; each call as that of `Files`."""

    def __init__(self, run: Run, files: Files) -> None:
        self._run = run
        self._files = files

    def read(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        """Return a file's bytes."""
        return self._run(self._files.read(path, offset, limit))

    def write(self, path: str, data: bytes | str, mode: int | None = None, append: bool = False) -> None:
        """Write a file; directories on the way are made."""
        self._run(self._files.write(path, data, mode, append))

    def list(self, path: str = "/") -> tuple[Entry, ...]:
        """List a directory."""
        return self._run(self._files.list(path))

    def stat(self, path: str) -> Entry:
        """Describe one entry; a link is not followed."""
        return self._run(self._files.stat(path))

    def exists(self, path: str) -> bool:
        """Tell whether there is anything of that name."""
        return self._run(self._files.exists(path))

    def remove(self, path: str, recursive: bool = False) -> bool:
        """Remove a file, or a directory with all that is in it; False: there was none."""
        return self._run(self._files.remove(path, recursive))

    def make_directory(self, path: str) -> None:
        """Make a directory and those on the way."""
        self._run(self._files.make_directory(path))

    def upload(
        self, source: str | os.PathLike[str] | bytes, path: str = "/", deadline_s: float = ARCHIVE_S
    ) -> Uploaded:
        """Unpack files of this machine, or a tar archive, into a directory of the sandbox."""
        return self._run(self._files.upload(source, path, deadline_s))

    def download(self, path: str, to: str | os.PathLike[str], deadline_s: float = ARCHIVE_S) -> int:
        """Write a directory of the sandbox to a tar archive of this machine; returns its size."""
        return self._run(self._files.download(path, to, deadline_s))
