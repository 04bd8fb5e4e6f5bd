"""The one exception tree.

    RetinueError
      ManifestError      the manifest or the command line is wrong           exit 2
      AllocationError    no usable allocation, or the grant is unreadable    exit 3
      PlanError          what is asked does not fit what was granted         exit 4
      NotReadyError      the services were not made ready                    exit 5
      TrainerError       the trainer cannot be run or found              126 / 127
      EdgeError          something outside us failed
        TransientError   asking again may help
        PermanentError   asking again will not

Things that happen to services are events, never exceptions.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that is wrong with a file a person wrote."""

    line: int
    """1-based; 0 when the finding is about the file as a whole."""
    column: int
    """1-based; 0 when the finding is about the file as a whole."""
    path: str
    """Dotted path in the document, `services.judge.replicas`; empty for the whole."""
    what: str
    """What is wrong, values quoted, units printed."""
    hint: str = ""
    """What to write instead, or empty."""

    def render(self, file: str) -> str:
        """Print as `FILE:LINE:COL: path: what; hint`."""
        where = f"{file}:{self.line}:{self.column}: " if self.line else f"{file}: "
        path = f"{self.path}: " if self.path else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{where}{path}{self.what}{hint}"


class RetinueError(Exception):
    """Everything this package raises on purpose."""

    exit_code = 70


class ManifestError(RetinueError):
    """The manifest is wrong; carries every finding, not the first."""

    exit_code = 2

    def __init__(self, file: str, findings: list[Finding]) -> None:
        self.file = file
        self.findings = sorted(findings)
        super().__init__("\n".join(finding.render(file) for finding in self.findings))


class UsageError(RetinueError):
    """The command line cannot be obeyed."""

    exit_code = 2


class AllocationError(RetinueError):
    """No usable allocation, or the grant cannot be read."""

    exit_code = 3


class PlanError(RetinueError):
    """What the manifest asks does not fit the allocation; one line each."""

    exit_code = 4

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class NotReadyError(RetinueError):
    """The services could not be made ready."""

    exit_code = 5


class TrainerError(RetinueError):
    """The trainer's command cannot be run (126) or found (127)."""

    def __init__(self, message: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class EdgeError(RetinueError):
    """Something outside us failed."""


class TransientError(EdgeError):
    """Asking again may help: a node unreachable, a port taken, a full disk."""


class PermanentError(EdgeError):
    """Asking again will not help: a missing binary, no user namespaces, a bad image."""
