"""Datasets and loaders in several processes: fork, spawn, forkserver; two jobs that share one node."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap

import pytest

import forebay
from conftest import socket_of
from dataset_shards import picture, put_tars, tar_shard

SECONDS_MAX = 60
FIELDS = {"bin": "bytes", "cls": int}


@pytest.fixture(scope="module")
def images(shared_daemon):
    with forebay.connect(str(socket_of(shared_daemon))) as node:
        node.create_bucket("images")
        yield forebay.Dataset(put_tars(node, "images/d"), fields=FIELDS, node=node)


def work(dataset, loader, results):
    """Uses both in another process."""
    try:
        good = all(bytes(dataset[number]["bin"]) == picture(number) for number in range(0, 200, 17))
        found = [int(number) for batch in loader for number in batch["cls"]]
        results.put((good, found))
    except BaseException as error:
        results.put((repr(error), []))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_dataset_and_its_loader_work_in_processes_of_every_kind(images, method):
    loader = images.loader(batch_size=10, shuffle="global", seed=3)
    whole = [int(number) for batch in images.loader(batch_size=10, shuffle="global", seed=3) for number in batch["cls"]]
    batches = iter(loader)
    for _ in range(5):  # its threads run when the child is made
        next(batches)
    context = multiprocessing.get_context(method)
    results = context.Queue()
    child = context.Process(target=work, args=(images, loader, results))
    child.start()
    assert results.get(timeout=SECONDS_MAX) == (True, whole[50:])
    child.join(SECONDS_MAX)
    assert child.exitcode == 0
    assert [int(number) for batch in batches for number in batch["cls"]] == whole[50:]


def test_a_dataset_that_was_sent_refuses_other_data(images, shared_daemon):
    node = images.node
    node.create_bucket("sent")
    ds = forebay.Dataset(put_tars(node, "sent/d", shards=2, samples=5), fields=FIELDS, node=node)
    sent = pickle.dumps(ds)
    assert len(pickle.loads(sent)) == 10
    node.put("sent/d/0001.tar", tar_shard(range(70, 75)))
    with pytest.raises(forebay.ChangedError, match="open it again"):
        len(pickle.loads(sent))


JOB = textwrap.dedent("""
    import sys
    import forebay

    address, name, seed = sys.argv[1:]
    ds = forebay.Dataset(name, fields={"bin": "bytes", "cls": int}, node=forebay.connect(address))
    print("ready", flush=True)
    sys.stdin.readline()
    seen = [int(n) for batch in ds.loader(batch_size=16, shuffle="window", window=300, seed=int(seed)) for n in batch["cls"]]
    print(len(set(seen)), flush=True)
""")


def test_two_jobs_on_one_node_read_the_lake_once(daemon):
    process = daemon(ram="256MiB", nvme="0")
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("demo")
        name = put_tars(node, "demo/d", shards=8, samples=200)
        size = sum(info.bytes for info in node.list("demo/d/"))
        forebay.Dataset(name, node=node).index()
    process.restart()
    before = process.lake_read_bytes()
    address = str(socket_of(process))
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", JOB, address, name, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ),
        )
        for seed in (1, 2)
    ]
    try:
        assert [job.stdout.readline() for job in jobs] == [b"ready\n"] * 2
        for job in jobs:
            job.stdin.write(b"\n")
            job.stdin.flush()
        assert [job.stdout.readline() for job in jobs] == [b"1600\n"] * 2
        assert [job.wait(SECONDS_MAX) for job in jobs] == [0, 0]
    finally:
        for job in jobs:
            job.kill()
            job.wait(SECONDS_MAX)
            job.stdin.close()
            job.stdout.close()
    assert process.lake_read_bytes() - before <= 1.02 * size
