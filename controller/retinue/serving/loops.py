"""Which event loop the host's processes run on."""

import asyncio
import importlib
from collections.abc import Callable


def find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where the `speed` extra is installed."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return None
    return uvloop.new_event_loop  # type: ignore[no-any-return]
