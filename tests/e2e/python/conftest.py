"""Fixtures of the Python package: the same node object, embedded in this process, on this host, and over HTTP.

`node` runs a test once with each: one behaviour suite for all. `daemon` is a node process that a test may stop and kill.
"""

import contextlib
import os
import signal
import uuid
from pathlib import Path

import pytest

import forebay
from forebay_node import ACCESS_KEY, SECRET_KEY, Node, wait_for

# What a client of a remote node needs. For the whole run: a fork server keeps the environment that it was started with.
os.environ |= {"FOREBAY_ACCESS_KEY_ID": ACCESS_KEY, "FOREBAY_SECRET_ACCESS_KEY": SECRET_KEY}

KINDS = ["embedded", "daemon", "remote"]


@pytest.fixture(scope="session")
def shared_daemon(tmp_path_factory):
    """One node process for all tests that do not harm it."""
    root = tmp_path_factory.mktemp("daemon")
    with Node(root, ram="256MiB", args=["--socket", str(root / "n.sock")]) as process:
        yield process


@pytest.fixture(scope="session")
def shared_embedded(tmp_path_factory):
    with forebay.open(f"file://{tmp_path_factory.mktemp('lake')}", ram="256MiB") as node:
        yield node


@pytest.fixture
def home(shared_embedded):
    """A fresh bucket on the embedded node that tests share."""
    name = f"b-{uuid.uuid4().hex[:12]}"
    shared_embedded.create_bucket(name)
    return name


@pytest.fixture(params=KINDS)
def node(request):
    """A node of each kind in turn."""
    if request.param == "embedded":
        yield request.getfixturevalue("shared_embedded")
        return
    process = request.getfixturevalue("shared_daemon")
    address = process.s3_url if request.param == "remote" else str(socket_of(process))
    with forebay.connect(address) as node:
        yield node


@pytest.fixture
def bucket(node):
    """A fresh bucket on it."""
    name = f"b-{uuid.uuid4().hex[:12]}"
    node.create_bucket(name)
    return name


@pytest.fixture
def daemon(own_node):
    """A node process of the test's own, and how to connect to it."""

    def start(**options) -> Node:
        process = own_node(**options)
        process.args += ["--socket", str(socket_of(process))]
        return process.start()

    return start


def socket_of(process: Node):
    return process.root / "n.sock"


def threads() -> int:
    """Threads of this process, as the kernel counts them."""
    return len(os.listdir("/proc/self/task"))


@contextlib.contextmanager
def stalled(process: Node):
    """The node answers nothing while this lasts."""
    pid = process.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        tasks = Path(f"/proc/{pid}/task")
        stopped = lambda: all("T (" in (task / "status").read_text() for task in tasks.iterdir())  # noqa: E731
        wait_for("all threads of the node to stop", stopped)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
