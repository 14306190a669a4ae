"""torch_checkpointing (meta-pytorch) on our storage: a rename is one commit, bytes are proved, what is there is not replaced."""

import json
import uuid
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy
torch = pytest.importorskip("torch", reason="torch has an environment of its own: requirements/torch.txt")
forebay = pytest.importorskip("forebay", reason="the wheel is installed by `cargo xtask test --all`")
tc = pytest.importorskip("torch_checkpointing", reason="it is in requirements/torch.txt")

from forebay.torch_checkpointing import ForebayStorageConfig  # noqa: E402
from forebay_node import Node  # noqa: E402


@pytest.fixture(scope="module")
def tc_node(tmp_path_factory):
    root = tmp_path_factory.mktemp("daemon")
    with Node(root, ram="128MiB", nvme="0", args=["--socket", str(root / "n.sock")]) as process:
        with forebay.connect(str(root / "n.sock")) as node:
            node.create_bucket("lake")
        yield process


@pytest.fixture
def config(tc_node):
    return ForebayStorageConfig(f"forebay://lake/{uuid.uuid4().hex[:10]}", str(tc_node.root / "n.sock"))


def manager(config):
    items = {"model": tc.ItemSpec(), "extra": tc.ItemSpec()}
    options = tc.CheckpointManager.Config(items=items, save=tc.SyncCheckpointSaverConfig(), storage_config=config)
    return tc.CheckpointManager(options)


def state(seed):
    return {"model": {"w": torch.full((1000, 700), float(seed)), "b": torch.arange(5)}, "extra": {"step": seed}}


def test_saves_and_loads(config):
    manager(config).save("step-1", state(1))
    into = state(0)
    manager(config).load("step-1", into=into)
    assert torch.equal(into["model"]["w"], state(1)["model"]["w"])


def test_a_second_save_of_an_id_is_refused_and_the_first_stays(config):
    manager(config).save("step-1", state(1))
    with pytest.raises(Exception, match="already"):
        manager(config).save("step-1", state(2))
    into = state(0)
    manager(config).load("step-1", into=into)
    assert torch.equal(into["model"]["w"], state(1)["model"]["w"])


def test_a_folder_is_one_commit(config, tc_node):
    manager(config).save("step-1", state(1))
    storage = config.create_storage()
    [commit] = (tc_node.lake_dir / config.root.removeprefix("forebay://")).rglob("folder.json")
    assert sorted({name.split("/")[0] for name in json.loads(commit.read_text())["files"]}) == storage.ls(Path("step-1"))
    assert storage.isdir(Path("step-1")) and not storage.exists(Path("tmp_step-1"))
    # Without it nothing is there, whatever else lies in the lake.
    storage.folders.node.delete(f"{config.root}/step-1/.forebay/folder.json")
    assert not config.create_storage().exists(Path("step-1"))


def test_a_flipped_bit_is_an_error(config, tc_node):
    manager(config).save("step-1", state(1))
    folder = tc_node.lake_dir / config.root.removeprefix("forebay://")
    path = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    tc_node.restart()
    with pytest.raises(Exception, match=path.name):
        manager(config).load("step-1", into=state(0))


def test_renames_keep_to_the_table(config):
    storage = config.create_storage()
    storage.write(Path("tmp/a/x"), b"one")
    storage.write(Path("there/y"), b"two")
    with pytest.raises(OSError):
        storage.rename(Path("tmp"), Path("there"), is_directory=True)
    with pytest.raises(OSError):
        storage.rename(Path("tmp"), Path("there/y"), is_directory=True)
    storage.rename(Path("tmp"), Path("new"), is_directory=True)
    assert storage.read(Path("new/a/x")) == b"one" and storage.ls(Path("new")) == ["a"] and storage.ls(Path("new/a")) == ["x"]
    storage.write(Path("z"), b"three")
    with pytest.raises(OSError):
        storage.rename(Path("z"), Path("there"))
    storage.rename(Path("z"), Path("there/y"))
    assert storage.read(Path("there/y")) == b"three" and not storage.exists(Path("z"))
    storage.rmdir(Path("new"))
    assert not storage.exists(Path("new/a/x")) and not storage.exists(Path("new"))
