"""What callers send, checked; and what they get: chat of the OpenAI API. Pure.

The conversation is as the environment has it: `assistant` is the policy, `user` the simulator.
"""

from typing import Any

from retinue.serving.faults import Fault
from retinue.serving.lenient import read_lenient
from retinue.simulator.role import Said
from retinue.terms.record import Record, to_json

MESSAGES_MAX = 2_000
TOOLS_MAX = 128
SEED_MAX = 2**63 - 1
ROLES = ("system", "developer", "user", "assistant", "tool")


class Message(Record, frozen=True):
    """One message; what is not named here is ignored."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """Its text; of a list of parts, theirs."""
        if isinstance(self.content, list):
            return "\n".join(part["text"] for part in self.content)
        return self.content or ""


class ChatRequest(Record, frozen=True):
    """The body. What is not named here is ignored."""

    messages: list[Message]
    model: str = "any"
    persona: str = ""
    """Ours."""
    seed: int | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    """What the user can do, not what the policy can."""
    n: int | None = None
    stream: bool | None = None


def parse_request(body: bytes) -> ChatRequest:
    """Read and check a request. Errors: Fault 400 names the field, 413 what is too much."""
    try:
        request = read_lenient(body, ChatRequest)
    except RecursionError:
        raise refuse("cannot read the body: it is nested too deeply") from None
    except ValueError as error:
        raise refuse(f"cannot read the body: {error}") from None
    if len(request.messages) > MESSAGES_MAX or len(request.tools or ()) > TOOLS_MAX:
        raise Fault(413, "simulator_too_many", f"cannot take more than {MESSAGES_MAX} messages or {TOOLS_MAX} tools")
    for index, message in enumerate(request.messages):
        _check_message(index, message)
    for index, tool in enumerate(request.tools or ()):
        if not isinstance(tool.get("function"), dict) or not isinstance(tool["function"].get("name"), str):
            raise refuse(f"cannot use tools[{index}]: it is no function with a name")
    if request.n not in (None, 1):
        raise refuse(f"cannot give {request.n} answers: n is 1")
    if request.seed is not None and not 0 <= request.seed <= SEED_MAX:
        raise refuse(f"cannot use seed {request.seed}: it is 0 to {SEED_MAX}")
    if request.temperature is not None and not 0 <= request.temperature <= 2:
        raise refuse("cannot use this temperature: it is 0 to 2")
    limit = request.max_completion_tokens or request.max_tokens
    if limit is not None and limit < 1:
        raise refuse(f"cannot use max_tokens {limit}: it is at least 1")
    return request


def list_tools(request: ChatRequest) -> frozenset[str]:
    """Name the tools that the user has."""
    return frozenset(tool["function"]["name"] for tool in request.tools or ())


def build_reply(said: Said, persona: str, turn: int, attempts: int, created: int) -> dict[str, Any]:
    """Build a completion; `retinue` in it is for programs."""
    message: dict[str, Any] = {"role": "assistant", "content": said.text or None}
    if said.calls:
        message["tool_calls"] = said.calls
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if said.calls else "stop"}
    return {
        "id": f"simulated-{persona}-{turn}",
        "object": "chat.completion",
        "created": created,
        "model": persona,
        "choices": [choice],
        "usage": said.usage,
        "retinue": {"persona": persona, "turn": turn, "ended": said.ended, "attempts": attempts},
    }


def build_stream(reply: dict[str, Any]) -> bytes:
    """Build the same as events: one with the whole message, which is sent once it is known to be one."""
    [choice] = reply["choices"]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
    choice = {"index": 0, "delta": delta, "finish_reason": choice["finish_reason"]}
    chunk = {**reply, "object": "chat.completion.chunk", "choices": [choice]}
    return b"data: " + to_json(chunk) + b"\n\ndata: [DONE]\n\n"


def refuse(message: str) -> Fault:
    """Build the refusal of a request that is wrong."""
    return Fault(400, "simulator_bad_request", message)


def _check_message(index: int, message: Message) -> None:
    if message.role not in ROLES:
        raise refuse(f"cannot use messages[{index}]: role is {', '.join(ROLES)}")
    if message.role == "tool" and not message.tool_call_id:
        raise refuse(f"cannot use messages[{index}]: a tool's message has a tool_call_id")
    parts = message.content if isinstance(message.content, list) else []
    if not all(part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts):
        raise refuse(f"cannot use messages[{index}]: only parts of type text are read")
    for call in message.tool_calls or ():
        if not isinstance(call.get("id"), str):
            raise refuse(f"cannot use messages[{index}]: a tool call has an id")
