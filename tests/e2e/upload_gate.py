"""A TCP relay between a client and a node that lets so many bytes up and holds the rest.

For tests that cut a client off in the middle: once the gate is shut the client cannot finish, however fast it is, so a
kill after that always hits one that was still at work. Answers pass freely. Life: listens from `with` to its end, which
closes every connection at both sides. One thread for each direction of a connection; clients of tests have few.
"""

import socket
import threading
from urllib.parse import urlsplit

CHUNK_BYTES = 64 * 1024


class UploadGate:
    """`url` is what the client is told; at most `bytes_max` bytes pass from it to `upstream`."""

    def __init__(self, upstream: str, bytes_max: int):
        parts = urlsplit(upstream)
        self.upstream = (parts.hostname, parts.port)
        self.bytes_left = bytes_max
        self.lock = threading.Lock()
        self.is_shut = threading.Event()
        self.closing = threading.Event()
        self.ends: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> "UploadGate":
        self.threads[0].start()
        return self

    def __exit__(self, *_):
        self.closing.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.threads[0].join()
        for end in self.ends:
            _cut(end)
        for thread in self.threads[1:]:
            thread.join()
        for end in [*self.ends, self.listener]:
            end.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            node = socket.create_connection(self.upstream)
            self.ends += [client, node]
            pumps = [threading.Thread(target=self._up, args=(client, node)), threading.Thread(target=_down, args=(node, client))]
            self.threads += pumps
            for pump in pumps:
                pump.start()

    def _up(self, client: socket.socket, node: socket.socket):
        for chunk in _chunks(client):
            with self.lock:
                passing = min(self.bytes_left, len(chunk))
                self.bytes_left -= passing
                if not self.bytes_left:
                    self.is_shut.set()
            try:
                node.sendall(chunk[:passing])
            except OSError:
                break
            if passing < len(chunk):
                self.closing.wait()
                break
        _cut(node)


def _down(node: socket.socket, client: socket.socket):
    try:
        for chunk in _chunks(node):
            client.sendall(chunk)
    except OSError:
        pass
    _cut(client)


def _chunks(end: socket.socket):
    try:
        while chunk := end.recv(CHUNK_BYTES):
            yield chunk
    except OSError:
        return


def _cut(end: socket.socket):
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other side was first
