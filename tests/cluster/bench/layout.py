"""What a cluster is made of: its name, hosts, addresses, users and the places of its files.

Written to `cluster.json` in the state directory when a cluster is made; read by everything else. Starts nothing.
"""

import json
import os
import pwd
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

LOGIN = "login"
"""The host with slurmctld and the user's shell."""
LOGIN_NUMBER = 100
GPUS_PER_NODE = 4
OTHER_USER = "retinue-other"
OTHER_UID = 64002


class Refusal(Exception):
    """The request cannot be met; the text says why and is for the person who asked."""


@dataclass(frozen=True)
class Layout:
    """One cluster, as it was asked for."""

    name: str
    node_count: int
    user: str
    """The ordinary user who submits jobs; exists on this machine."""
    uid: int
    gid: int
    shares: list[str] = field(default_factory=list)
    """Directories below /tmp that all hosts see; everything else in /tmp is a host's own."""
    proctrack: str = "linuxproc"
    base: str = "/tmp"

    @property
    def state(self) -> Path:
        return Path(self.base, f"retinue-cluster-{self.name}")

    @property
    def shared(self) -> Path:
        """The shared file system of the cluster: homes and a place for tests."""
        return self.state / "shared"

    @property
    def control(self) -> Path:
        return self.state / "control.sock"

    @property
    def nodes(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.node_count + 1)]

    @property
    def hosts(self) -> list[str]:
        return [*self.nodes, LOGIN]

    @property
    def ids(self) -> dict[str, tuple[int, int]]:
        """The users that commands may run as; root is not one of them."""
        return {self.user: (self.uid, self.gid), OTHER_USER: (OTHER_UID, OTHER_UID)}

    def address(self, host: str, network: int) -> str:
        """Network 0 is what the hostname resolves to; network 1 is the one that Slurm uses."""
        number = LOGIN_NUMBER if host == LOGIN else int(host.removeprefix("node"))
        return f"10.{77 + network}.0.{number}"

    def home(self, user: str) -> Path:
        return self.shared / "home" / user

    def pid_file(self, host: str) -> Path:
        """Holds the pid of the host's first process, as the fabric sees it; absent while the host is dead."""
        return self.state / "hosts" / f"{host}.pid"

    def save(self) -> None:
        (self.state / "cluster.json").write_text(json.dumps(asdict(self), indent=1) + "\n")


def build_layout(
    name: str, node_count: int, user: str, shares: list[str], proctrack: str = "linuxproc", base: str | None = None
) -> Layout:
    """Check what was asked for.

    Errors: Refusal for a name that cannot be part of a path, too many nodes, an unknown user or root.
    """
    place = base or os.environ.get("RETINUE_CLUSTER_DIR") or "/tmp"
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,20}", name):
        raise Refusal(f"cannot name a cluster {name!r}: lower-case letters, digits and '-', at most 21")
    if not 1 <= node_count <= 32:
        raise Refusal(f"cannot make {node_count} nodes: 1 to 32")
    if proctrack not in ("linuxproc", "cgroup"):
        raise Refusal(f"cannot use proctrack/{proctrack}: linuxproc or cgroup")
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise Refusal(f"cannot use the user {user!r}: not known on this machine") from None
    if entry.pw_uid == 0:
        raise Refusal("cannot use root: the product runs and is tested as an ordinary user")
    known = [str(Path(share).resolve()) for share in shares]
    missing = [share for share in known if not Path(share).is_dir()]
    if missing:
        raise Refusal(f"cannot share {', '.join(missing)}: no such directory")
    return Layout(name, node_count, user, entry.pw_uid, entry.pw_gid, known, proctrack, str(Path(place).resolve()))


def read_layout(name: str, base: str | None = None) -> Layout:
    """Read a cluster that was made before. Errors: Refusal when there is none of that name."""
    place = base or os.environ.get("RETINUE_CLUSTER_DIR") or "/tmp"
    path = Path(place).resolve() / f"retinue-cluster-{name}" / "cluster.json"
    try:
        return Layout(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise Refusal(f"there is no cluster {name!r}: make cluster NAME={name}") from None
