"""Several ranks without torch: processes with RANK and WORLD_SIZE that save one step together and load it apart."""

import re
import uuid

import numpy
import pytest

import forebay
from checkpoint_states import Ranks, run_ranks
from conftest import socket_of


@pytest.fixture
def run(shared_daemon):
    """A node's address and a run of the test's own."""
    address = str(socket_of(shared_daemon))
    with forebay.connect(address) as node:
        bucket = f"b-{uuid.uuid4().hex[:12]}"
        node.create_bucket(bucket)
        yield address, f"{bucket}/run"


SAVE = """
whole = numpy.arange(40 * 6.0).reshape(40, 6)
state = {
    "sharded": shard(whole, world, rank),
    "replica": numpy.arange(100_000, dtype="i8"),
    "rng": numpy.full(8, rank, "u8"),
    "seed": 100 + rank,
    "raw": bytes([rank]) * 10,
    "step": 5,
}
ckpt = forebay.Checkpoints(os.environ["ROOT"], node=node, on_error="raise")
report = ckpt.save(numpy.int64(5), state, metadata={"from": rank}).durable().result(60)
tell([report.bytes, ckpt.latest(), ckpt.rank, ckpt.world_size])
"""

LOAD = """
ckpt = forebay.Checkpoints(os.environ["ROOT"], node=node)
step = ckpt.latest()
whole = numpy.arange(40 * 6.0).reshape(40, 6)
into = {
    "sharded": shard(whole * 0, world, rank),
    "replica": numpy.zeros(100_000, "i8"),
    "rng": numpy.zeros(8, "u8"),
    "seed": 0,
    "raw": b"",
    "step": 0,
}
local = into["sharded"].local
ckpt.load(step, into=into)
first, end = rows(whole.shape, world, rank)
tell([
    into["sharded"].local is local and bool((local == whole[first:end]).all()),
    bool((into["replica"] == numpy.arange(100_000)).all()),
    int(into["rng"][0]), into["seed"], list(into["raw"]), step,
])
"""


@pytest.fixture(scope="module")
def saved(shared_daemon):
    """A step that four ranks saved."""
    address = str(socket_of(shared_daemon))
    with forebay.connect(address) as node:
        node.create_bucket("four-ranks")
    results = run_ranks(SAVE, 4, address, ROOT="four-ranks/run")
    return address, "four-ranks/run", results


def test_four_ranks_save_one_step_and_write_replicas_once(saved):
    address, root, results = saved
    assert [one[1:] for one in results] == [[5, rank, 4] for rank in range(4)]
    with forebay.connect(address) as node:
        ckpt = forebay.Checkpoints(root, node=node)
        manifest = ckpt.manifest(5)
        assert manifest["world_size"] == 4 and ckpt.metadata(5) == {"from": 0} and ckpt.verify(5).ok
        replica = manifest["tensors"]["replica"]["parts"]
        assert sum(part["range"][1] - part["range"][0] for part in replica) == 800_000
        assert len(manifest["tensors"]["sharded"]["parts"]) == 4
        assert sum(one[0] for one in results) == 40 * 6 * 8 + 800_000 + 4 * 64 + 4 * 10


def test_ranks_share_a_node_that_is_embedded_in_another_process(shared_embedded):
    shared_embedded.create_bucket("embedded-ranks")
    results = run_ranks(SAVE, 2, shared_embedded.address, ROOT="embedded-ranks/run")
    assert [one[1:] for one in results] == [[5, rank, 2] for rank in range(2)]
    assert forebay.Checkpoints("embedded-ranks/run", node=shared_embedded, rank=0, world_size=1).verify(5).ok


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_any_number_of_ranks_loads_what_four_saved(saved, world):
    address, root, _ = saved
    results = run_ranks(LOAD, world, address, ROOT=root)
    for rank, (sharded, replica, rng, seed, raw, step) in enumerate(results):
        assert sharded and replica and step == 5
        # What each rank had of its own it gets back; a rank that was not there gets that of the first.
        own = rank if rank < 4 else 0
        assert (rng, seed, raw) == (own, 100 + own, [own] * 10)


def test_the_whole_is_loaded_without_a_state_to_load_into(saved):
    address, root, _ = saved
    with forebay.connect(address) as node:
        state = forebay.Checkpoints(root, node=node, rank=2, world_size=4).load(5)
    assert numpy.array_equal(state["sharded"], numpy.arange(240.0).reshape(40, 6))
    assert state["seed"] == 102 and state["rng"][0] == 2 and state["raw"] == b"\2" * 10


def test_a_rank_that_cannot_save_is_named_on_every_rank(run):
    address, root = run
    program = """
    state = {"w": numpy.ones(8), "odd": {1} if rank == 2 else 1}
    ckpt = forebay.Checkpoints(os.environ["ROOT"], node=node, on_error="raise")
    try:
        ckpt.save(1, state)
    except forebay.ForebayError as error:
        tell([error.kind, str(error)])
    """
    results = run_ranks(program, 3, address, ROOT=root)
    assert all(kind == "unsupported" for kind, _ in results)
    assert all("rank 2" in message for _, message in results[:2]) and "odd" in results[2][1]
    with forebay.connect(address) as node:
        assert forebay.Checkpoints(root, node=node).steps() == []


def test_a_rank_that_never_comes_is_named_within_the_deadline(run):
    address, root = run
    program = """
    ckpt = forebay.Checkpoints(os.environ["ROOT"], node=node, deadline=2, rank=rank, world_size=3, on_error="raise")
    try:
        ckpt.save(1, {"w": numpy.ones(8)})
    except forebay.TimedOutError as error:
        tell(str(error))
    """
    results = run_ranks(program, 2, address, ROOT=root)
    # Who stops waiting first is missing to the other.
    assert all(re.search(r"ranks: (\d, )?2", message) for message in results), results


def test_a_rank_that_dies_while_it_saves_is_named_and_nothing_is_seen(run):
    address, root = run
    # The native class cannot be patched: the process ends itself where the package would stage.
    program = """
    ckpt = forebay.Checkpoints(os.environ["ROOT"], node=node, on_error="raise", deadline=30)
    state = {"w": shard(numpy.arange(40.0), world, rank)}
    if rank == 1:
        import forebay.checkpoints as package
        real = package._native
        class Dying:
            def __getattr__(self, name):
                return getattr(real, name)
            def CheckpointSave(self, *args, **options):
                real.CheckpointSave(*args, **options).write([], 1)
                print(json.dumps(None), flush=True)
                os._exit(0)
        package._native = Dying()
    try:
        ckpt.save(1, state).durable().result(60)
    except forebay.ForebayError as error:
        tell(str(error))
    """
    results = run_ranks(program, 2, address, ROOT=root)
    assert "1" in results[0].split("rank", 1)[1], results
    with forebay.connect(address) as node:
        assert forebay.Checkpoints(root, node=node).steps() == []


def test_ranks_that_save_different_steps_are_told_so(run):
    address, root = run
    program = """
    ckpt = forebay.Checkpoints(os.environ["ROOT"], node=node, deadline=2, on_error="raise")
    try:
        ckpt.save(7 + rank, {"w": numpy.ones(8)})
    except forebay.ForebayError as error:
        tell(str(error))
    """
    assert all("rank" in message for message in run_ranks(program, 2, address, ROOT=root))


def test_replicas_that_differ_raise_an_alarm(run):
    address, root = run
    program = """
    import warnings
    told = []
    for step, alarms in enumerate(["refuse", "warn", "off"]):
        ckpt = forebay.Checkpoints(os.environ["ROOT"], node=node, alarms=alarms, on_error="raise")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                ckpt.save(step, {"big": numpy.full(1 << 15, rank)}).durable().result(60)
            except forebay.InvalidInputError as error:
                told.append([alarms, "refused", str(error)])
        told += [[alarms, "warned", str(one.message)] for one in caught]
    tell(told)
    """
    for told in run_ranks(program, 2, address, ROOT=root):
        assert [one[:2] for one in told] == [["refuse", "refused"], ["warn", "warned"]]
        assert all("big (ranks 0, 1)" in message for _, _, message in told)
    with forebay.connect(address) as node:
        assert forebay.Checkpoints(root, node=node).steps() == [1, 2]


def test_two_jobs_on_one_root_do_not_touch_each_other(run):
    address, root = run
    program = """
    job = os.environ["JOB"]
    ckpt = forebay.Checkpoints(os.environ["ROOT"], node=node, job=job, on_error="raise")
    won = []
    for step in range(3):
        state = {"who": shard(numpy.full(64, int(job)), world, rank), "job": job}
        try:
            ckpt.save(step, state).durable().result(60)
            won.append(step)
        except (forebay.AlreadyExistsError, forebay.ConflictError):
            pass
    tell(won)
    """
    with (
        Ranks(program, 2, address, {"ROOT": root, "JOB": "1"}) as one,
        Ranks(program, 2, address, {"ROOT": root, "JOB": "2"}) as two,
    ):
        first, second = one.results(), two.results()
    with forebay.connect(address) as node:
        ckpt = forebay.Checkpoints(root, node=node)
        assert ckpt.steps() == [0, 1, 2] == sorted(first[0] + second[0])
        for step in ckpt.steps():
            state = ckpt.load(step)
            assert set(state["who"]) == {int(state["job"])}, "of one job, whole"
            assert step in (first if state["job"] == "1" else second)[0] and ckpt.verify(step).ok


def test_a_job_that_is_started_again_agrees_anew(saved):
    """The node remembers exchanges for a while; a new run of the same launcher must not get the answers of the old."""
    address, root, _ = saved
    with forebay.connect(address) as node:
        ckpt = forebay.Checkpoints(root, node=node, rank=0, world_size=1)
        ckpt.save(9, ckpt.load(5)).durable().result(60)
    for _ in range(2):
        assert {one[-1] for one in run_ranks(LOAD, 2, address, ROOT=root)} == {9}
