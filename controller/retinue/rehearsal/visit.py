"""`python -m retinue.rehearsal.visit`: the trainer of a rehearsal that has none. Asks each service once."""

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

LIMIT_S = 60.0
BODIES: dict[str, tuple[str, dict[str, Any] | None]] = {
    "judge": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Is anybody there?"}]}),
    "user-simulator": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "How can I help?"}]}),
    "retrieval": ("/retrieve", {"queries": ["anything"], "topk": 1, "return_scores": True}),
}


def main() -> int:
    """Ask all; exit 1 when one did not answer."""
    services = json.loads(Path(os.environ["RETINUE_ENDPOINTS"]).read_bytes())["services"]
    failed = 0
    for name, service in services.items():
        url = service.get("url")
        said, is_there = _ask(url, service.get("kind", "")) if url else ("no URL: a TCP service", True)
        failed += not is_there
        print(f"{name:<16} {service['ready']}/{service['wanted']} ready  {said}", flush=True)
    return 1 if failed else 0


def _ask(url: str, kind: str) -> tuple[str, bool]:
    path, body = BODIES.get(kind, ("/health", None))
    data = None if body is None else json.dumps({"model": "rehearsal", **body}).encode()
    request = urllib.request.Request(url + path, data=data, headers={"Content-Type": "application/json"})
    # A proxy of the site's has no business between us and a loopback address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=LIMIT_S) as answer:
            return f"{path} answered {answer.status}", True
    except urllib.error.HTTPError as error:
        return f"{path} answered {error.code}", False
    except OSError as error:
        return f"{path}: {error}", False


if __name__ == "__main__":
    sys.exit(main())
