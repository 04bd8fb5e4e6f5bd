"""Everything between a launch order and the keeper's Spawn: secrets, port, log pipe, argv, environment."""

import errno
import fcntl
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

from retinue.errors import EdgeError, PermanentError, TransientError
from retinue.node.descriptors import close_fds, write_body
from retinue.node.egress_names import resolve_rule
from retinue.node.environment import (
    DEVICES,
    Seat,
    build_environment,
    build_placeholders,
    build_visible_devices,
)
from retinue.node.gpus import wait_until_free
from retinue.node.memory import Note
from retinue.node.orders import Spawn, SpawnBody, SpawnRefused
from retinue.node.site import Site
from retinue.node.threads import Threads
from retinue.plan.expand import PlaceholderError, expand
from retinue.terms.launch import LaunchSpec
from retinue.terms.record import replace, to_json

PIPE_BYTES = 1 << 20
"""How much a service may print while the agent is being restarted, before its write(2) waits."""
LOOPBACK = "127.0.0.1"
SECRET_BYTES = 64 * 1024
SHORTAGES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY, errno.EIO, errno.ESTALE})
"""Of an exec that may succeed another time; every other errno is about the command itself."""
NAME_SAFE = str.maketrans({"/": "."})


class Prepared:
    """What is ready to be handed to the keeper; owns its descriptors until `close`."""

    def __init__(self, note: Note, body: SpawnBody, reservation: socket.socket | None) -> None:
        self.note = note
        self.body = body
        self.reservation = reservation
        self.log_read, self.log_write = _build_pipe()

    def send(self, site: Site) -> tuple[str, ...]:
        """Send the Spawn; names of what the keeper holds from now on."""
        held = {"log": self.log_read}
        if self.reservation is not None and self.note.spec.port_reuse:
            held["port"] = self.reservation.fileno()
        body = write_body(self.body)
        spec = self.note.spec
        order = Spawn(spec.replica, spec.incarnation, tuple(held))
        if self.reservation is not None and not spec.port_reuse:
            # This server cannot bind beside a reservation: it is given up at the last moment.
            self.reservation.close()
        try:
            site.keeper.send(order, [body, self.log_write, *held.values()])
        finally:
            os.close(body)
        return tuple(held)

    def close(self, *, keeps_log: bool) -> None:
        """Close our copies; the read end of the log may go on to the capture."""
        close_fds([self.log_write] if keeps_log else [self.log_write, self.log_read])
        if self.reservation is not None:
            self.reservation.close()


async def prepare(site: Site, spec: LaunchSpec, say_wait: Callable[[str], None]) -> Prepared:
    """Get ready to spawn; nothing runs yet.

    Shape:  `say_wait` hears what is waited for, and "" when nothing is any more; what it raises ends the launch.
    Errors: TransientError (GPU memory that somebody has, no port, no descriptors, a secret or name that does not come),
            PermanentError (a secret that is not there, a placeholder nobody fills, a GPU the agent does not see).
    """
    if spec.gpus and spec.incarnation > 1 and not spec.shares_gpus:
        await wait_until_free(site.read_gpus, build_visible_devices(spec.gpus, site.own_env.get(DEVICES)), say_wait)
    secrets = await read_secret_files(spec.secret_files, site.threads)
    egress = await resolve_rule(spec.egress, site.threads)
    host = site.address if spec.listen == "node" else LOOPBACK
    reservation, port = site.ports.reserve(spec.replica, host) if spec.wants_port else (None, None)
    try:
        inner_port = site.ports.lend_block(spec.replica) if spec.wants_inner_port else None
        port_file = build_port_file(site.join.node_dir, spec)
        note = Note(spec=spec, port=port, host=host, port_file=port_file, inner_port=inner_port)
        seat = build_seat(site, note, secrets)
        # A number that an older incarnation left must not be believed.
        with suppress(OSError):
            os.unlink(note.port_file)
        return Prepared(note, replace(build_body(site, note, seat), egress=egress), reservation)
    except PlaceholderError as error:
        _close(reservation)
        raise PermanentError(f"cannot build the command of {spec.replica}: {error}") from None
    except OSError as error:
        _close(reservation)
        raise TransientError(f"cannot prepare {spec.replica}: {os.strerror(error.errno or 0)}") from None
    except EdgeError:
        _close(reservation)
        raise


def build_seat(site: Site, note: Note, secrets: dict[str, str]) -> Seat:
    """Say where an incarnation runs."""
    return Seat(
        join=site.join,
        port=note.port,
        host=note.host,
        port_file=note.port_file,
        inner_port=note.inner_port,
        nodes=site.nodes,
        secret_files=secrets,
    )


def build_body(site: Site, note: Note, seat: Seat) -> SpawnBody:
    """Say what the keeper executes."""
    places = build_placeholders(seat.join, seat.host, seat.port, seat.inner_port)
    return SpawnBody(
        argv=tuple(expand(word, places) for word in note.spec.argv),
        env=build_environment(note.spec, site.own_env, seat),
        cwd=note.spec.cwd or site.join.start_dir,
        note=to_json(note).decode(),
    )


def build_port_file(node_dir: str, spec: LaunchSpec) -> str:
    """Name the file by which this incarnation may tell its port."""
    return os.path.join(node_dir, f"port-{spec.replica.translate(NAME_SAFE)}-{spec.incarnation}")


def build_spawn_error(refused: SpawnRefused) -> EdgeError:
    """Say what the keeper's refusal means: worth another try or not."""
    return TransientError(refused.cause) if refused.errno in SHORTAGES else PermanentError(refused.cause)


def _build_pipe() -> tuple[int, int]:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    # EPERM: this user's pipes have reached /proc/sys/fs/pipe-user-pages-soft; the usual 64 KiB do as well.
    with suppress(OSError):
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read_end, write_end


def _close(reservation: socket.socket | None) -> None:
    if reservation is not None:
        reservation.close()


async def read_secret_files(paths: Mapping[str, str], threads: Threads) -> dict[str, str]:
    """Read secrets on the node, one final newline dropped.

    Errors: PermanentError when one cannot be read, TransientError when it does not come.
    """
    return {name: await _read_secret(name, path, threads) for name, path in paths.items()}


async def _read_secret(name: str, path: str, threads: Threads) -> str:
    where = f"cannot read secret {name} from {path!r}"
    try:
        text = (await threads.run(_read_start, path)).decode()
    except TransientError as error:
        raise TransientError(f"{where}: {error}") from None
    except OSError as error:
        raise PermanentError(f"{where}: {os.strerror(error.errno or 0)}") from None
    except UnicodeDecodeError:
        raise PermanentError(f"{where}: it is not text") from None
    if len(text) > SECRET_BYTES or "\0" in text:
        raise PermanentError(f"{where}: longer than {SECRET_BYTES} bytes, or not text")
    return text.removesuffix("\n")


def _read_start(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(SECRET_BYTES + 1)
