"""Loaders: every sample once, on any number of ranks; states; mixes; what was waited for."""

import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import uuid

import numpy as np
import pytest

import forebay
from conftest import socket_of
from dataset_shards import put_tars
from forebay_node import wait_for

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def numbers(shared_embedded):
    """A dataset of 210 samples that are their own number."""
    shared_embedded.create_bucket("loader")
    name = put_tars(shared_embedded, "loader/d", shards=7, samples=30)
    return forebay.Dataset(name, fields={"cls": int}, node=shared_embedded)


def rest(loader) -> list[list[int]]:
    return [batch["cls"].tolist() for batch in loader]


def steps(dataset, world_size, **options):
    """All ranks, step by step: one list per step."""
    loaders = [dataset.loader(rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    return [sum(parts, []) for parts in zip(*(rest(loader) for loader in loaders), strict=True)]


@pytest.mark.parametrize("shuffle", [None, "window", "global"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_sample_comes_once_over_all_ranks(numbers, shuffle, world_size):
    found = steps(numbers, world_size, batch_size=5, shuffle=shuffle, window=64, seed=7)
    assert sorted(sum(found, [])) == list(range(210))
    assert {len(step) for step in found} == {5 * world_size}


def test_the_order_is_the_same_on_any_number_of_ranks(numbers):
    options = {"shuffle": "window", "window": 64, "seed": 7}
    alone = sum(steps(numbers, 1, batch_size=6, **options), [])
    assert sum(steps(numbers, 2, batch_size=3, **options), []) == alone
    assert sum(steps(numbers, 3, batch_size=2, **options), []) == alone
    assert alone != sorted(alone)


def test_epochs_and_seeds_have_orders_of_their_own(numbers):
    loader = numbers.loader(batch_size=10, shuffle="global", seed=7)
    first, second = rest(loader), rest(loader)
    assert first != second
    assert sorted(sum(second, [])) == list(range(210))
    loader.set_epoch(0)
    assert rest(loader) == first
    assert rest(numbers.loader(batch_size=10, shuffle="global", seed=8)) != first
    assert len(loader) == 21


def test_the_tail_is_dropped_or_padded_and_said(numbers):
    dropping = numbers.loader(batch_size=64, tail="drop")
    assert (len(dropping), dropping.dropped_and_padded) == (3, (18, 0))
    assert len(rest(dropping)) == 3
    padding = numbers.loader(batch_size=64, tail="pad")
    assert (len(padding), padding.dropped_and_padded) == (4, (0, 46))
    assert rest(padding)[-1] == [*range(192, 210), *range(46)]


@pytest.mark.parametrize("done", [0, 1, 13, 26])
@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 7), (1, 3), (2, 5), (3, 7)])
def test_a_state_resumes_with_any_ranks_and_batches(numbers, done, world_size, batch_size):
    loader = numbers.loader(batch_size=7, shuffle="window", window=64, seed=3)
    batches = iter(loader)
    for _ in range(done):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    left = sum((batch["cls"].tolist() for batch in batches), [])
    resumed = [numbers.loader(batch_size=batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    for one in resumed:
        one.load_state_dict(state)
    found = sum((sum(parts, []) for parts in zip(*map(rest, resumed), strict=True)), [])
    whole = len(left) // (world_size * batch_size) * world_size * batch_size
    assert whole > 0
    assert found == left[:whole]


def leave_by_break(loader):
    for _ in loader:
        break


def take_exactly_the_batches_of_an_epoch(loader):
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)


def slice_all(loader):
    list(itertools.islice(loader, len(loader)))


def slice_some(loader):
    list(itertools.islice(loader, 2))


@pytest.mark.parametrize(
    "leave", [leave_by_break, take_exactly_the_batches_of_an_epoch, slice_all, slice_some, list]
)
def test_iter_begins_the_next_epoch_however_the_last_loop_ended(numbers, leave):
    options = {"batch_size": 10, "shuffle": "global", "seed": 1}
    loader = numbers.loader(**options)
    leave(loader)
    assert rest(loader) == rest(numbers.loader(epoch=1, **options))
    assert loader.epoch == 2
    leave(loader)
    loader.set_epoch(0)
    assert rest(loader) == rest(numbers.loader(**options))


def test_an_iteration_that_took_nothing_takes_no_epoch(numbers):
    loader = numbers.loader(batch_size=10, shuffle="global", seed=1)
    iter(loader)
    iter(loader)
    assert rest(loader) == rest(numbers.loader(batch_size=10, shuffle="global", seed=1))


def test_only_a_state_goes_on_in_the_middle(numbers):
    loader = numbers.loader(batch_size=10, shuffle="global", seed=1)
    whole = rest(numbers.loader(batch_size=10, shuffle="global", seed=1))
    slice_some(loader)
    loader.load_state_dict(loader.state_dict())
    assert rest(loader) == whole[2:]
    assert loader.epoch == 1


def test_an_iteration_that_was_overtaken_is_refused(numbers):
    loader = numbers.loader(batch_size=10)
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(forebay.InvalidInputError, match="a loader for each"):
        next(first)
    assert next(second)["cls"].tolist() == list(range(10))


def test_a_state_of_other_data_is_refused(numbers, shared_embedded):
    other = forebay.Dataset(
        put_tars(shared_embedded, "loader/other", shards=1, samples=9), fields={"cls": int}, node=shared_embedded
    )
    with pytest.raises(forebay.ChangedError):
        numbers.loader().load_state_dict(other.loader().state_dict())
    with pytest.raises(forebay.InvalidInputError):
        numbers.loader().load_state_dict({"hello": 1})


def test_ranks_are_those_of_the_environment(numbers, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rest(numbers.loader(batch_size=5))[0] == [5, 6, 7, 8, 9]
    assert rest(numbers.loader(batch_size=5, rank=0, world_size=1))[0] == [0, 1, 2, 3, 4]
    with pytest.raises(forebay.InvalidInputError, match="together"):
        numbers.loader(rank=1)


def test_ranks_are_looked_up_when_an_iteration_begins(numbers, monkeypatch):
    # Made before there are ranks, at the top of a script or in a driver that sends it to its workers.
    loader = numbers.loader(batch_size=5)
    alone = len(loader)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(forebay.InvalidInputError, match="RANK is not set"):
        next(iter(loader))
    monkeypatch.setenv("RANK", "1")
    assert len(loader) == alone // 2
    first = next(iter(loader))["cls"].tolist()
    assert first == [5, 6, 7, 8, 9]
    # A worker that is started elsewhere goes on with what was known.
    monkeypatch.delenv("RANK")
    assert next(iter(loader))["cls"].tolist() == first


class Mesh:
    """A `DeviceMesh` of torch, as far as loaders look at it."""

    def __init__(self, names, sizes, place):
        self.mesh_dim_names, self.sizes, self.place = names, sizes, place

    def get_coordinate(self):
        return self.place

    def size(self, dimension=None):
        return self.sizes[dimension or 0]


def test_ranks_of_a_mesh_share_data_along_model_dimensions(numbers):
    def first(names, sizes, place):
        return next(iter(numbers.loader(batch_size=5, mesh=Mesh(names, sizes, place))))["cls"].tolist()

    names = ("dp_replicate", "dp_shard", "tp")
    for place, rank in [((0, 0, 0), 0), ((0, 0, 1), 0), ((0, 1, 0), 1), ((1, 0, 1), 2)]:
        assert first(names, (2, 2, 2), place) == list(range(5 * rank, 5 * rank + 5))
    assert first(None, (3,), (2,)) == list(range(10, 15))
    assert first(("tp",), (3,), (2,)) == list(range(5))
    for names in (("dp", "other"), None):
        with pytest.raises(forebay.InvalidInputError, match='mesh=mesh\\["dp"\\]'):
            first(names, (2, 2), (0, 0))
    with pytest.raises(forebay.InvalidInputError, match="not in the device mesh"):
        first(("dp",), (2,), None)
    with pytest.raises(forebay.InvalidInputError, match="the two of them"):
        numbers.loader(rank=0, world_size=1, mesh=Mesh(("dp",), (2,), (0,)))


def test_wrong_options_say_what_there_is(numbers):
    for wrong, match in [
        ({"shuffle": "buffer"}, "window, global"),
        ({"tail": "keep"}, "drop, pad"),
        ({"on_error": "ignore"}, "substitute"),
        ({"window": "many"}, "size"),
        ({"workers": 4}, "threads"),
        ({"batch_size": 0}, "between 1"),
    ]:
        with pytest.raises(forebay.InvalidInputError, match=match):
            numbers.loader(**{"shuffle": "window", **wrong})


def test_a_part_of_an_epoch_is_other_samples_each_time(numbers):
    loader = numbers.loader(batch_size=7, shuffle="global", take=0.1, seed=5)
    first, second = sum(rest(loader), []), sum(rest(loader), [])
    assert len(first) == len(set(first)) == 21
    assert set(first) != set(second)


def test_a_mix_keeps_its_weights_and_resumes(numbers, shared_embedded):
    shared_embedded.create_bucket("mixed")
    name = put_tars(shared_embedded, "mixed/b", shards=1, samples=20)
    fields = {"cls": int, "__source__": int}
    large = forebay.Dataset("loader/d/{0000..0006}.tar", fields=fields, node=shared_embedded)
    small = forebay.Dataset(name, fields=fields, node=shared_embedded)
    mix = forebay.mix([(large, 0.75), (small, 0.25)], seed=4)
    loader = mix.loader(batch_size=8, shuffle="global")
    batches = list(loader)
    sources = sum((batch["__source__"] for batch in batches), [])
    assert sources.count(1) == len(sources) // 4
    again = mix.loader(batch_size=8, shuffle="global")
    walk = iter(again)
    for _ in range(4):
        next(walk)
    resumed = mix.loader(batch_size=4)
    resumed.load_state_dict(again.state_dict())
    wanted = np.concatenate([batch["cls"] for batch in batches[4:]]).tolist()
    assert sum(rest(resumed), [])[: len(wanted)] == wanted


def test_stats_say_what_was_read_and_waited_for(numbers):
    loader = numbers.loader(batch_size=10)
    rest(loader)
    stats = loader.stats()
    assert (stats.batches, stats.samples, stats.bad_samples) == (21, 210, 0)
    assert stats.bytes == sum(len(str(number)) for number in range(210))
    assert stats.python_seconds > 0
    assert "210 samples" in stats.summary()


KILLED = textwrap.dedent("""
    import json, os, sys
    import forebay

    address, name, path = sys.argv[1:]
    ds = forebay.Dataset(name, fields={"cls": int}, node=forebay.connect(address))
    loaders = [ds.loader(batch_size=6, shuffle="window", window=64, seed=9, rank=rank, world_size=2) for rank in range(2)]
    seen = []
    for step, parts in enumerate(zip(*loaders)):
        for part in parts:
            seen += part["cls"].tolist()
        with open(path + ".new", "w") as file:
            json.dump({"seen": seen, "state": loaders[1].state_dict()}, file)
        os.replace(path + ".new", path)
        if len(seen) >= 0.37 * len(ds):
            print("far enough", flush=True)
            sys.stdin.read()
""")


def test_a_killed_job_resumes_with_another_world_size(shared_daemon, tmp_path):
    with forebay.connect(str(socket_of(shared_daemon))) as node:
        node.create_bucket("killed")
        name = put_tars(node, "killed/d", shards=7, samples=30)
        ds = forebay.Dataset(name, fields={"cls": int}, node=node)
        whole = sum(rest(ds.loader(batch_size=6, shuffle="window", window=64, seed=9)), [])
        saved = tmp_path / "state.json"
        job = subprocess.Popen(
            [sys.executable, "-c", KILLED, node.address, name, str(saved)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ),
        )
        try:
            assert job.stdout.readline() == b"far enough\n"
        finally:
            job.send_signal(signal.SIGKILL)
            wait_for("the job to die", lambda: job.poll() is not None, SECONDS_MAX)
            job.stdin.close()
            job.stdout.close()
        found = json.loads(saved.read_text())
        assert found["seen"] == whole[: len(found["seen"])]
        assert len(found["seen"]) == 84
        loaders = [ds.loader(batch_size=2, rank=rank, world_size=3) for rank in range(3)]
        for loader in loaders:
            loader.load_state_dict(found["state"])
        left = sum((sum(parts, []) for parts in zip(*map(rest, loaders), strict=True)), [])
        assert found["seen"] + left == whole


def test_the_node_counts_what_loaders_waited_for(daemon):
    process = daemon(ram="64MiB", nvme="0")
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("demo")
        ds = forebay.Dataset(put_tars(node, "demo/d"), fields={"bin": "bytes", "cls": int}, node=node)
        with ds.loader(batch_size=10) as loader:
            assert len(rest(loader)) == 20
            stats = loader.stats()
        # The end of a loader says what it had not said yet.
        assert process.metric("forebay_loader_batches_total") == 20
        assert process.metric("forebay_loader_samples_total") == 200
        assert process.metric("forebay_loader_read_bytes_total") == stats.bytes
        waited = process.metric("forebay_loader_wait_seconds_total")
        own = stats.wait_lake_seconds + stats.wait_cache_seconds + stats.wait_check_seconds + stats.hand_over_seconds
        assert waited == pytest.approx(own + stats.wait_decode_seconds, rel=1e-3)


def test_the_end_of_an_epoch_says_what_that_epoch_cost(numbers, caplog):
    loader = numbers.loader(batch_size=10)
    with caplog.at_level(logging.INFO, logger="forebay"):
        rest(loader)
        rest(loader)
    lines = [record.getMessage() for record in caplog.records if "ended" in record.getMessage()]
    assert [line.split(": ")[0] for line in lines] == ["epoch 0 ended", "epoch 1 ended"]
    assert all("21 batches, 210 samples" in line for line in lines)
    assert all(line.endswith("; mixing 0.02") for line in lines), lines


def test_a_loader_says_how_well_an_epoch_is_mixed(numbers):
    def mixing(**options):
        return numbers.loader(batch_size=10, **options).mixing

    assert mixing() < 0.1
    assert mixing(shuffle="window", window=30) > 0.3
    assert 0.7 < mixing(shuffle="global") < 1.4
    assert mixing(take=50, shuffle="global") is None
    mixed = forebay.mix([(numbers, 0.5), (numbers, 0.5)])
    assert 0.7 < mixed.loader(batch_size=10, shuffle="global").mixing < 1.4


def test_each_iteration_of_the_form_for_tf_data_is_an_epoch_of_its_own(numbers):
    from forebay._tf import generator

    options = {"shuffle": "global", "seed": 3}
    epochs = [rest(numbers.loader(batch_size=10, epoch=epoch, **options)) for epoch in range(5)]
    batches = generator(numbers, 10, dict(options))

    def taken(iteration, count=None):
        found = []
        while count is None or len(found) < count:
            batch = next(iteration, None)
            if batch is None:
                break
            found.append(batch["cls"].tolist())
        return found

    assert taken(batches()) == epochs[0]
    left = batches()
    assert taken(left, 3) == epochs[1][:3]
    left.close()
    one, other = batches(), batches()
    assert taken(one, 5) == epochs[2][:5]
    assert taken(other) == epochs[3]
    assert taken(one) == epochs[2][5:]
    assert taken(batches()) == epochs[4]


def test_a_module_that_is_missing_is_no_fault_of_a_sample(numbers):
    def needs(sample):
        raise ModuleNotFoundError("no module named torchaudio")

    with pytest.raises(ModuleNotFoundError):
        next(iter(numbers.map(needs).loader(batch_size=5, on_error="skip")))


@pytest.mark.parametrize(
    "wrong", [{"seed": -1}, {"seed": 2**64}, {"epoch": -1}, {"shuffle": True}, {"window": 0}, {"window": 1.5}, {"batch_size": "3"}]
)
def test_an_option_that_makes_no_sense_is_named(shared_embedded, wrong):
    name = "named-" + uuid.uuid4().hex[:12]
    shared_embedded.create_bucket(name)
    ds = forebay.Dataset(put_tars(shared_embedded, f"{name}/d", shards=1), fields={"cls": int}, node=shared_embedded)
    (option,) = wrong
    with pytest.raises(forebay.InvalidInputError, match=option):
        ds.loader(**{"batch_size": 4, **wrong})


def test_an_epoch_without_a_batch_is_said(shared_embedded, caplog):
    name = "none-" + uuid.uuid4().hex[:12]
    shared_embedded.create_bucket(name)
    ds = forebay.Dataset(put_tars(shared_embedded, f"{name}/d", shards=1), fields={"cls": int}, node=shared_embedded)
    assert list(ds.loader(batch_size=100)) == []
    assert "had no batch" in caplog.text
