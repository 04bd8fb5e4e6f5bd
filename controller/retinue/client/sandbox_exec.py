"""A command as a caller asks for it, and what an answer to it means. Pure."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from retinue.client.answer import Broken
from retinue.client.question import check_seconds
from retinue.client.sandbox_errors import SandboxLost
from retinue.client.sandbox_records import INFRA_FAILED, Ended, Result, build_ended

Command = str | Sequence[str]
"""A list is run as it is; a text is a script for the shell."""


class ExecOptions(TypedDict, total=False):
    """How a command is run; what is left out is the sandbox's own."""

    cwd: str
    env: Mapping[str, str]
    """Over the sandbox's own."""
    stdin: str | bytes
    """Left out: empty."""
    timeout_s: float
    """Of wall time; then its whole tree is ended. At most the sandbox's `wall`."""
    cpu_s: float
    """Of CPU time of one process."""
    output: int | tuple[int, int]
    """Bytes kept of each stream: in all, or (of its beginning, of its end)."""
    shell: str
    """For a script; `/bin/sh`."""
    keep_tree: bool
    """What it leaves running lives on."""


def build_exec(command: Command, options: Mapping[str, Any], **more: Any) -> bytes:
    """Build the body of an exec.

    Shape:  characters that have no UTF-8 (lone surrogates) become `?`: a policy wrote them, and its command is run.
    Errors: TypeError, ValueError: the caller's program is wrong.
    """
    unknown = sorted(set(options) - set(ExecOptions.__annotations__))
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}; there are {', '.join(ExecOptions.__annotations__)}")
    body: dict[str, Any] = {**options, **more}
    check_seconds(body.get("timeout_s"), "timeout_s")
    check_seconds(body.get("cpu_s"), "cpu_s")
    if isinstance(command, str):
        body["script"] = command
    else:
        body["argv"] = [_check_word(word) for word in command]
        if not body["argv"]:
            raise ValueError("the command is empty")
    stdin = body.pop("stdin", None)
    if isinstance(stdin, bytes | bytearray | memoryview):
        body["stdin_base64"] = base64.b64encode(stdin).decode("ascii")
    elif stdin is not None:
        body["stdin"] = _check_word(stdin)
    if isinstance(body.get("output"), tuple):
        head, tail = body["output"]
        body["output"] = {"head": head, "tail": tail}
    if "env" in body:
        body["env"] = dict(body["env"])
    return dump(body)


def dump(body: Mapping[str, Any]) -> bytes:
    """Encode a body.

    Errors: TypeError, ValueError for what is no JSON.
    """
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def judge_result(result: Result, service: str, sandbox: str) -> Ended:
    """Turn a result into an end.

    Errors: SandboxLost when it says that our side failed, or nothing that can be understood.
    """
    if result.outcome == INFRA_FAILED:
        message = f"cannot run a command in sandbox {sandbox}: {result.cause}"
        raise SandboxLost(message, result.node, result.cause, service, sandbox)
    try:
        return build_ended(result)
    except Broken as error:
        raise SandboxLost(str(error), result.node, "", service, sandbox) from None


def _check_word(word: object) -> str:
    if not isinstance(word, str):
        raise TypeError(f"a word of a command is a {type(word).__name__}, not a str")
    return word
