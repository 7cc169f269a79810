"""Small HTTP servers of a test's own on loopback: each answers as a test wants, and keeps its requests."""

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """All of it, to search for what must not be there."""
        return f"{self.method} {self.path}\n{dict(self.headers)}\n{self.body.decode('latin-1')}"


@dataclass(frozen=True)
class Answer:
    """What is answered; seconds after each ``piece`` bytes of the body, and after each header."""

    code: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    slow_s: float = 0
    piece: int = 1_000_000
    slow_head_s: float = 0


@dataclass
class Server:
    """A running server: its port, and the requests that it got."""

    port: int
    received: list[Received] = field(default_factory=list)


@contextmanager
def serving(
    answer: Callable[[Received], Answer], certificate: Path | None = None, address: str = "127.0.0.1"
) -> Iterator[Server]:
    """A server on this address; with TLS where it has a ``certificate``, a file with its key."""
    server = Server(0)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Received(self.command, self.path, dict(self.headers), body)
            server.received.append(request)
            given = answer(request)
            self.send_response(given.code)
            for name, value in ({"Content-Length": str(len(given.body))} | dict(given.headers)).items():
                self.send_header(name, value)
                if given.slow_head_s:
                    self.flush_headers()
                    time.sleep(given.slow_head_s)
            self.end_headers()
            for start in range(0, 0 if self.command == "HEAD" else len(given.body), given.piece):
                self.wfile.write(given.body[start : start + given.piece])
                time.sleep(given.slow_s)

        do_HEAD = do_POST = do_PUT = do_GET

    class Quiet(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that hung up, or spoke plain HTTP to TLS."""

    listener = Quiet((address, 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        listener.socket = context.wrap_socket(listener.socket, server_side=True)
    server.port = listener.server_address[1]
    threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()


def certificate(directory: Path) -> Path:
    """A certificate for 127.0.0.1 and localhost with its key in one file, signed by itself."""
    made = directory / "certificate.pem"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    files = ("-keyout", directory / "key.pem", "-out", directory / "only.pem")
    subprocess.run([*words.split(), *names, *files], check=True, capture_output=True)
    made.write_text((directory / "key.pem").read_text() + (directory / "only.pem").read_text())
    return made
