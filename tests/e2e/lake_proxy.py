"""An HTTP proxy between a node and its S3 lake that counts, and misbehaves on request.

A test sets `proxy.fault` to a function of the request (method, path, headers) that names what to do with it:
nothing, answer with a status, stall half way, close half way. Requests pass with their `Host` untouched, so
signatures stay valid. Bodies are held in memory: objects of tests are small.
"""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "proxy-authorization"}


class Fault:
    """What happens to one request."""

    def __init__(self, kind: str, status: int = 503, after: float = 0.5):
        self.kind, self.status, self.after = kind, status, after

    @classmethod
    def error(cls, status: int = 503) -> "Fault":
        """Never reaches the lake; answered with this status."""
        return cls("error", status=status)

    @classmethod
    def short(cls, after: float = 0.5) -> "Fault":
        """The connection closes after this share of the body."""
        return cls("short", after=after)

    @classmethod
    def stall(cls, after: float = 0.5) -> "Fault":
        """Nothing more comes after this share of the body, until the proxy or the client closes."""
        return cls("stall", after=after)


class LakeProxy(ThreadingHTTPServer):
    """Listens on a free loopback port until it is closed."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, upstream: str):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream)
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.fault = lambda method, path, headers: None
        self.lock = threading.Lock()
        self.requests: list[tuple[str, str]] = []
        self.faults = 0
        self.get_body_bytes = 0
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def __enter__(self) -> "LakeProxy":
        return self

    def __exit__(self, *_):
        self.closing.set()
        self.shutdown()
        self.server_close()
        self.thread.join()

    def handle_error(self, request, client_address):
        """A client that hangs up on us is what many of these tests are about."""

    def gets(self, key: str) -> int:
        """How often an object was read."""
        with self.lock:
            return sum(1 for method, path in self.requests if method == "GET" and urlsplit(path).path.endswith(key))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LakeProxy

    def log_message(self, *_):
        pass

    def _serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.fault(self.command, self.path, self.headers)
        with self.server.lock:
            self.server.requests.append((self.command, self.path))
            self.server.faults += fault is not None
        if fault and fault.kind == "error":
            self.send_response(fault.status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        status, headers, answer = self._forward(body)
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command == "HEAD":
            return
        end = int(len(answer) * fault.after) if fault else len(answer)
        self.wfile.write(answer[:end])
        self.wfile.flush()
        if self.command == "GET" and status in (200, 206):
            with self.server.lock:
                self.server.get_body_bytes += end
        if fault:
            self.close_connection = True
            if fault.kind == "stall":
                self.server.closing.wait(120)

    def _forward(self, body: bytes):
        upstream = http.client.HTTPConnection(self.server.upstream.hostname, self.server.upstream.port, timeout=60)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_BY_HOP and name.lower() != "expect":
                    upstream.putheader(name, value)
            upstream.endheaders(body or None)
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            upstream.close()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve
