"""TensorFlow: `ds.tf()` in tf.data, and TFRecord files in both directions, plain and compressed."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy
tf = pytest.importorskip("tensorflow", reason="an environment of its own: requirements/tensorflow.txt")
forebay = pytest.importorskip("forebay", reason="the wheel is installed by `cargo xtask test --all`")

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

import numpy as np  # noqa: E402
from dataset_shards import image_bytes, put_tars  # noqa: E402
from forebay_node import binary  # noqa: E402

SAMPLES = 60


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """A node inside this process on a folder, and a bucket that is a folder in it."""
    root = tmp_path_factory.mktemp("lake")
    with forebay.open(f"file://{root}", ram="256MiB") as node:
        node.create_bucket("lake")
        yield node, root / "lake"


@pytest.fixture(scope="module")
def images(lake):
    node, _ = lake
    tars = put_tars(node, "lake/tars", shards=4, samples=25)
    return forebay.Dataset(tars, fields={"bin": "bytes", "cls": int}, node=node)


SAMPLE = {"bin": tf.TensorSpec((), tf.string), "cls": tf.TensorSpec((), tf.int64)}
BATCH = {"bin": tf.TensorSpec((None,), tf.string), "cls": tf.TensorSpec((None,), tf.int64)}


def test_a_tf_dataset_has_the_samples_of_the_loader(images):
    options = {"shuffle": "window", "seed": 3, "tail": "pad"}
    wanted = [int(number) for batch in images.loader(batch_size=32, **options) for number in batch["cls"]]
    found = list(images.tf(SAMPLE, **options).as_numpy_iterator())
    assert [int(sample["cls"]) for sample in found] == wanted
    assert set(wanted) == set(range(100))
    for sample in found:
        assert sample["bin"] == image_bytes(int(sample["cls"]))


def test_a_tf_dataset_has_the_batches_of_the_loader_and_goes_on_with_the_next_epoch(images):
    options = {"batch_size": 10, "shuffle": "global", "seed": 5}
    loader = images.loader(**options)
    data = images.tf(BATCH, **options).prefetch(2)
    assert isinstance(data, tf.data.Dataset)
    epochs = []
    for _ in range(2):
        wanted, found = list(loader), list(data.as_numpy_iterator())
        assert len(wanted) == len(found) == 10
        for ours, theirs in zip(wanted, found, strict=True):
            assert np.array_equal(ours["cls"], theirs["cls"])
            assert [bytes(view) for view in ours["bin"]] == theirs["bin"].tolist()
        epochs.append([int(number) for batch in found for number in batch["cls"]])
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(100))
    assert epochs[0] != epochs[1]


def test_packed_arrays_of_a_batch_are_tensors_of_their_type(lake):
    node, folder = lake
    (folder / "arrays").mkdir()
    tokens = np.arange(4096, dtype=np.uint16)
    np.save(folder / "arrays/t.npy", tokens)
    ds = forebay.Dataset("lake/arrays/t.npy", fields={"tokens": "auto"}, node=node, tokens=(64, 64, None))
    data = ds.tf({"tokens": tf.TensorSpec((8, 64), tf.uint16)}, batch_size=8)
    found = np.concatenate([batch["tokens"] for batch in data.as_numpy_iterator()])
    assert np.array_equal(found.reshape(-1), tokens)


def feature(**of):
    """`bytes_list=[…]` and so on."""
    kinds = {"bytes_list": tf.train.BytesList, "float_list": tf.train.FloatList, "int64_list": tf.train.Int64List}
    return tf.train.Feature(**{name: kinds[name](value=values) for name, values in of.items()})


def example(number: int):
    features = {
        "image": feature(bytes_list=[image_bytes(number)]),
        "label": feature(int64_list=[number, -number, 2**63 - 1 - number, -(2**63) + number]),
        "box": feature(float_list=[number / 8, -1.5, float("inf")]),
        "words": feature(bytes_list=["größe".encode()] * (number % 3)),
        "none": feature(),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def check(ours: dict, number: int) -> None:
    assert ours["image"] == [image_bytes(number)]
    assert ours["label"].dtype == np.int64
    assert ours["label"].tolist() == [number, -number, 2**63 - 1 - number, -(2**63) + number]
    assert ours["box"].dtype == np.float32
    assert ours["box"].tolist() == [number / 8, -1.5, float("inf")]
    assert list(ours["words"]) == ["größe".encode()] * (number % 3)


@pytest.mark.parametrize(("name", "kind"), [("a.tfrecord", ""), ("a.tfrecord.gz", "GZIP"), ("z.tfrecord.gz", "ZLIB")])
def test_what_its_writer_writes_is_read(lake, name, kind):
    node, folder = lake
    (folder / f"written-{kind}").mkdir()
    path = folder / f"written-{kind}" / name
    with tf.io.TFRecordWriter(str(path), options=kind) as writer:
        for number in range(SAMPLES):
            writer.write(example(number).SerializeToString())
    ds = forebay.Dataset(f"lake/written-{kind}/", fields={"record": "example"}, node=node)
    assert len(ds) == SAMPLES
    for number, sample in enumerate(ds):
        check(sample["record"], number)
    for number in (SAMPLES - 1, 17):
        check(ds[number]["record"], number)
    whole = forebay.Dataset(f"lake/written-{kind}/", fields={"record": "bytes"}, node=node)
    theirs = tf.data.TFRecordDataset(str(path), compression_type=kind).as_numpy_iterator()
    for ours, other in zip(whole, theirs, strict=True):
        assert bytes(ours["record"]) == other


def test_sequence_examples_are_read(lake):
    node, folder = lake
    (folder / "sequences").mkdir()
    with tf.io.TFRecordWriter(str(folder / "sequences/a.tfrecord")) as writer:
        for number in range(10):
            frames = [feature(float_list=[step + number, 0.5]) for step in range(number)]
            lists = tf.train.FeatureLists(feature_list={"frames": tf.train.FeatureList(feature=frames)})
            context = tf.train.Features(feature={"id": feature(int64_list=[number])})
            one = tf.train.SequenceExample(context=context, feature_lists=lists)
            writer.write(one.SerializeToString())
    ds = forebay.Dataset("lake/sequences/", fields={"record": "sequence_example"}, node=node)
    assert len(ds) == 10
    for number, sample in enumerate(ds):
        context, lists = sample["record"]["context"], sample["record"]["feature_lists"]
        assert context["id"].tolist() == [number]
        assert [step.tolist() for step in lists["frames"]] == [[step + number, 0.5] for step in range(number)]


def pack(source, target, *options) -> list[str]:
    """Packs as TFRecord, and returns the shards."""
    command = [binary(), "dataset", "pack", str(source), str(target), "--format", "tfrecord", *options]
    ran = subprocess.run(command, capture_output=True, timeout=120)
    assert ran.returncode == 0, ran.stderr.decode()
    return sorted(map(str, target.glob("*.tfrecord*")))


@pytest.mark.parametrize("options", [[], ["--compress", "gzip"]])
def test_it_reads_what_pack_writes(lake, options):
    node, folder = lake
    kind = "GZIP" if options else ""
    put_tars(node, f"lake/source-{kind}", shards=2, samples=SAMPLES // 2)
    shards = pack(folder / f"source-{kind}", folder / f"packed-{kind}", "--shard-size", "64KiB", *options)
    assert len(shards) > 1
    wanted = {name: tf.io.FixedLenFeature((), tf.string) for name in ("__key__", "bin", "cls")}
    records = tf.data.TFRecordDataset(shards, compression_type=kind)
    data = records.map(lambda record: tf.io.parse_single_example(record, wanted))
    found = list(data.as_numpy_iterator())
    assert len(found) == SAMPLES
    for number, sample in enumerate(found):
        assert sample == {"__key__": b"%06d" % number, "bin": image_bytes(number), "cls": b"%d" % number}


def test_it_reads_records_that_pack_took_over_from_a_compressed_file(lake):
    node, folder = lake
    (folder / "gz").mkdir()
    with tf.io.TFRecordWriter(str(folder / "gz/a.tfrecord.gz"), options="GZIP") as writer:
        for number in range(SAMPLES):
            writer.write(example(number).SerializeToString())
    found = tf.data.TFRecordDataset(pack(folder / "gz", folder / "plain")).as_numpy_iterator()
    assert [tf.train.Example.FromString(record) for record in found] == [example(number) for number in range(SAMPLES)]
