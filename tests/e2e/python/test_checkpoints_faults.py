"""Damage, deaths, Ctrl-C and fork around `forebay.Checkpoints`."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy
import pytest

import forebay
from forebay import _native
from forebay._save import SaveHandle
from forebay._windows import _fill
from checkpoint_states import equal, small
from conftest import socket_of, stalled
from forebay_node import wait_for
from interrupts import interrupted
from test_processes import run_child


@pytest.fixture(autouse=True)
def interrupts():
    """Whoever starts the tests in the background has them ignore SIGINT, and processes inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def flip(path, at: int):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


@pytest.fixture
def lake(tmp_path):
    """A folder with a step in it that nobody has read yet."""
    state = {"a": numpy.arange(100_000.0), "b": numpy.arange(50_000.0)}
    with forebay.open(f"file://{tmp_path}") as node:
        node.create_bucket("lake")
        forebay.Checkpoints("lake/run", node=node, on_error="raise").save(1, state).durable().result(60)
    (data,) = (tmp_path / "lake/run/steps/1").glob("*/rank-*.safetensors")
    return tmp_path, data, state


def loaded(folder, **options):
    with forebay.open(f"file://{folder}") as node:
        return forebay.Checkpoints("lake/run", node=node).load(1, **options)


def test_a_flipped_bit_is_an_error_that_names_tensor_and_file(lake):
    folder, data, _ = lake
    flip(data, data.stat().st_size - 1000)
    with pytest.raises(forebay.ChecksumError) as caught:
        loaded(folder)
    assert "tensor: b" in str(caught.value) and data.name in str(caught.value)


def test_damage_that_a_load_does_not_need_does_not_fail_it(lake):
    folder, data, state = lake
    flip(data, data.stat().st_size - 1000)
    assert numpy.array_equal(loaded(folder, names=lambda name: name == "a")["a"], state["a"])
    into = {"b": forebay.Shard(numpy.zeros(100), offset=(200,), shape=(50_000,))}
    loaded(folder, into=into, strict=False)
    assert numpy.array_equal(into["b"].local, state["b"][200:300])


def test_a_missing_and_a_short_file_are_named(lake):
    folder, data, _ = lake
    os.truncate(data, data.stat().st_size - 5000)
    with pytest.raises(forebay.CorruptError, match=data.name):
        loaded(folder)
    data.unlink()
    with pytest.raises(forebay.CorruptError, match=data.name):
        loaded(folder)
    with forebay.open(f"file://{folder}") as node:
        verified = forebay.Checkpoints("lake/run", node=node).verify(1, quick=True)
    assert not verified.ok and data.name in verified.findings[0][0]


def test_a_step_without_its_manifest_is_not_there(lake):
    folder, data, _ = lake
    (data.parents[1] / "manifest-1.json").unlink()
    with forebay.open(f"file://{folder}") as node:
        ckpt = forebay.Checkpoints("lake/run", node=node)
        assert ckpt.steps() == [] and ckpt.latest() is None
        with pytest.raises(forebay.NotFoundError):
            ckpt.load(1)


TRAINER = """
import os, signal, sys, numpy, forebay
node = forebay.connect(sys.argv[1])
ckpt = forebay.Checkpoints("lake/run", node=node, on_error="raise")
handle = ckpt.save(1, {"w": numpy.arange(4 << 20)})
assert handle.staged()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trainer_killed_after_staged_loses_nothing(daemon):
    process = daemon()
    address = str(socket_of(process))
    with forebay.connect(address) as node:
        node.create_bucket("lake")
        trainer = subprocess.run([sys.executable, "-c", textwrap.dedent(TRAINER), address], timeout=60)
        assert trainer.returncode == -signal.SIGKILL
        ckpt = forebay.Checkpoints("lake/run", node=node)
        wait_for("the step to be committed", lambda: ckpt.steps() == [1], 60)
        assert numpy.array_equal(ckpt.load(1)["w"], numpy.arange(4 << 20))


def test_a_handle_tells_the_truth_about_a_node_that_was_killed(daemon):
    process = daemon()
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("lake")
        ckpt = forebay.Checkpoints("lake/run", node=node, deadline=60, on_error="raise")
        handle = ckpt.save(1, {"w": numpy.arange(4 << 20)})
        process.restart()
        error = handle.durable().exception(60)
        assert (error is None) == (ckpt.steps() == [1])
        assert error is None or isinstance(error, forebay.UnavailableError)
        # The same object goes on with the new node.
        ckpt.save(2, small(2)).durable().result(60)
        equal(ckpt.load(2), small(2))


def lonely_rank(node, **options):
    """A save of rank 0 that waits for rank 1, which never comes; also what was heard of it."""
    heard = []
    told = lambda step, error: heard.append((step, error))  # noqa: E731
    ckpt = forebay.Checkpoints("lake/run", node=node, rank=0, world_size=2, on_failure=told, **options)
    given = {"rank": 0, "world_size": 2, "attempt": "a-0123456789abcdef", "deadline": 600.0}
    save = _native.CheckpointSave(node._client, "lake/run", 1, **given)
    handle = SaveHandle(ckpt._root, 1, save.stage(), {"stall_seconds": 0.0, "deadline": 600.0})
    ckpt._watch.add(handle, lambda _: (), ckpt._failures.failed, ckpt._failures.failing)
    return ckpt, handle, heard


def test_a_save_that_died_with_its_node_is_known_within_seconds(daemon):
    process = daemon()
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("lake")
        ckpt, handle, heard = lonely_rank(node, on_error="raise")
        process.kill()
        with pytest.warns(forebay.CheckpointWarning, match="step 1 is not durable yet"):
            error = handle.durable().exception(60)
        assert isinstance(error, forebay.UnavailableError) and "gone, and the save with it" in str(error)
        wait_for("the callback to hear it", lambda: heard and heard[-1] == (1, error), 10)
        assert heard[-1] == (1, error)
        assert ckpt.wait(10), "who has asked the future is not told again"
        process.start()
        alone = forebay.Checkpoints("lake/run", node=node, rank=0, world_size=1, on_error="raise")
        alone.save(2, small(2)).durable().result(60)


def test_wait_and_the_next_save_say_what_nobody_has_asked_for(daemon):
    process = daemon()
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("lake")
        ckpt, handle, _ = lonely_rank(node)
        process.kill()
        with pytest.warns(forebay.CheckpointWarning), pytest.raises(forebay.UnavailableError):
            while not handle.staged() or ckpt.wait(60):
                pass
        process.start()
        other, handle, _ = lonely_rank(node, on_error="raise")
        handle.abort()
        wait_for("the save to end", lambda: not other._watch._threads, 30)
        with pytest.raises(forebay.ForebayError, match="given up"):
            other.save(2, small(2))


def test_a_rank_that_does_not_come_is_named_long_before_the_deadline(daemon):
    process = daemon()
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("lake")
        ckpt, handle, heard = lonely_rank(node)
        with pytest.warns(forebay.CheckpointWarning, match="ranks: 1"), pytest.raises(forebay.TimedOutError):
            ckpt.wait(60)
        assert not handle.durable().done() and heard[0][0] == 1 and "ranks: 1" in str(handle.failing)
        handle.abort()
        assert isinstance(handle.durable().exception(60), forebay.CancelledError)


def test_a_full_disk_is_known_within_seconds_in_the_words_of_the_system(daemon, tmp_path):
    small_disk = tmp_path / "small"
    small_disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small_disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a small file system can be mounted by root alone")
    try:
        process = daemon(lake=f"file://{small_disk}")
        with forebay.connect(str(socket_of(process))) as node:
            node.create_bucket("lake")
            ckpt = forebay.Checkpoints("lake/run", node=node, deadline=600)
            handle = ckpt.save(1, {"w": numpy.arange(1 << 20)})
            with pytest.warns(forebay.CheckpointWarning), pytest.raises(forebay.ForebayError, match="No space left"):
                ckpt.wait(60)
            with pytest.warns(forebay.CheckpointWarning, match="still not durable"):
                ckpt._failures.say_again()
            handle.abort()
            handle.durable().exception(60)
            ckpt.close()
        process.kill()
    finally:
        subprocess.run(["umount", "--lazy", str(small_disk)], check=True)


def test_a_save_on_the_nodes_disk_survives_kill_9_of_the_node(daemon):
    process = daemon()
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("lake")
        ckpt = forebay.Checkpoints("lake/run", node=node, staged="nvme", deadline=120, on_error="raise")
        handle = ckpt.save(1, {"w": numpy.arange(4 << 20), "note": "kept"})
        assert handle.report.survives in ("node", "everything")
        process.restart()
        assert handle.durable().result(90).where == "lake"
        found = ckpt.load(1)
    assert numpy.array_equal(found["w"], numpy.arange(4 << 20)) and found["note"] == "kept"


def test_a_program_with_a_data_folder_is_killed_and_the_next_one_finishes_its_save(tmp_path):
    for folder in ("lake", "data"):
        (tmp_path / folder).mkdir()
    program = f"""
    import os, signal, numpy, forebay
    node = forebay.open("file://{tmp_path}/lake", data="{tmp_path}/data")
    node.create_bucket("lake")
    ckpt = forebay.Checkpoints("lake/run", node=node, staged="nvme", on_error="raise")
    handle = ckpt.save(1, {{"w": numpy.arange(1 << 20)}})
    assert handle.report.survives in ("node", "everything"), handle.report
    os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    with forebay.open(f"file://{tmp_path}/lake", data=str(tmp_path / "data")) as node:
        ckpt = forebay.Checkpoints("lake/run", node=node)
        wait_for("the step to be committed", lambda: ckpt.steps() == [1], 60)
        assert ckpt.load(1)["w"][-1] == (1 << 20) - 1


@pytest.mark.parametrize("call", ["save", "load", "latest"])
def test_ctrl_c_ends_a_wait(daemon, call):
    process = daemon()
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("lake")
        ckpt = forebay.Checkpoints("lake/run", node=node)
        ckpt.save(1, small(1)).durable().result(60)
        with stalled(process), interrupted():
            if call == "save":
                ckpt.save(3, small(3))
            elif call == "load":
                ckpt.load(1)
            else:
                ckpt.latest()
        equal(ckpt.load(1), small(1))
        assert 3 not in ckpt.steps()


def test_ctrl_c_ends_a_load_whose_other_threads_wait_too(daemon):
    process = daemon()
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("lake")
        ckpt = forebay.Checkpoints("lake/run", node=node, on_error="raise")
        state = {name: numpy.arange(5 << 19) for name in ("a", "b")}
        ckpt.save(1, state).durable().result(60)
        step = ckpt._root.step(1)
        wants = [(name, (0,), array.shape, numpy.empty_like(array)) for name, array in state.items()]
        step.load(wants, 2)
        # Everything but the data is there now: both threads wait for some of that.
        with stalled(process), interrupted():
            _fill(step, wants, [], 2)  # what `Checkpoints.load` calls after it has read the manifest
        step.load(wants, 2)
        assert all(numpy.array_equal(target, state[name]) for name, _, _, target in wants)


def test_ctrl_c_ends_a_wait_for_ranks_and_for_a_commit(shared_daemon):
    with forebay.connect(str(socket_of(shared_daemon))) as node:
        node.create_bucket("lonely")
        ckpt = forebay.Checkpoints("lonely/run", node=node, rank=0, world_size=2, on_error="raise")
        with interrupted():
            ckpt.save(1, small(1))
        with interrupted():
            ckpt.latest()
        # What a rank has after the others agreed: staged, and one of them died before it was.
        options = {"rank": 0, "world_size": 2, "attempt": "a-0123456789abcdef", "deadline": 60.0}
        save = _native.CheckpointSave(node._client, "lonely/run", 1, **options)
        handle = SaveHandle(ckpt._root, 1, save.stage(), {"stall_seconds": 0.0})
        ckpt._watch.add(handle, lambda _: (), lambda *_: None)
        with interrupted():
            handle.durable().result()
        with pytest.raises(forebay.TimedOutError, match="not durable yet"):
            handle.durable().result(0.01)
        handle.abort()
        assert isinstance(handle.durable().exception(60), forebay.ForebayError) and ckpt.steps() == []


def test_a_forked_child_waits_saves_and_loads(daemon):
    process = daemon()
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("lake")
        ckpt = forebay.Checkpoints("lake/run", node=node, on_error="raise")
        handle = ckpt.save(1, small(1))

        def child():
            assert handle.durable().result(60).phase == "durable"
            equal(ckpt.load(1), small(1))
            ckpt.save(2, small(2)).durable().result(60)

        assert run_child(child) == 0
        handle.durable().result(60)
        equal(ckpt.load(2), small(2))


def test_a_program_that_ends_at_once_leaves_a_whole_step(tmp_path):
    """An embedded node ends with its process: the end of the interpreter waits for what is staged."""
    program = f"""
    import numpy, forebay
    node = forebay.open("file://{tmp_path}")
    node.create_bucket("lake")
    forebay.Checkpoints("lake/run", node=node).save(1, {{"w": numpy.arange(1 << 20)}})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert loaded(tmp_path)["w"][-1] == (1 << 20) - 1


def test_a_program_that_ends_at_once_leaves_its_save_to_the_node(shared_daemon):
    address = str(socket_of(shared_daemon))
    program = f"""
    import numpy, forebay
    node = forebay.connect({address!r})
    node.create_bucket("left-behind")
    handle = forebay.Checkpoints("left-behind/run", node=node).save(1, {{"w": numpy.arange(1 << 20)}})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    with forebay.connect(address) as node:
        ckpt = forebay.Checkpoints("left-behind/run", node=node)
        wait_for("the step to be committed", lambda: ckpt.steps() == [1], 60)
        assert ckpt.load(1)["w"][-1] == (1 << 20) - 1


def test_torch_is_not_imported_for_numpy():
    program = """
    import sys, numpy, forebay
    with forebay.open("memory://") as node:
        node.create_bucket("lake")
        with forebay.Checkpoints("lake/run", node=node, on_error="raise") as ckpt:
            ckpt.save(1, {"w": numpy.ones(3)}).durable().result(60)
            ckpt.load(1)
    assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=120, check=True)
