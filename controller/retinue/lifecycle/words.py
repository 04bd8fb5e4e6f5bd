"""Events in words, for reasons that people read. Never decides anything."""

from signal import Signals

from retinue.terms.replica import AnyEvent, Exited, StopAsked


def describe_exit(event: Exited) -> str:
    """Say how an incarnation ended, and what of it would not."""
    words = _describe_end(event)
    if event.is_quick:
        words += " right after its start"
    if event.was_asked and event.is_killed_hard:
        words += ", killed when its grace was over"
    if event.escapees:
        words += f"; {event.escapees} escapee{'s' if event.escapees > 1 else ''} ended ({event.rung})"
    if event.left:
        pids = ", ".join(str(pid) for pid in event.left)
        words += f"; would not die: pid {pids}"
    return words


def describe_stale(event: AnyEvent, incarnation: int) -> str:
    """Say that an event is about another incarnation than the present one."""
    about = "the replica" if isinstance(event, StopAsked) else f"incarnation {event.incarnation}"
    return f"stale: {type(event).__name__} is about {about}, the present one is {incarnation}"


def _describe_end(event: Exited) -> str:
    if event.code is not None:
        return f"exited with code {event.code}"
    if event.signal is not None:
        return f"ended by {_name_signal(event.signal)}"
    return "ended, nobody saw how" + (f" ({event.rung})" if event.rung else "")


def _name_signal(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
