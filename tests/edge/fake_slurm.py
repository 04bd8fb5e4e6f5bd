"""Stand-ins for Slurm's commands on PATH: each notes how it was called and plays one part."""

import json
import sys
from pathlib import Path
from typing import Any

NOTE = """#!{python} -S
import json, os, sys, time
with open({calls!r}, "a") as file:
    file.write(json.dumps({{"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd()}}) + "\\n")
"""


class FakeSlurm:
    """A directory for PATH, and what was called in it."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "slurm-bin"
        self.bin.mkdir()
        self._calls = directory / "calls.jsonl"

    def play(self, command: str, part: str) -> None:
        """Have this command do these lines of Python after it has noted its call."""
        path = self.bin / command
        path.write_text(NOTE.format(python=sys.executable, calls=str(self._calls)) + part)
        path.chmod(0o755)

    def calls(self, command: str) -> list[dict[str, Any]]:
        """Every call of this command, in order."""
        if not self._calls.exists():
            return []
        calls = [json.loads(line) for line in self._calls.read_text().splitlines()]
        return [call for call in calls if Path(call["argv"][0]).name == command]

    @property
    def path(self) -> str:
        return f"{self.bin}:/usr/bin:/bin"
