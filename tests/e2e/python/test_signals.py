"""Ctrl-C ends a wait, and the client works on."""

import signal
import threading

import pytest

import forebay
from conftest import socket_of, stalled
from interrupts import interrupted


@pytest.fixture(autouse=True)
def interrupts():
    """Whoever starts the tests in the background has them ignore SIGINT, and processes inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    "call",
    [
        lambda node: node.get("demo/a"),
        lambda node: node.get_batch(["demo/a", "demo/b"]),
        lambda node: node.read_into("demo/a", bytearray(10)),
        lambda node: node.put("demo/b", b"b"),
        lambda node: node.stat("demo/a"),
        lambda node: list(node.list("demo")),
    ],
    ids=["get", "get_batch", "read_into", "put", "stat", "list"],
)
def test_ctrl_c_interrupts_a_wait(daemon, call):
    process = daemon()
    node = forebay.connect(str(socket_of(process)))
    node.create_bucket("demo")
    node.put("demo/a", b"a")
    with stalled(process), interrupted():
        call(node)
    assert bytes(node.get("demo/a")) == b"a"


def test_a_call_ends_at_its_timeout(daemon):
    process = daemon()
    node = forebay.connect(str(socket_of(process)), timeout=0.5)
    node.create_bucket("demo")
    with stalled(process), pytest.raises(TimeoutError):
        node.stat("demo/a")
    assert node.buckets() == ["demo"]


def test_other_threads_run_while_one_waits(daemon):
    process = daemon()
    node = forebay.connect(str(socket_of(process)))
    found = []
    waiting = threading.Thread(target=lambda: found.append(node.buckets()))
    with stalled(process):
        waiting.start()
        # With the interpreter held by the one that waits, this would go on only after its timeout.
        for _ in range(200):
            waiting.join(0.001)
        assert waiting.is_alive()
    waiting.join()
    assert found == [[]]
