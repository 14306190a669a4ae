"""Ctrl-C ends a wait, and the client works on."""

import os
import signal
import threading
import time

import pytest

import forebay
from conftest import socket_of, stalled


@pytest.fixture(autouse=True)
def interrupts():
    """Whoever starts the tests in the background has them ignore SIGINT, and processes inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_soon():
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    return timer


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
    with stalled(process):
        start = time.monotonic()
        timer = interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            call(node)
        timer.join()
    assert time.monotonic() - start < 10
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
    node = forebay.connect(str(socket_of(process)), timeout=2.0)
    ticks = 0
    with stalled(process):
        waiting = threading.Thread(target=lambda: pytest.raises(TimeoutError, node.buckets))
        waiting.start()
        while waiting.is_alive():
            ticks += 1
            time.sleep(0.001)
    assert ticks > 200
