"""PyTorch's DCP over Forebay, by the oldest and the newest torch: ranks of every number, every mode, damage and death."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy
pytest.importorskip("torch", reason="torch has an environment of its own: requirements/torch.txt")
forebay = pytest.importorskip("forebay", reason="the wheel is installed by `cargo xtask test --all`")

from forebay_node import Node, wait_for  # noqa: E402

RANKS = Path(__file__).parent / "dcp_ranks.py"
PYTHONS = {"newest": sys.executable, "oldest": os.environ.get("FOREBAY_TEST_TORCH_OLDEST")}


class Job:
    """Ranks of one version of torch; see dcp_ranks.py."""

    def __init__(self, python: str, root: Path):
        self.log = open(root / "ranks.log", "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            [python, str(RANKS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=root
        )
        self.torch = json.loads(self.process.stdout.readline())["torch"]

    def ask(self, world: int, node: Node, call: str, **arguments):
        """What each rank said, or how it failed."""
        job = {"world": world, "node": str(node.root / "n.sock"), "call": call, "arguments": arguments}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def run(self, world: int, node: Node, call: str, **arguments):
        """What each rank said; none may fail."""
        found = self.ask(world, node, call, **arguments)
        failed = [one.get("trace", one["failed"]) for one in found if "failed" in one]
        assert not failed, "\n".join(failed)
        return [one["said"] for one in found]

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.log.close()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    found = {}

    def job(version: str) -> Job:
        if PYTHONS[version] is None:
            pytest.skip("FOREBAY_TEST_TORCH_OLDEST names no interpreter: run `cargo xtask test --all`")
        if version not in found:
            found[version] = Job(PYTHONS[version], tmp_path_factory.mktemp(version))
        return found[version]

    yield job
    for one in found.values():
        one.close()


@pytest.fixture(params=["newest", "oldest"])
def job(request, jobs):
    return jobs(request.param)


@pytest.fixture
def newest(jobs):
    return jobs("newest")


@pytest.fixture(scope="module")
def dcp_node(tmp_path_factory):
    root = tmp_path_factory.mktemp("daemon")
    with Node(root, ram="256MiB", args=["--socket", str(root / "n.sock")]) as process:
        with forebay.connect(str(root / "n.sock")) as node:
            node.create_bucket("lake")
        yield process


@pytest.fixture
def run():
    """The root of a run of its own."""
    return f"forebay://lake/{uuid.uuid4().hex[:10]}"


def steps(node: Node, root: str) -> list[tuple[int, int]]:
    with forebay.connect(str(node.root / "n.sock")) as connected:
        return forebay._native.CheckpointRoot(connected._client, root).steps()


def files(node: Node, root: str, ending: str) -> list[Path]:
    return sorted((node.lake_dir / root.removeprefix("forebay://")).rglob(f"*{ending}"))


# --- ranks and versions ---


@pytest.mark.parametrize("mode", ["sync", "thread"])
def test_four_ranks_save_and_one_two_and_eight_load(job, dcp_node, run, mode):
    call = "save" if mode == "sync" else "save_async"
    job.run(4, dcp_node, call, id=f"{run}/step-3", seed=3)
    assert steps(dcp_node, run) == [(3, 1)]
    for world in (1, 2, 8):
        assert job.run(world, dcp_node, "load", id=f"{run}/step-3", seed=3) == [[]] * world


def test_newest_torch_writes_and_oldest_reads(jobs, dcp_node, run):
    jobs("newest").run(2, dcp_node, "save_async", id=f"{run}/5", seed=5)
    assert jobs("oldest").run(3, dcp_node, "load", id=f"{run}/5", seed=5) == [[]] * 3


def test_process_mode_stages_in_the_node_and_nothing_in_shared_memory(newest, dcp_node, run):
    assert newest.run(2, dcp_node, "save_async", id=f"{run}/6", seed=6, mode="process") == [[], []]
    assert newest.run(1, dcp_node, "load", id=f"{run}/6", seed=6) == [[]]


def test_a_stager_of_its_own_gives_references(newest, dcp_node, run):
    assert newest.run(2, dcp_node, "save_async", id=f"{run}/6", seed=6, stager=True) == [[], []]
    assert newest.run(1, dcp_node, "load", id=f"{run}/6", seed=6) == [[]]


def test_every_byte_is_copied_once_by_one_rank(job, dcp_node, run):
    copied = job.run(2, dcp_node, "copies", id=f"{run}/7", seed=7)
    manifest = json.loads(files(dcp_node, run, "manifest-1.json")[0].read_text())
    size = sum(part["range"][1] - part["range"][0] for one in manifest["tensors"].values() for part in one["parts"])
    assert size <= sum(copied) <= size * 1.02 + 4096


def test_an_id_is_enough_after_the_import(job, dcp_node, run):
    job.run(2, dcp_node, "save_by_id", id=f"{run}/step-8", seed=8)
    assert steps(dcp_node, run) == [(8, 1)]
    assert job.run(1, dcp_node, "load_by_id", id=f"{run}/step-8", seed=8) == [[]]


def test_files_that_pytorch_wrote_by_itself_still_load(job, dcp_node, run):
    job.run(2, dcp_node, "save_files", id=f"{run}/step-8", seed=8)
    assert steps(dcp_node, run) == []
    assert job.run(1, dcp_node, "load_by_id", id=f"{run}/step-8", seed=8) == [[]]
    [refused] = job.ask(1, dcp_node, "load_by_id", id=f"{run}/step-8", seed=8, trusted=False)
    assert "FOREBAY_ALLOW_PICKLE=1" in refused["failed"]


def test_a_hostile_step_runs_no_code_unless_pickles_are_allowed(job, dcp_node, run, tmp_path):
    marker = tmp_path / "it-ran"
    job.run(1, dcp_node, "save_hostile", id=f"{run}/step-9", marker=str(marker))
    [said] = job.run(1, dcp_node, "load_hostile", id=f"{run}/step-9", root=run, step=9, allow_pickle=False)
    assert sorted(said) == ["checkpoints", "id", "load", "reader"]
    assert all("is a pickle, which can run any code" in one for one in said.values()), said
    assert not marker.exists()
    job.run(1, dcp_node, "load_hostile", id=f"{run}/step-9", root=run, step=9, allow_pickle=True)
    assert marker.exists(), "else this shows nothing"


def test_examples_run(newest, dcp_node):
    [[examples, failed]] = newest.run(1, dcp_node, "examples")
    assert examples > 3 and failed == 0


def test_fsdp2_goes_on_after_a_change_of_the_world_size(newest, dcp_node, run):
    straight = newest.run(1, dcp_node, "train", id=f"{run}/1", steps=3, save=True)
    saved = newest.run(4, dcp_node, "train", id=f"{run}/2", steps=3, save=True)
    resumed = newest.run(2, dcp_node, "train", id=f"{run}/2", steps=0, save=False)
    assert [*saved, *resumed] == pytest.approx([*straight] * 6, rel=1e-3)


def test_plans_that_a_planner_keeps_do_not_make_old_steps_anew(newest, dcp_node, run):
    newest.run(2, dcp_node, "save_cached", root=run, seeds=[1, 2, 3])
    assert [step for step, _ in steps(dcp_node, run)] == [0, 1, 2]
    for step, seed in enumerate([1, 2, 3]):
        assert newest.run(1, dcp_node, "load", id=f"{run}/step-{step}", seed=seed) == [[]]


def test_a_load_reads_just_what_it_needs(job, dcp_node, run):
    job.run(1, dcp_node, "save", id=f"{run}/1", seed=1)
    for read, wanted, wrong in job.run(2, dcp_node, "load_only", id=f"{run}/1", seed=1, name="rows"):
        assert wanted == 10 * 6 * 4 // 2 and read <= 65536 and not wrong


def test_a_step_loads_without_a_state_to_begin_with(newest, dcp_node, run):
    newest.run(2, dcp_node, "save", id=f"{run}/1", seed=1)
    assert newest.run(1, dcp_node, "load_keys", id=f"{run}/1") == [[]]


# --- together with our own class ---


def test_what_dcp_saved_our_own_class_loads(job, dcp_node, run):
    job.run(2, dcp_node, "save", id=f"{run}/step-4", seed=4)
    assert job.run(1, dcp_node, "load_by_checkpoints", root=run, step=4, seed=4) == [[]]


def test_what_our_own_class_saved_dcp_loads(job, dcp_node, run):
    job.run(2, dcp_node, "save_by_checkpoints", root=run, step=4, seed=4)
    assert job.run(3, dcp_node, "load", id=f"{run}/step-4", seed=4) == [[]] * 3


def test_pytorchs_own_reader_of_safetensors_reads_a_step_as_it_lies_in_the_lake(newest, dcp_node, run):
    newest.run(4, dcp_node, "save", id=f"{run}/4", seed=4)
    [folder] = {path.parent for path in files(dcp_node, run, ".safetensors")}
    assert newest.run(2, dcp_node, "load_by_hugging_face", folder=str(folder), seed=4) == [[]] * 2


@pytest.mark.parametrize("layout", ["fsdp", "tp", "fsdp+tp"])
def test_a_fresh_optimizer_gets_its_dtensors_on_other_numbers_of_ranks(newest, dcp_node, run, layout):
    [[straight, _], *_] = newest.run(4, dcp_node, "go_on", root=run, layout=layout, steps=3, save=1)
    for world in (2, 4):
        for losses, kinds in newest.run(world, dcp_node, "go_on", root=run, layout=layout, load=1):
            assert losses == pytest.approx(straight, rel=1e-6)
            assert kinds == ["DTensor"]


# --- nothing is pickled ---


def test_what_describes_a_step_is_json(newest, dcp_node, run):
    newest.run(2, dcp_node, "save", id=f"{run}/1", seed=1)
    manifest = json.loads(files(dcp_node, run, "manifest-1.json")[0].read_text())
    assert manifest["tree"][0] == "d"
    kinds = {name: [one["kind"] for one in found] for name, found in manifest["objects"].items()}
    assert kinds.pop("unusual.set") == ["pickle"]  # of the user's own, and nothing that JSON has
    assert set(map(tuple, kinds.values())) == {("json",)}


@pytest.mark.parametrize("way", ["load", "reader", "id", "own class"])
@pytest.mark.parametrize("own", [False, True])
def test_a_hostile_step_runs_no_code_and_is_refused_by_name(newest, dcp_node, run, tmp_path, own, way):
    ran = tmp_path / "ran"
    newest.run(1, dcp_node, "save_bomb", id=f"{run}/step-1", path=str(ran), own=own)
    [said] = newest.run(1, dcp_node, "load_bomb", id=f"{run}/step-1", way=way)
    assert "pickle" in said and "bomb" in said and not ran.exists()


# --- commits ---


def test_an_id_that_is_written_again_keeps_the_old_until_the_commit(job, dcp_node, run):
    job.run(2, dcp_node, "save", id=f"{run}/1", seed=1)
    said = job.run(2, dcp_node, "save_failing", id=f"{run}/1", seed=2, failing_rank=1)
    assert all("no memory for this tensor" in one for one in said)
    assert steps(dcp_node, run) == [(1, 1)]
    assert job.run(1, dcp_node, "load", id=f"{run}/1", seed=1) == [[]]
    job.run(2, dcp_node, "save", id=f"{run}/1", seed=2)
    assert steps(dcp_node, run) == [(1, 2)]
    assert job.run(1, dcp_node, "load", id=f"{run}/1", seed=2) == [[]]


@pytest.mark.parametrize("failing", [0, 2])
def test_a_rank_that_fails_means_that_nothing_is_visible(job, dcp_node, run, failing):
    said = job.run(3, dcp_node, "save_failing", id=f"{run}/1", seed=1, failing_rank=failing)
    assert all("no memory for this tensor" in one for one in said)
    assert steps(dcp_node, run) == []


def test_a_rank_that_cannot_stage_is_named_to_all(newest, dcp_node, run):
    said = newest.run(3, dcp_node, "stage_failing", id=f"{run}/1", seed=1, failing_rank=1)
    assert all("model.odd" in one for one in said)
    assert all("rank 1" in said[rank] for rank in (0, 2))
    assert steps(dcp_node, run) == []


def test_ranks_killed_after_staging_lose_nothing(job, dcp_node, run):
    found = job.ask(2, dcp_node, "stage_and_die", id=f"{run}/1", seed=1)
    assert [one["failed"] for one in found] == ["died", "died"]
    wait_for("the commit", lambda: steps(dcp_node, run) == [(1, 1)], 60)
    assert job.run(3, dcp_node, "load", id=f"{run}/1", seed=1) == [[]] * 3


# --- damage ---


def zero_hole(data: bytearray, at: int):
    data[at : at + 64] = bytes(64)


def bit_flip(data: bytearray, at: int):
    data[at + 3] ^= 0x10


def truncation(data: bytearray, at: int):
    del data[at + 2 :]


@pytest.mark.parametrize("damage", [zero_hole, bit_flip, truncation])
def test_damage_is_an_error_that_names_tensor_and_file(newest, own_node, run, damage):
    node = own_node(ram="64MiB", nvme="0", args=["--socket", "n.sock"])
    node.args[-1] = str(node.root / "n.sock")
    node.start()
    with forebay.connect(str(node.root / "n.sock")) as connected:
        connected.create_bucket("lake")
    newest.run(2, node, "save", id=f"{run}/1", seed=1)
    manifest = json.loads(files(node, run, "manifest-1.json")[0].read_text())
    part = max(manifest["tensors"]["model.large"]["parts"], key=lambda part: part["range"][1])
    name = manifest["files"][part["file"]]["path"]
    path = node.lake_dir / run.removeprefix("forebay://") / name
    data = bytearray(path.read_bytes())
    damage(data, (part["range"][0] + part["range"][1]) // 2)
    path.write_bytes(data)
    node.kill()
    node.start()  # with nothing of it in memory
    found = newest.ask(2, node, "load", id=f"{run}/1", seed=1)
    # A file that was cut off is named with the first tensor of the read that found it.
    tensor = "tensor: model." if damage is truncation else "tensor: model.large"
    assert all(tensor in one["failed"] and Path(name).name in one["failed"] for one in found), found
    if damage is not truncation:
        # Damage outside of what is needed does no harm.
        only = newest.run(2, node, "load_only", id=f"{run}/1", seed=1, name="rows")
        assert [wrong for _, _, wrong in only] == [[], []]
