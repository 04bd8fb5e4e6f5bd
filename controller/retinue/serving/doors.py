"""Where callers come in: a TCP port on loopback, and a unix socket that only its user can use."""

import os
import socket
import stat
from pathlib import Path

BACKLOG = 1024


class Doors:
    """The bound sockets of one service; nothing listens until they are served."""

    def __init__(self, host: str, port: int | None, path: str | None) -> None:
        """Bind them.

        Errors: OSError names the address that cannot be had; nothing stays bound then.
        """
        self.sockets: list[socket.socket] = []
        self._path: Path | None = None
        self._identity = (0, 0)
        """Inode and time of creation: the next socket of that name may get the same inode."""
        try:
            if port is not None:
                self.sockets.append(bind_tcp(host, port))
            if path is not None:
                self.sockets.append(bind_unix(Path(path)))
                self._path = Path(path)
                self._identity = _identify(self._path)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close them; the unix socket's name goes too, unless a successor has it by now."""
        for sock in self.sockets:
            sock.close()
        if self._path is None:
            return
        try:
            if _identify(self._path) == self._identity:
                self._path.unlink()
        except FileNotFoundError:
            pass


def bind_tcp(host: str, port: int) -> socket.socket:
    """Bind a port; port 0 is any, and its number is written to $RETINUE_PORT_FILE.

    Errors: OSError names the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    if port == 0 and (file := os.environ.get("RETINUE_PORT_FILE")):
        Path(f"{file}.new").write_text(f"{sock.getsockname()[1]}\n")
        os.replace(f"{file}.new", file)
    return sock


def bind_unix(path: Path) -> socket.socket:
    """Bind a socket with mode 0600; one that nobody serves any more is replaced.

    Errors: OSError when somebody serves it, when something else is there, or when the path is too long.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _make_way(path)
    sock = socket.socket(socket.AF_UNIX)
    # The mask, not chmod: between bind and chmod anybody could connect.
    mask = os.umask(0o177)
    try:
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot bind {path}: {error}") from None
    finally:
        os.umask(mask)
    return sock


def name_socket(sock: socket.socket) -> str:
    """Name a bound socket for people."""
    name = sock.getsockname()
    return str(name) if isinstance(name, str) else f"http://{name[0]}:{name[1]}"


def _identify(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_ctime_ns


def _make_way(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(f"cannot bind {path}: it is there and is no socket")
    with socket.socket(socket.AF_UNIX) as knock:
        if knock.connect_ex(str(path)) == 0:
            raise FileExistsError(f"cannot bind {path}: another process serves it")
    path.unlink()
