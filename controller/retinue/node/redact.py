"""Replace secrets by value in a stream of bytes, across the borders of its chunks. Pure."""

import re
from collections.abc import Iterable

MASK = b"[redacted]"
SHORTEST_BYTES = 4
"""Shorter values stay: masking every `1` would hide the log and tell the secret's length."""


class Redactor:
    """One stream. What may be the beginning of a secret is held back until more comes."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {form for text in secrets for form in (text.encode(), text.strip().encode())}
        self._values = sorted((v for v in values if len(v) >= SHORTEST_BYTES), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(value) for value in self._values)) if self._values else None
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes; return those that can be shown now."""
        if self._pattern is None:
            return chunk
        data = self._held + chunk
        border = self._find_border(data)
        self._held = data[border:]
        return self._pattern.sub(MASK, data[:border])

    def finish(self) -> bytes:
        """Return what was held back: the stream is over."""
        held, self._held = self._held, b""
        return self._pattern.sub(MASK, held) if self._pattern else held

    def redact(self, text: str) -> str:
        """Redact one whole text that is not part of the stream."""
        if self._pattern is None:
            return text
        return self._pattern.sub(MASK, text.encode(errors="replace")).decode(errors="replace")

    def _find_border(self, data: bytes) -> int:
        """Find where what may still become a secret begins."""
        border = len(data)
        for value in self._values:
            for size in range(min(len(value) - 1, len(data)), len(data) - border, -1):
                if data.endswith(value[:size]):
                    border = len(data) - size
                    break
        if border == len(data) or self._pattern is None:
            return border
        # A whole secret that reaches into the held part must not be cut in two.
        for match in self._pattern.finditer(data):
            if match.start() < border < match.end():
                return match.start()
        return border
