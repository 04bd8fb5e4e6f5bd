"""Why a sandbox did not do what was asked of it.

    EdgeError
      SandboxLost        our side failed: mask the rollout, never score it
        SandboxUnsure    ... and whether this call was carried out cannot be told
    PermanentError
      SandboxRefused     the call has no meaning, or cannot be obeyed
        SandboxNoFile    there is no such file
      SandboxGone        its lease ran out, or it was destroyed
      SandboxKilled      the kernel ended all of it for memory: the policy's own doing

How a command ended is none of these: it is an `Ended`, whatever the policy did.
"""

from retinue.errors import EdgeError, PermanentError


class SandboxLost(EdgeError):
    """Our side failed. Nothing that runs in a sandbox brings this about, and it is never a score."""

    def __init__(self, message: str, node: str = "", cause: str = "", service: str = "", sandbox: str = "") -> None:
        self.node = node
        """Where it was, or where this client is when nobody answered; empty: unknown."""
        self.cause = cause or message
        """In words."""
        self.service = service
        self.sandbox = sandbox
        """Its id; empty: there was none yet."""
        super().__init__(message)


class SandboxUnsure(SandboxLost):
    """The connection was lost under a call that may not be made twice; the sandbox itself may be well."""


class SandboxRefused(PermanentError):
    """The service refuses this call; the next one may do."""

    def __init__(self, message: str, kind: str = "", status: int = 0) -> None:
        self.kind = kind
        """`sandbox_bad_request`, `sandbox_no_image`, `sandbox_file_refused`, `sandbox_too_large` ..."""
        self.status = status
        super().__init__(message)


class SandboxNoFile(SandboxRefused):
    """There is nothing of that name in the sandbox."""


class SandboxGone(PermanentError):
    """There was such a sandbox: its lease ran out, or somebody destroyed it."""


class SandboxKilled(PermanentError):
    """The policy's processes took more memory than the sandbox has, and the kernel ended all of it."""
