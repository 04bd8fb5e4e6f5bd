"""Where a service is pointed at, and whether its own egress rule lets it go there.

Only what is plainly outside is found: a public address, or a name with a dot that is no
local one. Whatever else leads out is denied when it is tried, and written down then.
"""

import ipaddress
import re
from collections.abc import Iterator

from retinue.errors import Finding
from retinue.manifest.compose import Path, Tree
from retinue.manifest.scalars import quote
from retinue.manifest.schema import Service

_URL = re.compile(
    r"\b([a-z][a-z0-9+.-]*)://(?:[^\s/@]*@)?(\[[0-9a-fA-F:.]+\]|[^\s/:?#\"'\]\[,;)]+)(?::(\d{1,5}))?", re.ASCII
)
_NAME = re.compile(r"(?=.{1,253}$)([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z][a-z0-9-]*", re.ASCII)
_LOCAL = ("localhost", "local", "localdomain", "internal", "lan", "intranet", "private", "corp", "home", "arpa")
"""Last labels of names that lead nowhere outside. Source: RFC 6761, RFC 6762, RFC 8375, ICANN's "internal"."""
_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443, "redis": 6379, "postgres": 5432, "postgresql": 5432}
_NOT_REACHED = ("file", "env", "run")
EXEMPT_KINDS = ("checks", "sandbox")


def check_urls(service: Service, tree: Tree, texts: list[tuple[Path, str]]) -> Iterator[Finding]:
    """Find URLs outside the allocation in what a guarded service is given."""
    if service.egress is None or service.kind in EXEMPT_KINDS:
        return
    allow = service.egress.allow
    for path, text in texts:
        for match in _URL.finditer(text):
            scheme, host, port = match.group(1), match.group(2).strip("[]").lower(), match.group(3)
            number = int(port) if port else _PORTS.get(scheme, 0)
            if scheme in _NOT_REACHED or not _is_outside(host) or _is_allowed(host, number, allow):
                continue
            entry = f"[{host}]" if ":" in host else host
            rule = f"{entry}:{number or 'PORT'}"
            hint = f"its calls there would be denied; use a service of the run, or write egress: {{allow: [{rule!r}]}}"
            # Without what stands before an @: it may be a password.
            place = f"{scheme}://{entry}{f':{port}' if port else ''}"
            yield tree.found(path, f"{quote(place)} is outside the allocation", hint)


def _is_outside(host: str) -> bool:
    """Say whether a host is plainly not one of the allocation; what is still a placeholder is not."""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return _NAME.fullmatch(host) is not None and host.rpartition(".")[2] not in _LOCAL


def _is_allowed(host: str, port: int, allow: tuple[str, ...]) -> bool:
    return any(_admits(entry, host, port) for entry in allow)


def _admits(entry: str, host: str, port: int) -> bool:
    """Say whether an entry of `allow` is about this host. A network admits every name: it may well lie in it."""
    where, colon, number = entry.rpartition(":")
    if not colon or (":" in where and not where.startswith("[")) or not number.isdigit():
        where, number = entry, ""
    if number and port and int(number) != port:
        return False
    where = where.strip("[]")
    try:
        network = ipaddress.ip_network(where)
    except ValueError:
        return where.lower() == host
    try:
        return ipaddress.ip_address(host) in network
    except ValueError:
        return True
