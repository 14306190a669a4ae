"""Folders that appear by one commit, as `forebay.torch_checkpointing` uses them."""

import pytest

import forebay
from forebay._folders import BLOCK_BYTES, FileReader, Folders


@pytest.fixture
def folders():
    with forebay.open("memory://") as node:
        node.create_bucket("lake")
        yield Folders(node, "forebay://lake/run")


def write(folders, path, data):
    with folders.create(path) as file:
        file.write(data)


def read(folders, path):
    with FileReader(folders, path) as file:
        return file.read()


def test_a_folder_is_seen_whole_after_its_rename(folders):
    data = bytes(range(256)) * 10_000
    write(folders, "tmp/a/large", data)
    write(folders, "tmp/empty", b"")
    folders.rename_folder("tmp", "step-1")
    assert folders.names("step-1") == ["a", "empty"] and folders.names("step-1/a") == ["large"]
    assert read(folders, "step-1/a/large") == data and read(folders, "step-1/empty") == b""
    assert folders.names("") == ["step-1"]
    with FileReader(folders, "step-1/a/large") as file:
        file.seek(BLOCK_BYTES - 3)
        assert file.read(7) == data[BLOCK_BYTES - 3 : BLOCK_BYTES + 4]
        file.seek(-5, 2)
        assert file.read() == data[-5:]


def test_what_is_there_is_not_replaced_by_a_folder(folders):
    write(folders, "tmp/x", b"new")
    write(folders, "old/y", b"old")
    write(folders, "first/z", b"first")
    folders.rename_folder("first", "step-1")
    for target in ("old", "old/y", "step-1", "step-1/z"):
        with pytest.raises(FileExistsError):
            folders.rename_folder("tmp", target)
    assert read(folders, "old/y") == b"old" and read(folders, "step-1/z") == b"first" and read(folders, "tmp/x") == b"new"


def test_two_that_commit_one_folder_do_not_mix(folders):
    write(folders, "tmp/x", b"mine")
    other = Folders(folders.node, folders.root)
    write(other, "theirs/x", b"theirs")
    other.rename_folder("theirs", "step-1")
    with pytest.raises(FileExistsError):
        folders.rename_folder("tmp", "step-1")
    assert read(folders, "step-1/x") == b"theirs"


def test_saving_again_after_a_removal_does_not_touch_old_bytes(folders):
    write(folders, "tmp/x", b"one")
    folders.rename_folder("tmp", "step-1")
    write(folders, "tmp/x", b"two")  # the same temporary name again
    assert read(folders, "step-1/x") == b"one"
    folders.remove_folder("step-1")
    folders.rename_folder("tmp", "step-1")
    assert read(folders, "step-1/x") == b"two"


def test_a_file_that_was_given_up_is_not_there(folders):
    with pytest.raises(RuntimeError), folders.create("tmp/x") as file:
        file.write(b"half")
        raise RuntimeError
    assert not folders.is_file("tmp/x") and not folders.is_folder("tmp")


def test_changed_bytes_are_an_error_that_names_the_file(folders):
    write(folders, "tmp/x", b"a" * 3000)
    folders.rename_folder("tmp", "step-1")
    entry = folders.find("step-1/x")
    folders.node.put(f"{folders.root}/{entry.data}", b"a" * 2999 + b"b")
    with pytest.raises(forebay.ChecksumError, match="step-1/x"):
        read(folders, "step-1/x")
    folders.node.put(f"{folders.root}/{entry.data}", b"a" * 2999)
    with pytest.raises(forebay.ChecksumError, match="step-1/x"):
        read(folders, "step-1/x")


def test_a_commit_that_was_changed_is_refused(folders):
    write(folders, "tmp/x", b"abc")
    folders.rename_folder("tmp", "step-1")
    name = f"{folders.root}/step-1/.forebay/folder.json"
    good = folders.node.read(name)
    for bad in (b"", b"{}", good.replace(b'"bytes": 3', b'"bytes": 4'), good.replace(b'"version": 1', b'"version": 9')):
        folders.node.put(name, bad)
        with pytest.raises((forebay.CorruptError, forebay.ChecksumError, forebay.UnsupportedError)):
            Folders(folders.node, folders.root).find("step-1/x")
