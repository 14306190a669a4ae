"""`forebay.Checkpoints` in one process: round trips, what a handle tells, what stays and what goes."""

import concurrent.futures
import uuid
import warnings

import ml_dtypes
import numpy
import pytest

import forebay
from checkpoint_states import blank, equal, small
from conftest import socket_of
from forebay.safetensors import load_file, safe_open


@pytest.fixture(params=["embedded", "daemon"])
def host(request):
    """A node that can save: in this process, and beside it."""
    if request.param == "embedded":
        yield request.getfixturevalue("shared_embedded")
        return
    with forebay.connect(str(socket_of(request.getfixturevalue("shared_daemon")))) as node:
        yield node


@pytest.fixture
def root(host):
    """A run of the test's own."""
    bucket = f"b-{uuid.uuid4().hex[:12]}"
    host.create_bucket(bucket)
    return f"forebay://{bucket}/runs/one"


@pytest.fixture
def ckpt(host, root):
    with forebay.Checkpoints(root, node=host, on_error="raise") as checkpoints:
        yield checkpoints


def test_a_state_comes_back_as_it_was(ckpt):
    state = small(1)
    handle = ckpt.save(10, state)
    assert handle.staged()
    handle.durable().result(60)
    assert ckpt.steps() == [10] and ckpt.latest() == 10
    equal(ckpt.load(10), state)
    equal(ckpt.load(), state)


def test_tensors_are_filled_in_place(ckpt):
    state = small(2)
    ckpt.save(1, state).durable().result(60)
    into = blank(state)
    weight, layers = into["model"]["embed"], into["model"]["layers"]
    assert ckpt.load(1, into=into) is into
    assert into["model"]["embed"] is weight and into["model"]["layers"] is layers
    equal(into, state)


def test_the_memory_of_the_caller_is_free_when_save_returns(ckpt):
    state = {"w": numpy.arange(1 << 20)}
    handle = ckpt.save(1, state)
    state["w"][:] = -1
    handle.durable().result(60)
    assert numpy.array_equal(ckpt.load(1)["w"], numpy.arange(1 << 20))


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(24.0).reshape(4, 6).T,
        numpy.arange(24.0).reshape(4, 6)[::2, 1::2],
        numpy.arange(6, dtype=">i4"),
        numpy.array(3 + 4j, "c8"),
        numpy.zeros((3, 0, 2), "u2"),
        numpy.array([True, False]),
        numpy.ones((1, 2, 1, 2, 1, 2, 1, 2), "f2"),
    ],
    ids=["transposed", "strided", "big-endian", "scalar", "empty", "bool", "8-d"],
)
def test_arrays_of_every_kind_come_back(ckpt, array):
    ckpt.save(1, {"a": array}).durable().result(60)
    back = ckpt.load(1)["a"]
    assert back.shape == array.shape and numpy.array_equal(back, array)
    into = numpy.zeros_like(array)
    ckpt.load(1, into={"a": into})
    assert numpy.array_equal(into, array)


def test_types_that_numpy_has_from_ml_dtypes_come_back(ckpt):
    state = {
        name: numpy.arange(1, 9).astype(getattr(ml_dtypes, name))
        for name in ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
    }
    ckpt.save(1, state).durable().result(60)
    equal(ckpt.load(1), state)


def test_a_report_says_what_a_save_did(ckpt, host):
    handle = ckpt.save(1, {"w": numpy.arange(1 << 17), "t": numpy.ones((256, 256)).T})
    early = handle.report
    assert early.stall_seconds > 0 and early.survives in (
        ("nothing", "everything") if host._embedded else ("trainer", "everything")
    )
    late = handle.durable().result(60)
    assert isinstance(handle.durable(), concurrent.futures.Future) and handle.durable().done()
    assert late == handle.report and late.phase == "durable" and late.where == "lake" and late.survives == "everything"
    assert late.bytes == 1.5 * (1 << 20) and late.bytes_written == late.bytes and late.dedup == 0
    assert late.bytes_copied == 2 << 20, "the transposed one was copied twice"
    assert 1.3 < late.copies < 1.4 and late.generation == 1 and late.durable_seconds > 0


def test_what_is_not_plain_memory_is_copied_window_by_window(ckpt, monkeypatch):
    monkeypatch.setattr("forebay._windows.WINDOW_BYTES", 1 << 20)
    wide, long = numpy.arange(3 << 17).reshape(3, 1 << 17).T, numpy.arange(1 << 18)[::2].reshape(1, 1 << 17)
    report = ckpt.save(1, {"wide": wide, "long": long, "plain": numpy.arange(10)}).durable().result(60)
    assert 1.99 < report.copies < 2
    assert len(ckpt.manifest(1)["tensors"]["wide"]["parts"]) > 2
    found = ckpt.load(1)
    assert numpy.array_equal(found["wide"], wide) and numpy.array_equal(found["long"], long)
    into = {"wide": numpy.zeros_like(wide), "long": numpy.zeros(long.shape, ">i8"), "plain": numpy.zeros(10, "i8")}
    assert not into["wide"].flags.c_contiguous
    ckpt.load(1, into=into)
    assert numpy.array_equal(into["wide"], wide) and numpy.array_equal(into["long"], long)
    fixed = numpy.broadcast_to(numpy.zeros(1 << 17, "i8"), long.shape)
    with pytest.raises(forebay.InvalidInputError, match="read-only"):
        ckpt.load(1, into={"wide": into["wide"], "long": fixed, "plain": into["plain"]})


def test_what_the_step_before_has_is_not_written_again(ckpt):
    frozen, moving = numpy.arange(1 << 18), numpy.zeros(1 << 10)
    ckpt.save(1, {"frozen": frozen, "moving": moving}).durable().result(60)
    report = ckpt.save(2, {"frozen": frozen, "moving": moving + 1}).durable().result(60)
    assert report.bytes_reused == frozen.nbytes and report.parent == (1, 1) and report.dedup > 0.99
    ckpt.prune(steps=[1])
    assert ckpt.steps() == [2] and numpy.array_equal(ckpt.load(2)["frozen"], frozen)
    assert ckpt.verify(2).ok


def test_alarms_refuse_what_looks_wrong(host, root):
    state = {"w": numpy.ones(1 << 16)}
    with forebay.Checkpoints(root, node=host, alarms="refuse") as ckpt:
        ckpt.save(1, state).durable().result(60)
        for wrong in [numpy.zeros(1 << 16), numpy.full(1 << 16, numpy.nan)]:
            with pytest.warns(forebay.CheckpointWarning, match="step 2"):
                handle = ckpt.save(2, {"w": wrong})
                assert handle.durable().exception(60) is not None
                ckpt.wait()
        assert ckpt.steps() == [1]
    with forebay.Checkpoints(root, node=host, alarms="warn", on_error="raise") as ckpt:
        report = ckpt.save(2, {"w": numpy.zeros(1 << 16)}).durable().result(60)
        assert [(kind, name) for kind, name, _ in report.alarms] == [("zeroed", "w")]


def test_what_changed_is_stored_as_a_difference_if_asked(host, root):
    first = numpy.random.default_rng(1).standard_normal(1 << 18, dtype=numpy.float32)
    second = first * numpy.float32(1 + 1e-5)
    with forebay.Checkpoints(root, node=host, on_error="raise", differential="auto") as ckpt:
        assert ckpt.save(1, {"w": first}).durable().result(60).delta_ratio is None
        report = ckpt.save(2, {"w": second}).durable().result(60)
        assert report.bytes_encoded == report.bytes == second.nbytes and report.delta_ratio > 1.2
        assert report.bytes_encoded_stored == report.bytes_written < report.bytes
        assert ckpt.verify(2).ok
        assert ckpt.prune(steps=[1]) == [1]
        assert ckpt.load(2)["w"].tobytes() == second.tobytes()


def test_metadata_is_remembered(ckpt):
    ckpt.save(1, small(), metadata={"loss": 2.25, "tags": ["a"]}).durable().result(60)
    assert ckpt.metadata(1) == {"loss": 2.25, "tags": ["a"]}
    manifest = ckpt.manifest(1)
    assert manifest["step"] == 1 and manifest["tensors"]["model.embed"]["shape"] == [64, 32]
    with pytest.raises(forebay.InvalidInputError, match="JSON"):
        ckpt.save(2, small(), metadata={"loss": float("nan")})


def test_a_sha256_is_kept_when_asked_for(host, root):
    import hashlib

    state = {"w": numpy.arange(1000.0)}
    with forebay.Checkpoints(root, node=host, digest="sha256", on_error="raise") as ckpt:
        ckpt.save(1, state).durable().result(60)
        part = ckpt.manifest(1)["tensors"]["w"]["parts"][0]
    assert part["sha256"] == hashlib.sha256(state["w"].tobytes()).hexdigest()


def test_only_what_is_kept_stays_after_a_commit(host, root):
    with forebay.Checkpoints(root, node=host, keep_last=2, keep_every=4, on_error="raise") as ckpt:
        reports = [ckpt.save(step, small(step)).durable().result(60) for step in range(1, 8)]
        assert ckpt.steps() == [4, 6, 7] and reports[2].pruned == (1,)
        for step in ckpt.steps():
            equal(ckpt.load(step), small(step))


def test_a_failed_save_warns_and_leaves_everything_as_it_was(host, root):
    with forebay.Checkpoints(root, node=host, keep_last=1) as ckpt:
        ckpt.save(1, small(1)).durable().result(60)
        with pytest.warns(forebay.CheckpointWarning, match="step 1 was not saved"):
            handle = ckpt.save(1, small(2))
        assert not handle.staged() and isinstance(handle.error, forebay.AlreadyExistsError)
        assert handle.report.phase == "failed" and handle.report.where == "nowhere"
        with pytest.raises(forebay.AlreadyExistsError):
            handle.durable().result()
        with pytest.warns(forebay.CheckpointWarning, match="allow_pickle"):
            ckpt.save(2, {"odd": {1, 2}})
        assert ckpt.steps() == [1] and ckpt.latest() == 1
        equal(ckpt.load(1), small(1))


class Bomb:
    """What a hostile writer puts into a step: unpickling it makes a file."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (open, (self.marker, "w"))


def test_a_hostile_step_runs_no_code_unless_pickles_are_allowed(host, root, tmp_path):
    marker = tmp_path / "it-ran"
    state = {"fine": 1, "deep": [{"bomb": Bomb(marker)}]}
    with forebay.Checkpoints(root, node=host, allow_pickle=True) as ckpt:
        ckpt.save(1, state).durable().result(60)
    with forebay.Checkpoints(root, node=host) as ckpt:
        with pytest.raises(forebay.UnsupportedError, match="allow_pickle") as refused:
            ckpt.load(1)
        assert "bomb" in str(refused.value)
        with pytest.raises(forebay.UnsupportedError, match="allow_pickle"):
            ckpt.load(1, into={"fine": 0, "deep": [{"bomb": None}]})
        assert not marker.exists()
    with forebay.Checkpoints(root, node=host, allow_pickle=True) as ckpt:
        ckpt.load(1)
    assert marker.exists(), "else this shows nothing"


def test_a_failed_save_raises_if_asked(ckpt):
    ckpt.save(1, small(1)).durable().result(60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(forebay.AlreadyExistsError):
            ckpt.save(1, small(2))


def test_a_step_is_superseded_on_purpose(ckpt):
    ckpt.save(1, small(1)).durable().result(60)
    assert ckpt.save(1, small(2), supersede=True).durable().result(60).generation == 2
    assert ckpt.steps() == [1]
    equal(ckpt.load(1), small(2))


def test_an_aborted_save_is_never_seen(ckpt):
    handle = ckpt.save(1, small(1))
    handle.abort()
    error = handle.durable().exception(60)
    assert (error is None) == (ckpt.steps() == [1]), "given up, or committed before that"


def test_saves_are_seen_while_they_are_on_their_way(ckpt):
    handle = ckpt.save(5, small(5))
    (found,) = ckpt.saves()
    assert found["id"] == handle.id and found["step"] == 5 and found["phase"] in ("staged", "durable")
    handle.durable().result(60)


def test_some_entries_are_loaded_by_name(ckpt):
    ckpt.save(1, small(1)).durable().result(60)
    found = ckpt.load(1, names=lambda name: name.startswith("model.layers.1"))
    assert list(found) == ["model"] and list(found["model"]) == ["layers"]


def test_boxes_of_tensors_are_loaded_whatever_they_were_saved_in(ckpt):
    whole = numpy.arange(6 * 5 * 4.0).reshape(6, 5, 4)
    parts = [whole[:2], whole[2:]]
    state = {"w": whole}
    ckpt.save(1, state).durable().result(60)
    into = {"w": forebay.Shard(numpy.zeros((2, 3, 2)), offset=(3, 1, 2), shape=whole.shape)}
    ckpt.load(1, into=into)
    assert numpy.array_equal(into["w"].local, whole[3:5, 1:4, 2:4])
    assert parts[0].shape == (2, 5, 4)
    with pytest.raises(forebay.InvalidInputError, match="no box"):
        forebay.Shard(numpy.zeros((2, 3)), offset=(5, 0), shape=(6, 3))


def test_a_step_opens_as_safetensors(ckpt, host, root):
    state = small(3)
    ckpt.save(7, state, metadata={"loss": 1.5, "who": "me"}).durable().result(60)
    tensors = load_file(f"{root}/steps/7", framework="np", node=host)
    assert numpy.array_equal(tensors["model.layers.1.w"], state["model"]["layers"][1]["w"])
    assert not tensors["model.embed"].flags.writeable
    before = host.stats()
    again = load_file(f"{root}/steps/7", framework="np", node=host)
    after = host.stats()
    tensor_bytes = sum(tensor.nbytes for tensor in again.values())
    assert after.bytes_mapped - before.bytes_mapped >= tensor_bytes and after.bytes_lake == before.bytes_lake
    with safe_open(f"{root}/steps/7", "np", node=host) as step:
        assert step.metadata() == {"loss": "1.5", "who": "me"}
        assert numpy.array_equal(step.get_slice("model.embed")[3:9, ::2], state["model"]["embed"][3:9, ::2])


def test_a_remote_node_loads_and_says_that_it_cannot_save(shared_daemon):
    with forebay.connect(str(socket_of(shared_daemon))) as near, forebay.connect(shared_daemon.s3_url) as far:
        near.create_bucket("far-away")
        forebay.Checkpoints("far-away/run", node=near, on_error="raise").save(1, small(1)).durable().result(60)
        ckpt = forebay.Checkpoints("far-away/run", node=far, on_error="raise")
        equal(ckpt.load(), small(1))
        with pytest.raises(forebay.UnsupportedError):
            ckpt.save(2, small(2))


def test_a_step_that_is_not_there_is_named(ckpt, root):
    assert ckpt.latest() is None and ckpt.steps() == []
    with pytest.raises(forebay.NotFoundError, match=r"no committed step"):
        ckpt.load()
    ckpt.save(3, small()).durable().result(60)
    with pytest.raises(forebay.NotFoundError, match="newest_steps: 3"):
        ckpt.load(4)


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "ignore"},
        {"staged": "tape"},
        {"digest": "md5"},
        {"alarms": "loud"},
        {"differential": "always"},
        {"keep_last": 0},
        {"rank": 0},
        {"rank": 2, "world_size": 2},
    ],
    ids=lambda options: "-".join(options),
)
def test_options_that_make_no_sense_are_refused(shared_embedded, options):
    shared_embedded.create_bucket("options")
    with pytest.raises(forebay.InvalidInputError):
        _ = forebay.Checkpoints("options/run", node=shared_embedded, **options).rank


def test_an_embedded_node_ends_after_what_it_has_staged(tmp_path):
    lake = f"file://{tmp_path}"
    with forebay.open(lake) as node:
        node.create_bucket("lake")
        forebay.Checkpoints("lake/run", node=node, on_error="raise").save(1, small(1))
    with forebay.open(lake) as node:
        equal(forebay.Checkpoints("lake/run", node=node).load(1), small(1))


def test_a_resumed_run_is_compared_with_the_figures_of_its_step(host, root):
    state = {"w": numpy.ones(10)}
    figures = {"loss": 2.5, "grad_norm": numpy.float32(0.5), "scale": float("inf")}
    with forebay.Checkpoints(root, node=host, on_error="raise") as ckpt:
        ckpt.save(1, state, reference=figures, metadata={"note": "x"}).durable().result(60)
        assert ckpt.reference(1) == {"loss": 2.5, "grad_norm": 0.5, "scale": "inf"}
        assert ckpt.metadata(1) == {"note": "x"}
        assert ckpt.check(1, loss=2.7, grad_norm=0.1, scale=float("inf")) == {}
        for name, wrong, why in [
            ("loss", float("nan"), "loss was 2.5 and is nan, which is no number"),
            ("grad_norm", 0.0, "grad_norm was 0.5 and is 0"),
            ("loss", 80.0, "loss was 2.5 and is 80, 32 times as much"),
        ]:
            with pytest.raises(forebay.ChangedError, match=why):
                ckpt.check(1, **{name: wrong})
        with pytest.raises(forebay.InvalidInputError, match="saved with: grad_norm, loss, scale"):
            ckpt.check(1, perplexity=3.0)
        with pytest.raises(forebay.InvalidInputError, match="no number"):
            ckpt.save(2, state, reference={"loss": "low"})
    with forebay.Checkpoints(root, node=host) as ckpt, pytest.warns(forebay.CheckpointWarning, match="32 times"):
        assert list(ckpt.check(1, loss=80.0)) == ["loss"]


def test_a_step_knows_the_data_that_it_was_trained_on(host, root):
    bucket = root.removeprefix("forebay://").partition("/")[0]
    for number in range(6):
        host.put(f"{bucket}/data/{number}.txt", b"%d" % number)
    ds = forebay.Dataset(f"{bucket}/data/", {"data": str}, host)
    with ds.loader(batch_size=2) as loader, forebay.Checkpoints(root, node=host, on_error="raise") as ckpt:
        next(iter(loader))
        ckpt.save(1, {"w": numpy.ones(3)}, loaders=loader).durable().result(60)
        ((data,), state) = (ckpt.lineage(1)[0]["datasets"], ckpt.lineage(1)[0]["state"])
        assert data["samples"] == 6 and data["names"] == [f"{bucket}/data/"]
        assert state == loader.state_dict() and state["position"] == 2
        host.put(f"{bucket}/data/0.txt", b"other")
        assert forebay.Dataset(f"{bucket}/data/", {"data": str}, host)._native.fingerprint != data["fingerprint"]
