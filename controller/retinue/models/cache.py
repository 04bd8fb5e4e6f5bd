"""Where fetched models lie. Reads and names paths; never downloads, never writes."""

import os
from collections.abc import Mapping
from pathlib import Path

from retinue.errors import UsageError
from retinue.models.catalogue import CATALOGUE, Model

VARIABLE = "RETINUE_MODELS"


def find_cache(env: Mapping[str, str]) -> Path:
    """Find the cache: `RETINUE_MODELS`, else below the user's own cache directory."""
    if own := env.get(VARIABLE):
        return Path(own)
    base = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base) / "retinue" / "models"


def find_model(name: str) -> Model:
    """Find a model in the catalogue.

    Errors: UsageError names those there are.
    """
    if name not in CATALOGUE:
        raise UsageError(f"no model is called {name!r}; there are {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def is_there(model: Model, cache: Path) -> bool:
    """Say whether all of a model was fetched: by size, because files come into place whole and checked."""
    return all(_measure(cache / model.name / file.name) == file.size for file in model.files)


def find(name: str, cache: Path | None = None) -> Path:
    """Find a fetched model: its file, or the directory of its files where it has several.

    Errors: UsageError says which command fetches it.
    """
    model = find_model(name)
    where = cache or find_cache(os.environ)
    if not is_there(model, where):
        option = f" --cache {cache}" if cache else ""
        raise UsageError(
            f"cannot find the model {name!r} in {str(where)!r}: fetch it, where there is a network, with"
            f" `retinue models fetch {name}{option}`"
        )
    directory = where / name
    return directory / model.files[0].name if len(model.files) == 1 else directory


def _measure(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
