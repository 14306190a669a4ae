"""An S3 server in memory that takes so many requests a second, or none at all: a lake that throttles or goes away.

It speaks what a node needs of a lake (GET with ranges, HEAD, PUT, DELETE, listings) and checks no signatures. It
counts what it accepts and refuses, so that tests judge by the lake's own numbers.
"""

import hashlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

ENV = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
MISSING = b"<Error><Code>NoSuchKey</Code></Error>"


class ThrottledLake(ThreadingHTTPServer):
    """Listens on a free loopback port until it is closed."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, per_s: float | None = None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"s3://lake?endpoint=http://127.0.0.1:{self.server_address[1]}&region=us-east-1&style=path"
        self.lock = threading.Lock()
        self.objects: dict[str, bytes] = {}
        self.is_away = False
        self.throttle(per_s)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def throttle(self, per_s: float | None) -> None:
        """From now on takes so many requests a second, a tenth of them at once; counts from zero."""
        with self.lock:
            self.per_s, self.tokens, self.at = per_s, (per_s or 0) / 10, time.monotonic()
            self.accepted = self.refused = 0
            self.began = None
            self.refused_late = self.sent_late = 0

    def admits(self) -> bool:
        with self.lock:
            now = time.monotonic()
            self.began = self.began or now
            is_late = now - self.began > 1
            if self.per_s is not None:
                self.tokens = min(self.per_s / 10, self.tokens + (now - self.at) * self.per_s)
                self.at = now
            is_admitted = self.per_s is None or self.tokens >= 1
            self.tokens -= is_admitted and self.per_s is not None
            self.accepted += is_admitted
            self.refused += not is_admitted
            self.sent_late += is_late
            self.refused_late += is_late and not is_admitted
            return is_admitted

    def handle_error(self, request, client_address):
        """A connection that we cut is what some tests are about."""

    def __enter__(self) -> "ThrottledLake":
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


def etag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ThrottledLake

    def log_message(self, *_):
        pass

    def _answer(self, status: int, body: bytes = b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.is_away:
            self.close_connection = True
            return
        if not self.server.admits():
            self._answer(503, SLOW_DOWN)
            return
        url = urlsplit(self.path)
        key = unquote(url.path).removeprefix("/lake").removeprefix("/")
        if self.command == "GET" and not key:
            self._list(parse_qs(url.query, keep_blank_values=True))
        else:
            getattr(self, f"_{self.command.lower()}")(key, body)

    def _put(self, key: str, body: bytes):
        with self.server.lock:
            exists = key in self.server.objects
            if self.headers.get("If-None-Match") == "*" and exists:
                return self._answer(412)
            wanted = self.headers.get("If-Match")
            if wanted and (not exists or etag(self.server.objects[key]) != wanted):
                return self._answer(412)
            self.server.objects[key] = body
        self._answer(200, ETag=etag(body))

    def _delete(self, key: str, body: bytes):
        with self.server.lock:
            self.server.objects.pop(key, None)
        self._answer(204)

    def _get(self, key: str, body: bytes):
        found = self.server.objects.get(key)
        if found is None:
            return self._answer(404, MISSING)
        about = {"ETag": etag(found), "Last_Modified": "Wed, 21 Oct 2026 07:28:00 GMT"}
        if self.command == "HEAD":
            return self._answer(200, Content_Length=str(len(found)), **about)
        span = self.headers.get("Range")
        if not span:
            return self._answer(200, found, **about)
        first, last = span.removeprefix("bytes=").split("-")
        first, last = int(first), min(int(last or len(found)), len(found) - 1)
        about["Content_Range"] = f"bytes {first}-{last}/{len(found)}"
        self._answer(206, found[first : last + 1], **about)

    _head = _get

    def _list(self, query: dict):
        prefix = query.get("prefix", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        limit = int(query.get("max-keys", ["1000"])[0])
        with self.server.lock:
            keys = sorted(key for key in self.server.objects if key.startswith(prefix))
        entries, seen = [], set()
        for key in keys:
            rest = key[len(prefix) :]
            folder = prefix + rest.split(delimiter)[0] + delimiter if delimiter and delimiter in rest else None
            name = folder or key
            if name > after and name not in seen and not (folder and after.startswith(folder)):
                seen.add(name)
                entries.append((name, folder is not None))
        page, is_cut = entries[:limit], len(entries) > limit
        parts = []
        for name, is_folder in page:
            if is_folder:
                parts.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            else:
                body = self.server.objects[name]
                parts.append(
                    f"<Contents><Key>{escape(name)}</Key><Size>{len(body)}</Size><ETag>{escape(etag(body))}</ETag>"
                    "<LastModified>2026-10-21T07:28:00.000Z</LastModified></Contents>"
                )
        token = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if is_cut else ""
        text = f"<ListBucketResult><IsTruncated>{str(is_cut).lower()}</IsTruncated>{''.join(parts)}{token}</ListBucketResult>"
        self._answer(200, text.encode())

    do_GET = do_PUT = do_HEAD = do_DELETE = _serve
