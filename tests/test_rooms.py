"""The import walls of DESIGN.md section 9, read from the source with `ast`."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "controller" / "retinue"

FLOORS = {
    "terms": 0,
    "errors": 0,
    "manifest": 1,
    "allocation": 1,
    "plan": 2,
    "lifecycle": 2,
    "slurm": 3,
    "launch": 3,
    "channel": 3,
    "journal": 3,
    "node": 3,
    "egress": 3,
    "gateway": 3,
    "serving": 3,
    "checks": 3,
    "sandbox": 3,
    "retrieval": 3,
    "judge": 3,
    "models": 3,
    "rehearsal": 3,
    "simulator": 3,
    "client": 3,
    "doctor": 3,
    "supervise": 4,
    "cli": 5,
}
IMPURE = {"asyncio", "os", "time", "random", "socket", "subprocess", "threading", "select"}
EDGE_FILES = {"manifest/files.py", "allocation/machine.py"}
"""The files of pure rooms that read the machine, one per room."""
SHARED_RECORDS = {
    "retinue.channel.messages",
    "retinue.channel.join",
    "retinue.channel.client",
    "retinue.channel.frames",
}
"""What the rooms of floor 3 may know of each other: the agent dials with channel's client."""
SAME_FLOOR = {
    ("node", "channel"): SHARED_RECORDS | {"retinue.channel.context"},
    ("node", "journal"): {"retinue.journal.writer"},
    ("node", "egress"): {
        "retinue.egress.handover",
        "retinue.egress.ledger",
        "retinue.egress.notify",
        "retinue.egress.numbers",
        "retinue.egress.records",
        "retinue.egress.rules",
        "retinue.egress.supervisor",
        "retinue.egress.trial",
    },
    ("egress", "node"): {"retinue.node.descriptors", "retinue.node.kernel", "retinue.node.spawn"},
    ("node", "gateway"): {"retinue.gateway.link", "retinue.gateway.control"},
    ("checks", "node"): {"retinue.node.kernel"},
    ("checks", "journal"): {"retinue.journal.writer"},
    ("doctor", "node"): {
        "retinue.node.kernel",
        "retinue.node.host_settings",
        "retinue.node.namespace",
        "retinue.node.spawn",
    },
    ("doctor", "checks"): {"retinue.checks.jail", "retinue.checks.records"},
    ("sandbox", "doctor"): {"retinue.doctor.judgement", "retinue.doctor.judge_files", "retinue.doctor.records"},
    ("sandbox", "node"): {"retinue.node.host_settings", "retinue.node.kernel"},
    ("sandbox", "checks"): {
        "retinue.checks.ledger",
        "retinue.checks.ledger_file",
        "retinue.checks.settings",
        "retinue.checks.sign",
    },
    ("retrieval", "models"): {"retinue.models"},
    ("judge", "models"): {"retinue.models"},
    ("retrieval", "checks"): {"retinue.checks.settings"},
    ("retrieval", "sandbox"): {"retinue.sandbox.store_lock"},
    ("simulator", "checks"): {"retinue.checks.settings"},
    ("simulator", "client"): {"retinue.client"},
    ("checks", "serving"): {"retinue.serving"},
    ("sandbox", "serving"): {"retinue.serving"},
    ("retrieval", "serving"): {"retinue.serving"},
    ("simulator", "serving"): {"retinue.serving"},
    ("gateway", "serving"): {"retinue.serving.exposition"},
    ("gateway", "channel"): {
        "retinue.channel.messages",
        "retinue.channel.join",
        "retinue.channel.context",
        "retinue.channel.admission",
    },
}
DOORS = {
    "msgspec": {"terms"},
    "pydantic": {"manifest"},
    "pydantic_core": {"manifest"},
    "yaml": {"manifest"},
    "aiohttp": {"gateway", "serving", "checks", "sandbox", "retrieval", "rehearsal", "simulator"},
    "math_verify": {"checks"},
    "latex2sympy2_extended": {"checks"},
    "sympy": {"checks"},
    "jsonschema": {"checks"},
    "jsonschema_specifications": {"checks"},
    "referencing": {"checks"},
    "xllamacpp": {"judge"},
    "tantivy": {"retrieval"},
    "faiss": {"retrieval"},
    "numpy": {"retrieval"},
    "onnxruntime": {"retrieval"},
    "tokenizers": {"retrieval"},
    "yarl": {"gateway"},
    "multidict": {"gateway"},
    "uvloop": {"gateway"},
    "cryptography": {"channel"},
    "pyslurm": {"slurm"},
    "setuptools": {"sandbox"},
    "click": {"cli"},
    "rich": {"cli"},
}


def read_sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def find_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def find_room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def is_under(name: str, modules: set[str]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


@pytest.mark.parametrize("path", read_sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_lower_floors_only_and_libraries_by_their_door(path: Path) -> None:
    room = find_room(path)
    if room in ("__init__", "__main__"):
        return
    assert room in FLOORS, f"room {room} has no floor"
    relative = str(path.relative_to(PACKAGE))
    for name in find_imports(path):
        top = name.partition(".")[0]
        if top == "retinue":
            other = [*name.split("."), ""][1]
            if other in ("", "__version__", room):
                continue
            allowed = SAME_FLOOR.get((room, other), set())
            assert FLOORS[other] < FLOORS[room] or is_under(name, allowed), f"{relative} must not import {name}"
        elif top in DOORS:
            assert room in DOORS[top], f"{relative}: {top} has its door in {DOORS[top]}"
        elif top in IMPURE and FLOORS[room] <= 2:
            assert relative in EDGE_FILES, f"{relative} is pure and must not import {top}"
        else:
            assert top in sys.stdlib_module_names, f"{relative} imports {top}, which is no dependency"


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("retinue.supervise.stub", {"msgspec", "asyncio", "ssl", "subprocess"}),
        ("retinue.node.outer", {"asyncio", "ssl", "aiohttp", "pydantic", "yaml", "click", "cryptography"}),
        ("retinue.node.keeper", {"asyncio", "ssl", "aiohttp", "pydantic", "yaml", "click", "cryptography"}),
        ("retinue.node.agent", {"aiohttp", "pydantic", "yaml", "click", "rich", "cryptography"}),
        ("retinue.doctor.main", {"asyncio", "ssl", "aiohttp", "pydantic", "yaml", "click", "rich", "cryptography"}),
        ("retinue.sandbox.shard_main", {"aiohttp", "pydantic", "yaml", "click", "rich", "cryptography"}),
        ("retinue.supervise.main", {"aiohttp", "pydantic", "yaml", "click", "rich"}),
    ],
)
def test_a_role_imports_only_what_it_may_weigh(module: str, banned: set[str]) -> None:
    code = f"import sys, {module}; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert not banned & set(loaded.split())


def test_no_except_exception_outside_the_boundaries() -> None:
    """Task boundary, command line, and the one place where a verifier's code is called."""
    found = [
        str(path.relative_to(PACKAGE))
        for path in read_sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")))
    ]
    assert set(found) <= {"cli/main.py", "supervise/main.py", "checks/judging.py"}, found


def test_no_file_names_a_place_of_one_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT)
    names = listed.stdout.split() if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py")]
    banned = ("/" + "work/", "/" + "root/", "pypi" + ".org", "files.python" + "hosted")
    for name in names:
        path = ROOT / name
        if not path.is_file() or ".venv" in path.parts:
            continue
        text = path.read_text(errors="replace")
        for word in banned:
            assert word not in text, f"{name} mentions {word}"
