"""The border to code that is not ours: whatever it raises comes out as an error of ours, with what was being done.

Tokenizers raise plain `Exception`, onnxruntime a dozen classes without a parent, Rust libraries a BaseException when
they panic, and a function of the user's anything.
"""

from types import TracebackType

from retinue.errors import PermanentError, RetinueError

TEXT_MAX = 300


class Foreign:
    """`with Foreign("cannot ..."):` around calls of foreign code."""

    def __init__(self, what: str, kind: type[RetinueError] = PermanentError) -> None:
        self._what = what
        self._kind = kind

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Translate. Errors: of the kind that was asked for."""
        if error is None or isinstance(error, RetinueError):
            return
        is_panic = type(error).__module__ == "pyo3_runtime"
        if isinstance(error, Exception) or is_panic:
            raise self._kind(
                f"{self._what}: {type(error).__name__}: {' '.join(str(error).split())[-TEXT_MAX:]}"
            ) from None
