"""A service of the quickstart: answers POST with a word count, GET /health with 200. Standard library only."""

import argparse
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """One request; `work_s` stands for the model that a real service would run."""

    protocol_version = "HTTP/1.1"
    name = ""
    work_s = 0.0

    def do_GET(self) -> None:
        self.answer({"status": "ok"})

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode(errors="replace")
        time.sleep(self.work_s)
        self.answer({"service": self.name, "pid": os.getpid(), "words": len(text.split())})

    def answer(self, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the interesting lines of this demo are the trainer's."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--work", default="0ms", help="time one request takes, `5ms`")
    options = parser.parse_args()
    Handler.name = options.name
    Handler.work_s = float(options.work.removesuffix("ms")) / 1000.0
    print(f"{options.name} listens on port {options.port}", flush=True)
    Server(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
