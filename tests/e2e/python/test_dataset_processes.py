"""Datasets and loaders in several processes: fork, spawn, forkserver; jobs and ranks that share one node."""

import hashlib
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap

import pytest

import forebay
from conftest import socket_of
from dataset_shards import image_bytes, put_tars, tar_shard

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
        good = all(bytes(dataset[number]["bin"]) == image_bytes(number) for number in range(0, 200, 17))
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

    address, name, seed, rank, world_size = sys.argv[1:]
    ds = forebay.Dataset(name, fields={"bin": "bytes", "cls": int}, node=forebay.connect(address))
    loader = ds.loader(
        batch_size=16, shuffle="window", window=300, seed=int(seed), rank=int(rank), world_size=int(world_size)
    )
    print("ready", flush=True)
    sys.stdin.readline()
    print(*[int(n) for batch in loader for n in batch["cls"]], flush=True)
""")


@pytest.fixture
def cold(daemon):
    """A node with nothing in its cache, the name of a dataset in its lake, and the bytes of that."""
    process = daemon(ram="256MiB", nvme="0")
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("demo")
        name = put_tars(node, "demo/d", shards=8, samples=200)
        size = sum(info.bytes for info in node.list("demo/d/"))
        forebay.Dataset(name, node=node).index()
    process.restart()
    return process, name, size


def run(process, name: str, jobs: list[tuple[int, int, int]]) -> list[list[int]]:
    """Runs loaders of these seeds, ranks and world sizes at once, each in a process of its own; returns what they saw."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", JOB, str(socket_of(process)), name, *map(str, job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ),
        )
        for job in jobs
    ]
    try:
        assert [job.stdout.readline() for job in started] == [b"ready\n"] * len(jobs)
        for job in started:
            job.stdin.write(b"\n")
            job.stdin.flush()
        seen = [list(map(int, job.stdout.readline().split())) for job in started]
        assert [job.wait(SECONDS_MAX) for job in started] == [0] * len(jobs)
    finally:
        for job in started:
            job.kill()
            job.wait(SECONDS_MAX)
            job.stdin.close()
            job.stdout.close()
    return seen


def test_two_jobs_on_one_node_read_the_lake_once(cold):
    process, name, size = cold
    before = process.lake_read_bytes()
    seen = run(process, name, [(1, 0, 1), (2, 0, 1)])
    assert [sorted(numbers) for numbers in seen] == [list(range(1600))] * 2
    assert process.lake_read_bytes() - before <= 1.02 * size


def test_eight_ranks_of_a_job_read_the_lake_once(cold):
    process, name, size = cold
    before = process.lake_read_bytes()
    seen = run(process, name, [(1, rank, 8) for rank in range(8)])
    assert [len(numbers) for numbers in seen] == [192] * 8
    assert len(set(sum(seen, []))) == 8 * 192
    assert process.lake_read_bytes() - before <= 1.02 * size


def test_a_folder_whose_only_copy_is_local_is_never_evicted(daemon):
    process = daemon(ram="64MiB", nvme="0")

    def files() -> dict[str, str]:
        """Everything below the bucket, with its content."""
        paths = [path for path in (process.lake_dir / "demo").rglob("*") if path.is_file()]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("demo")
        name = put_tars(node, "demo/d", shards=8, samples=24, extra=lambda number: {"pad": bytes([number]) * (1 << 19)})
        ds = forebay.Dataset(name, fields={"pad": "bytes", "cls": int}, node=node).index()
        before = files()
        assert len(before) >= 9
        with ds.loader(batch_size=8, shuffle="window", window="16MiB", seed=1) as loader:
            for _ in range(2):
                assert sum(len(batch["pad"]) for batch in loader) == 192
    # The cache had to give up pages, and only the cache.
    assert process.metric("forebay_evicted_pages_total", tier="ram") > 0
    assert files() == before
