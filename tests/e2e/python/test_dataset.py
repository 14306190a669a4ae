"""Datasets by number: opening, the index, fields and their decoders, labels, on every kind of node."""

import io
import pickle

import numpy as np
import pytest

import forebay
from conftest import threads
from dataset_shards import image_bytes, put_tars, tar_shard


def test_samples_by_number_are_what_was_written(node, bucket):
    name = put_tars(node, f"{bucket}/d")
    ds = forebay.Dataset(name, fields={"bin": "bytes", "cls": int}, node=node)
    assert len(ds) == 200
    assert ds.fields == ["bin", "cls"]
    for number in (0, 49, 50, 199, -1):
        sample = ds[number]
        assert bytes(sample["bin"]) == image_bytes(number % 200)
        assert sample["cls"] == number % 200
    with pytest.raises(IndexError):
        ds[200]
    assert [sample["cls"] for sample in ds] == list(range(200))


def test_without_fields_a_sample_has_its_key_and_all_that_it_has(node, bucket):
    name = put_tars(node, f"{bucket}/d", shards=1, samples=4, extra=lambda number: {"txt": b"t"} if number == 2 else {})
    ds = forebay.Dataset(name, node=node)
    assert sorted(ds[2]) == ["__key__", "bin", "cls", "txt"]
    assert sorted(ds[1]) == ["__key__", "bin", "cls"]
    assert ds[2]["__key__"] == "000002"
    assert ds.find("000003") == 3


def test_an_index_is_built_once_and_then_found(node, bucket):
    name = put_tars(node, f"{bucket}/d")
    seen = []
    first = forebay.Dataset(name, node=node, progress=lambda *done: seen.append(done))
    assert len(first) == 200
    assert first.index_origin == "built"
    assert max(done[0] for done in seen) == seen[0][1] > 200_000
    assert max(done[2] for done in seen) == 4
    again = forebay.Dataset(name, node=node, index="never")
    assert len(again) == 200
    assert again.index_origin == "stored"
    assert again.index(rebuild="always").index_origin == "built"


def test_an_index_that_may_not_be_built_is_asked_for(node, bucket):
    name = put_tars(node, f"{bucket}/d", shards=1, samples=2)
    ds = forebay.Dataset(name, node=node, index="never")
    with pytest.raises(forebay.NotFoundError, match="forebay dataset index"):
        len(ds)


def test_only_the_shard_that_changed_is_indexed_again(node, bucket):
    name = put_tars(node, f"{bucket}/d")
    len(forebay.Dataset(name, node=node))
    node.put(f"{bucket}/d/0002.tar", tar_shard(range(500, 507)))
    seen = []
    ds = forebay.Dataset(name, fields={"cls": int}, node=node, progress=lambda *done: seen.append(done))
    assert len(ds) == 157
    assert {done[3] for done in seen} == {1}
    assert ds[100]["cls"] == 500


def test_missing_shards_are_named(node, bucket):
    put_tars(node, f"{bucket}/d", shards=2, samples=2)
    ds = forebay.Dataset(f"{bucket}/d/{{0000..0030}}.tar", node=node)
    with pytest.raises(FileNotFoundError, match=r"0002\.tar") as caught:
        len(ds)
    assert dict(caught.value.context)["missing"] == "29"


def test_a_field_that_does_not_exist_is_named(node, bucket):
    name = put_tars(node, f"{bucket}/d", shards=1, samples=2)
    with pytest.raises(forebay.InvalidInputError, match="bin cls"):
        len(forebay.Dataset(name, fields={"jpg": "bytes"}, node=node))
    with pytest.raises(forebay.InvalidInputError, match="npy"):
        forebay.Dataset(name, fields={"bin": "pickle"}, node=node)


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def png(shade: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (8, 6), (shade, 0, 0)).save(file, "PNG")
    return file.getvalue()


def test_every_decoder_gives_its_value(shared_embedded):
    node, bucket = shared_embedded, "decoders"
    node.create_bucket(bucket)

    def extra(number):
        return {
            "txt": f"größe {number}".encode(),
            "json": b'{"n": [%d]}' % number,
            "npy": npy(np.arange(6, dtype=np.float32).reshape(2, 3) + number),
            "f": b" %d.5\n" % number,
            "tok": np.arange(number, number + 16, dtype="<u2").tobytes(),
            "png": png(number),
        }

    name = put_tars(node, f"{bucket}/d", shards=1, samples=5, extra=extra)
    fields = {
        "txt": str,
        "json": "json",
        "npy": "npy",
        "f": float,
        "tok": "tokens:uint16",
        "png": "rgb",
        "bin": lambda view: len(view),
        "__key__": str,
        "__shard__": str,
        "__number__": int,
    }
    ds = forebay.Dataset(name, fields=fields, node=node)
    sample = ds[3]
    assert sample["txt"] == "größe 3"
    assert sample["json"] == {"n": [3]}
    assert sample["npy"].tolist() == [[3, 4, 5], [6, 7, 8]]
    assert sample["f"] == 3.5
    assert sample["tok"].tolist() == list(range(3, 19))
    assert sample["png"].shape == (6, 8, 3)
    assert sample["png"][0, 0].tolist() == [3, 0, 0]
    assert sample["bin"] == len(image_bytes(3))
    assert (sample["__key__"], sample["__shard__"], sample["__number__"]) == ("000003", f"{bucket}/d/0000.tar", 3)
    (batch,) = ds.loader(batch_size=5)
    assert batch["tok"].shape == (5, 16)
    assert batch["tok"].dtype == np.uint16
    assert batch["f"].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert batch["bin"] == [len(image_bytes(number)) for number in range(5)]


@pytest.mark.parametrize("how", ["uint16", "tokens:…", "tokens:float32", "tokens:", "pickle"])
def test_names_that_are_no_decoder_are_refused_at_once(how):
    with pytest.raises(forebay.InvalidInputError, match="decoder"):
        forebay.Dataset("lake/d/", fields={"x": how})


def test_the_path_of_a_list_of_labels_is_not_taken_for_the_list():
    with pytest.raises(forebay.InvalidInputError, match="pathlib"):
        forebay.Dataset("lake/d/", labels="labels.csv")


def test_an_array_of_objects_is_refused(shared_embedded):
    node = shared_embedded
    node.create_bucket("objects")
    data = npy(np.array([{"a": 1}], dtype=object))
    name = put_tars(node, "objects/d", shards=1, samples=1, extra=lambda number: {"npy": data})
    with pytest.raises(forebay.CorruptError, match="pickle"):
        forebay.Dataset(name, fields={"npy": "npy"}, node=node)[0]


def test_an_empty_field_is_an_empty_view(node, bucket):
    name = put_tars(node, f"{bucket}/d", shards=1, samples=2, extra=lambda number: {"none": b""})
    sample = forebay.Dataset(name, fields={"none": "bytes"}, node=node)[1]
    assert bytes(sample["none"]) == b""
    assert len(sample["none"]) == 0


def test_raw_files_have_labels_from_their_folder(node, bucket):
    for label in ("cat", "dog"):
        for number in range(3):
            node.put(f"{bucket}/raw/{label}/{number}.jpg", f"{label} {number}".encode())
    ds = forebay.Dataset(f"{bucket}/raw/", fields={"data": str, "label": str}, node=node, labels="folder")
    assert [(sample["data"], sample["label"]) for sample in ds] == [
        (f"{label} {number}", label) for label in ("cat", "dog") for number in range(3)
    ]


def test_labels_are_read_as_the_fields_say(node, bucket):
    for number in range(4):
        node.put(f"{bucket}/raw/{number % 2}/{number}.txt", b"x")

    def dataset(how, **options):
        return forebay.Dataset(f"{bucket}/raw/", fields={"label": how}, node=node, labels="folder", **options)

    with dataset(int).loader(batch_size=4) as loader:
        labels = next(iter(loader))["label"]
    assert labels.dtype == "int64" and labels.tolist() == [0, 0, 1, 1]
    assert dataset(float)[3] == {"label": 1.0}
    assert dataset(lambda text: text * 2)[3] == {"label": "11"}
    with pytest.raises(forebay.InvalidInputError, match="take str, int, float or a function"):
        dataset("json")[0]
    node.put(f"{bucket}/raw/two/4.txt", b"x")
    with pytest.raises(forebay.CorruptError, match="cannot be read as int"):
        dataset(int)[4]
    assert len(dataset(str, filter=[("label", "==", "1")])) == 2
    with pytest.raises(forebay.InvalidInputError, match="column of text with a number"):
        len(dataset(str, filter=[("label", "==", 1)]))


def test_functions_of_map_run_after_the_decoders(node, bucket):
    name = put_tars(node, f"{bucket}/d", shards=1, samples=4)
    ds = forebay.Dataset(name, fields={"cls": int}, node=node)
    twice = ds.map(lambda sample: {"n": 2 * sample["cls"]}).map(lambda sample: {"n": sample["n"] + 1})
    assert twice[3] == {"n": 7}
    assert [batch["n"].tolist() for batch in twice.loader(batch_size=2)] == [[1, 3], [5, 7]]
    assert ds[3] == {"cls": 3}


def test_views_of_a_sample_outlive_the_dataset_and_are_sent(node, bucket):
    name = put_tars(node, f"{bucket}/d", shards=1, samples=4)
    view = forebay.Dataset(name, fields={"bin": "bytes"}, node=node)[2]["bin"]
    sent = pickle.loads(pickle.dumps(view))
    assert bytes(sent) == bytes(view) == image_bytes(2)
    assert sent.offset == view.offset
    assert np.frombuffer(view, dtype=np.uint8).nbytes == len(image_bytes(2))


def test_opening_a_dataset_starts_no_thread(node, bucket):
    name = put_tars(node, f"{bucket}/d", shards=1, samples=4)
    before = threads()
    ds = forebay.Dataset(name, node=node, fields={"cls": int})
    assert ds[1] == {"cls": 1}
    loader = ds.loader(batch_size=2)
    assert threads() == before
    next(iter(loader))
    assert threads() > before
    loader.close()
    assert threads() == before


def test_slices_are_lists_of_samples_and_keys_are_found_by_name(shared_embedded):
    node = shared_embedded
    node.create_bucket("sliced")
    ds = forebay.Dataset(put_tars(node, "sliced/d", shards=2, samples=5), fields={"cls": int}, node=node)
    assert [sample["cls"] for sample in ds[7:100]] == [7, 8, 9]
    assert [sample["cls"] for sample in ds[::-4]] == [9, 5, 1]
    with pytest.raises(TypeError, match="find"):
        ds["000003"]


def test_names_and_fields_that_cannot_be_meant_say_what_to_write(shared_embedded):
    node = shared_embedded
    node.create_bucket("said")
    put_tars(node, "said/d", shards=1)
    for name, kind, says in [
        ("s3://said/d/", forebay.InvalidInputError, "forebay://bucket/dir/"),
        ("said/d", forebay.NotFoundError, "ends with a /"),
        ("said/d/*.tar", forebay.NotFoundError, "no wildcards"),
    ]:
        with pytest.raises(kind, match=says):
            len(forebay.Dataset(name, node=node))
    with pytest.raises(forebay.InvalidInputError, match="list of names"):
        forebay.Dataset("said/d/", fields="cls", node=node)
    with pytest.raises(forebay.InvalidInputError, match="at least one dataset"):
        forebay.mix([]).loader()
