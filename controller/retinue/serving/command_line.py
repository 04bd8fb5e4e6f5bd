"""What the command lines of the services have in common."""

import argparse
import asyncio
import resource
from collections.abc import Callable


def tell_stop(told: asyncio.Future[str]) -> None:
    """Take a signal that ends the service; a second one changes nothing."""
    if not told.done():
        told.set_result("told to stop")


def typed(parse: Callable[[str], object]) -> Callable[[str], object]:
    """Make a parser argparse's: its ValueError is the user's mistake, told in its own words."""

    def convert(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def raise_descriptor_limit() -> None:
    """Callers that wait, and children, hold descriptors: the usual soft limit of 1,024 is soon reached."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
