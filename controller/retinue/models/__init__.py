"""Small models that run on a CPU: which there are, where they lie, and how they come there.

`find(name)` gives the path of a fetched one and never downloads: no service needs a network when it runs.
"""

from retinue.models.cache import find

__all__ = ["find"]
