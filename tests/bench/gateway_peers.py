"""What the gateway's bench starts: a backend, the gateways of two nodes, nginx and HAProxy where they are installed."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from retinue.channel.certs import Authority, build_certificate
from retinue.channel.join import Join, write_join
from retinue.channel.messages import Peer
from retinue.gateway.link import GatewayLink

START_S = 10.0
NGINX = """
daemon off; pid {home}/nginx.pid; error_log {home}/nginx.log; worker_processes 1;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {home}/b; proxy_temp_path {home}/p; fastcgi_temp_path {home}/f;
  uwsgi_temp_path {home}/u; scgi_temp_path {home}/s; keepalive_requests 1000000;
  upstream judge {{ server 127.0.0.1:{backend}; keepalive 64; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location /judge/ {{
      proxy_pass http://judge/; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""
HAPROXY = """
global
  nbthread 1
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
frontend gateway
  bind 127.0.0.1:{port}
  http-request replace-path /judge(/.*) \\1
  default_backend judge
backend judge
  http-reuse always
  server one 127.0.0.1:{backend}
"""


class Node:
    """One node's gateway process, and the agent's end of it."""

    def __init__(self, home: Path, authority: Authority, name: str) -> None:
        self.name = name
        pem = home / f"{name}.pem"
        cert, key = build_certificate(authority, "agent", name)
        run, ca = authority.run_id, authority.ca_pem
        write_join(pem, Join(run, 0, name, (), "", "", str(home), "", "", "", ca, cert, key, "bench"))
        control = str(home / f"{name}.sock")
        with socket.create_server(("127.0.0.1", 0)) as listen, socket.create_server(("127.0.0.1", 0)) as hop:
            self.port = listen.getsockname()[1]
            self.peer = Peer(name, ("127.0.0.1",), hop.getsockname()[1])
            fds = [listen.fileno(), hop.fileno()]
            words = ["--listen-fd", str(fds[0]), "--hop-fd", str(fds[1]), "--control-path", control, "--join", str(pem)]
            self.process = subprocess.Popen([sys.executable, "-P", "-m", "retinue", "gateway", *words], pass_fds=fds)
        self.link = GatewayLink(control, name, lambda facts: None)


def start_backend(port: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start the backend on a port, 0: any; returns it and its port."""
    with socket.create_server(("127.0.0.1", port)) as listen:
        argv = [sys.executable, str(Path(__file__).with_name("gateway_load.py")), str(listen.fileno())]
        return subprocess.Popen(argv, pass_fds=[listen.fileno()]), int(listen.getsockname()[1])


def start_others(home: Path, backend: int) -> dict[str, tuple[subprocess.Popen[bytes], int]]:
    """Start the proxies that are installed, one thread each: name -> process and port."""
    started = {}
    for name, text in (("nginx", NGINX), ("haproxy", HAPROXY)):
        program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
        if program is None:
            continue
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        config = home / f"{name}.conf"
        config.write_text(text.format(home=home, backend=backend, port=port))
        argv = [program, "-p", str(home), "-c", str(config)] if name == "nginx" else [program, "-q", "-f", str(config)]
        process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        started[name] = process, port
        _wait_listening(port)
    return started


def end(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """End a process of ours."""
    process.send_signal(number)
    process.wait()


def _wait_listening(port: int) -> None:
    until_s = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)
