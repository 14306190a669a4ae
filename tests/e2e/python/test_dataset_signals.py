"""Ctrl-C ends the opening of a dataset and the wait for a batch, and both work on."""

import pytest

import forebay
from conftest import socket_of, stalled
from dataset_shards import put_tars
from interrupts import interrupted
from test_signals import interrupts  # noqa: F401 - a fixture for every test here


#: Calls under way are seen through for the client's timeout, more than once on a busy machine; without Ctrl-C a wait would end as a timeout.
SECONDS_MAX = 60


@pytest.fixture
def shards(daemon):
    process = daemon()
    # Threads that an opening has under way see their calls through, at most for the timeout.
    with forebay.connect(str(socket_of(process)), timeout=5) as node:
        node.create_bucket("demo")
        yield process, node, put_tars(node, "demo/d", shards=2, samples=50)


def test_ctrl_c_ends_an_opening(shards):
    process, node, name = shards
    ds = forebay.Dataset(name, fields={"cls": int}, node=node)
    with stalled(process), interrupted(SECONDS_MAX):
        len(ds)
    assert len(ds) == 100


def test_ctrl_c_ends_the_wait_for_a_batch(shards):
    process, node, name = shards
    loader = forebay.Dataset(name, fields={"cls": int}, node=node).loader(batch_size=10)
    with stalled(process), interrupted(SECONDS_MAX):
        next(iter(loader))
    assert [number for batch in loader for number in batch["cls"].tolist()] == list(range(100))
