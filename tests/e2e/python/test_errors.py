"""Errors: every kind has a class, which is also the builtin that people catch."""

import builtins
import errno
import pickle

import pytest

import forebay
from forebay import _native, errors


def test_every_kind_has_a_class():
    assert set(_native.error_kinds()) == set(errors.BY_KIND)


@pytest.mark.parametrize("kind", sorted(errors.BY_KIND))
def test_an_error_of_each_kind_survives_pickling(kind):
    error = errors.from_failure(kind, "message", [("bucket", "b"), ("key", "k")])
    assert (type(error), error.kind, error.object) == (errors.BY_KIND[kind], kind, "b/k")
    assert str(error) == "message (bucket: b, key: k)"
    assert error.advice
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.context) == (type(error), str(error), error.context)


def test_errors_are_the_builtins_that_people_catch():
    expected = {
        "not_found": FileNotFoundError,
        "already_exists": FileExistsError,
        "denied": PermissionError,
        "timeout": TimeoutError,
        "unavailable": ConnectionError,
        "invalid_input": ValueError,
        "unsupported": NotImplementedError,
        "no_space": OSError,
        "io": OSError,
    }
    for kind, builtin in expected.items():
        assert issubclass(errors.BY_KIND[kind], builtin), kind
    assert errors.from_failure("no_space", "full").errno == errno.ENOSPC
    assert errors.from_failure("not_found", "none").errno == errno.ENOENT


def test_an_unknown_kind_is_internal():
    assert type(errors.from_failure("what", "x")) is forebay.InternalError


def test_no_class_hides_a_builtin():
    assert not {name for name in forebay.__all__ if hasattr(builtins, name)} - {"open"}


def test_what_cannot_be_asked_for_is_said_plainly(shared_embedded):
    node = shared_embedded
    wrong = {
        "a length is": lambda: node.get("demo/a", 0, -1),
        "length is 0 or more": lambda: node.read("demo/a", 0, -1),
        "size of a buffer": lambda: node.alloc(-1),
        "an item is": lambda: node.get_batch([("demo/a", 0)]),
        r"\(name, offset, length\)": lambda: node.get_batch([("demo/a", 0, -1)]),
        "counted from 0": lambda: forebay.Checkpoints("forebay://demo/run", node=node).save(-1, {}),
        "bucket/key or forebay://bucket/key": lambda: node.get("s3://demo/a"),
        "socket path, http://host:port or https://host:port": lambda: forebay.connect("ftp://node"),
    }
    for message, call in wrong.items():
        with pytest.raises(forebay.InvalidInputError, match=message):
            call()


def test_a_missing_node_says_where_it_looked_and_what_to_do(tmp_path):
    with pytest.raises(ConnectionError) as refused:
        forebay.connect(str(tmp_path / "none.sock"))
    assert str(tmp_path / "none.sock") in str(refused.value)
    assert "forebay serve" in refused.value.advice
    assert refused.value.retryable


def test_a_missing_object_is_named(node, bucket):
    with pytest.raises(FileNotFoundError) as missing:
        node.get(f"{bucket}/none")
    assert missing.value.object == missing.value.filename == f"{bucket}/none"
    assert missing.value.kind == "not_found"


@pytest.mark.parametrize("name", ["", "bucket", "UPPER/key", "/key", "s3://a/b"])
def test_a_wrong_name_is_a_value_error(node, name):
    with pytest.raises(ValueError):
        node.get(name)


@pytest.mark.parametrize("item", [1, None, ("a",), ("a/b", 1), ("a/b", 1, 2, 3), ["a/b", 0, 1]])
def test_a_wrong_item_is_refused(node, item):
    with pytest.raises((ValueError, TypeError)):
        node.get_batch([item])


def test_wrong_sizes_and_lakes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="ram"):
        forebay.open("memory://", ram="much")
    with pytest.raises(forebay.ForebayError):
        forebay.open("gopher://lake")


def test_a_closed_node_says_so(tmp_path):
    node = forebay.open("memory://", ram="64MiB")
    node.close()
    node.close()
    with pytest.raises(forebay.UnavailableError, match="closed"):
        node.buckets()
