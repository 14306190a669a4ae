"""Several processes: fork, spawn and forkserver, sent views, and death of every kind."""

import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import forebay
from conftest import socket_of, threads
from forebay_node import wait_for

METHODS = ["fork", "spawn", "forkserver"]
SECONDS_MAX = 60


def content(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def run_child(work) -> int:
    """Forks, runs `work` in the child and returns its exit status; -9 and the like for a signal."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return wait_child(pid)


def wait_child(pid: int) -> int:
    def ended():
        found, status = os.waitpid(pid, os.WNOHANG)
        return (os.waitstatus_to_exitcode(status),) if found else None

    return wait_for("the child to end", ended, SECONDS_MAX)[0]


def check_objects(node, names_and_seeds, results):
    """What a worker of a DataLoader does: read, compare, report."""
    try:
        good = 0
        for name, seed, size in names_and_seeds:
            good += bytes(node.get(name)) == content(seed, size)
            target = bytearray(size)
            good += node.read_into(name, target) == size and target == content(seed, size)
        results.put((os.getpid(), good))
    except BaseException as error:
        results.put((os.getpid(), repr(error)))


def check_views(views, results):
    try:
        results.put([bytes(view) for view in views])
    except BaseException as error:
        results.put(repr(error))


@pytest.mark.parametrize("method", METHODS)
def test_workers_of_every_start_method_read_through_the_same_node(node, bucket, method):
    objects = [(f"{bucket}/{index}", index, 1000 + 50_000 * index) for index in range(20)]
    for name, seed, size in objects:
        node.put(name, content(seed, size))
    context = multiprocessing.get_context(method)
    results = context.Queue()
    workers = [context.Process(target=check_objects, args=(node, objects, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = dict(results.get(timeout=SECONDS_MAX) for _ in workers)
    for worker in workers:
        worker.join(SECONDS_MAX)
    assert list(found.values()) == [2 * len(objects)] * 3
    assert bytes(node.get(objects[0][0])) == content(0, 1000)


@pytest.mark.parametrize("method", METHODS)
def test_views_are_sent_to_other_processes(node, bucket, method):
    data = content(1, 300_000)
    node.put(f"{bucket}/a", data)
    context = multiprocessing.get_context(method)
    results = context.Queue()
    views = [node.get(f"{bucket}/a"), node.get(f"{bucket}/a", 100, 1000)]
    # As a queue sends them: by pickle, whatever the start method.
    worker = context.Process(target=check_views, args=(pickle.loads(pickle.dumps(views)), results))
    worker.start()
    assert results.get(timeout=SECONDS_MAX) == [data, data[100:1100]]
    worker.join(SECONDS_MAX)


def test_a_forked_child_reads_the_view_it_inherited(node, bucket):
    data = content(2, 3 << 20)
    node.put(f"{bucket}/a", data)
    view = node.get(f"{bucket}/a")

    def work():
        assert bytes(view) == data
        view.release()
        assert bytes(node.get(f"{bucket}/a")) == data

    assert run_child(work) == 0
    assert bytes(view) == data


def test_a_view_that_a_child_inherited_outlives_the_parents_release(daemon):
    """The child is a holder of its own: memory is not given to others under it."""
    process = daemon(ram="64MiB", nvme="0")
    node = forebay.connect(str(socket_of(process)))
    node.create_bucket("demo")
    data = content(3, 4 << 20)
    node.put("demo/kept", data)
    view = node.get("demo/kept")
    read_end, write_end = os.pipe()

    def work():
        os.read(read_end, 1)
        assert bytes(view) == data

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    view.release()
    for index in range(40):
        node.put(f"demo/other-{index}", content(100 + index, 4 << 20))
        with node.get(f"demo/other-{index}") as other:
            assert len(other) == 4 << 20
    os.write(write_end, b"x")
    assert wait_child(pid) == 0
    os.close(read_end)
    os.close(write_end)


def test_fork_while_threads_are_reading_never_hangs(node, bucket):
    data = content(4, 200_000)
    node.put(f"{bucket}/a", data)
    stop = threading.Event()

    def read():
        while not stop.is_set():
            assert bytes(node.get(f"{bucket}/a")) == data

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()

    def work():
        assert bytes(node.get(f"{bucket}/a")) == data

    try:
        assert [run_child(work) for _ in range(10)] == [0] * 10
    finally:
        stop.set()
        for reader in readers:
            reader.join(SECONDS_MAX)


def test_a_grandchild_reads_too(node, bucket):
    node.put(f"{bucket}/a", b"abc")
    view = node.get(f"{bucket}/a")

    def grandchild():
        assert bytes(view) == bytes(node.get(f"{bucket}/a")) == b"abc"

    def child():
        assert run_child(grandchild) == 0

    assert run_child(child) == 0


def test_the_engine_object_fails_loudly_in_a_forked_child():
    node = forebay.open("memory://", ram="64MiB")
    node.create_bucket("demo")
    node.put("demo/a", b"abc")

    def work():
        assert bytes(node.get("demo/a")) == b"abc"
        with pytest.raises(forebay.UnsupportedError, match="parent"):
            node._embedded.shutdown()
        with pytest.raises(forebay.UnsupportedError, match="parent"):
            _ = node._embedded.socket
        # Closing the node in the child ends the child's own part, nothing else.
        node.close()

    assert run_child(work) == 0
    assert bytes(node.get("demo/a")) == b"abc"
    node.close()


def test_a_child_that_leaves_by_the_front_door_does_not_stop_the_parents_node(tmp_path):
    """`sys.exit` in a forked child runs exit handlers and collects garbage there."""
    program = """
        import os, sys, forebay
        node = forebay.open("memory://", ram="64MiB")
        node.create_bucket("demo"); node.put("demo/a", b"abc")
        pid = os.fork()
        if pid == 0:
            assert bytes(node.get("demo/a")) == b"abc"
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert bytes(node.get("demo/a")) == b"abc"
        print(os.path.exists(node.address), node.address)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    alive, socket = done.stdout.split()
    assert alive == "True"
    assert not os.path.exists(os.path.dirname(socket)), "the embedded node left its folder behind"


def test_importing_starts_nothing():
    program = "import os, forebay, forebay.fsspec; print(len(os.listdir('/proc/self/task')), len(os.listdir('/proc/self/fd')))"
    plain = "import os, fsspec; print(len(os.listdir('/proc/self/task')), len(os.listdir('/proc/self/fd')))"
    run = lambda text: subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60).stdout  # noqa: E731
    assert run(program) == run(plain) != ""


def test_connecting_starts_no_thread(shared_daemon):
    before = threads()
    with forebay.connect(str(socket_of(shared_daemon))) as node:
        node.buckets()
        assert threads() == before


# --- death ---

HOLDER = """
import sys, time, forebay
node = forebay.connect(sys.argv[1])
views = [node.get(name) for name in sys.argv[2:]]
print("holding", flush=True)
time.sleep(600)
"""


def leased_bytes(process) -> float:
    return process.metric("forebay_native_leased_bytes")


def test_leases_of_a_killed_client_return_at_once(daemon):
    process = daemon()
    node = forebay.connect(str(socket_of(process)))
    node.create_bucket("demo")
    names = [f"demo/{index}" for index in range(4)]
    for name in names:
        node.put(name, content(5, 1 << 20))
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(socket_of(process)), *names], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "holding\n"
    assert leased_bytes(process) >= 4 << 20
    holder.kill()
    holder.wait(SECONDS_MAX)
    holder.stdout.close()
    wait_for("the leases to return", lambda: leased_bytes(process) == 0)


def test_leases_of_a_killed_child_return_and_the_parents_stay(daemon):
    process = daemon()
    node = forebay.connect(str(socket_of(process)))
    node.create_bucket("demo")
    data = content(6, 1 << 20)
    node.put("demo/a", data)
    node.put("demo/b", data)
    kept = node.get("demo/a")
    held = leased_bytes(process)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        mine = node.get("demo/b")
        os.write(write_end, b"x" if len(mine) else b"")
        signal.pause()
        os._exit(0)
    assert os.read(read_end, 1) == b"x"
    assert leased_bytes(process) > held
    os.kill(pid, signal.SIGKILL)
    assert wait_child(pid) == -signal.SIGKILL
    wait_for("the child's leases to return", lambda: leased_bytes(process) == held)
    assert bytes(kept) == data
    os.close(read_end)
    os.close(write_end)


def test_a_killed_node_is_a_clear_error_and_a_new_one_is_found(daemon):
    process = daemon()
    node = forebay.connect(str(socket_of(process)))
    node.create_bucket("demo")
    data = content(7, 2 << 20)
    node.put("demo/a", data)
    view = node.get("demo/a")
    process.kill()
    assert bytes(view) == data, "a view outlives its node"
    with pytest.raises(ConnectionError) as gone:
        node.stat("demo/a")
    assert str(socket_of(process)) in str(gone.value)
    process.start()
    assert bytes(node.get("demo/a")) == data
    assert node.stats().reconnects >= 1
    assert bytes(view) == data
    del view
    node.put("demo/b", b"b")


def test_a_view_pickled_before_the_node_died_is_read_again(daemon):
    process = daemon()
    node = forebay.connect(str(socket_of(process)))
    node.create_bucket("demo")
    node.put("demo/a", b"abc")
    pickled = pickle.dumps(node.get("demo/a"))
    process.restart()
    assert bytes(pickle.loads(pickled)) == b"abc"
