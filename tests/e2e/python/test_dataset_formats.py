"""Round trips with the libraries that people have: what they write is read, sample by sample, in any order."""

import json

import numpy as np
import pytest

import forebay
from dataset_shards import image_bytes


def upload(node, home, folder):
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            node.put(f"{home}/d/{path.relative_to(folder)}", path.read_bytes())


def test_what_webdataset_writes_is_read_as_webdataset_reads_it(shared_embedded, home, tmp_path):
    import webdataset

    with webdataset.ShardWriter(str(tmp_path / "%04d.tar"), maxcount=30, verbose=0) as writer:
        for number in range(100):
            writer.write(
                {
                    "__key__": f"sample-{number:05}",
                    "bin": image_bytes(number),
                    "cls": number,
                    "json": {"name": f"größe {number}"},
                    "npy": np.arange(number, dtype=np.int32),
                    "seg.txt": f"part {number}",
                }
            )
    upload(shared_embedded, home, tmp_path)
    fields = {"__key__": str, "bin": "bytes", "cls": int, "json": "json", "npy": "npy", "seg.txt": str}
    ds = forebay.Dataset(f"forebay://{home}/d/{{0000..0003}}.tar", fields=fields, node=shared_embedded)
    theirs = list(webdataset.WebDataset(str(tmp_path / "{0000..0003}.tar"), shardshuffle=False).decode())
    assert len(ds) == len(theirs) == 100

    def same(ours, other):
        assert ours["__key__"] == other["__key__"]
        assert bytes(ours["bin"]) == other["bin"]
        assert ours["cls"] == other["cls"]
        assert ours["json"] == other["json"]
        assert np.array_equal(ours["npy"], other["npy"])
        assert ours["seg.txt"] == other["seg.txt"]

    for ours, other in zip(ds, theirs, strict=True):
        same(ours, other)
    seen = []
    for batch in ds.loader(batch_size=10, shuffle="window", window=40, seed=1):
        for at in range(10):
            ours = {name: values[at] for name, values in batch.items()}
            seen.append(int(ours["cls"]))
            same(ours, theirs[seen[-1]])
    assert sorted(seen) == list(range(100))
    assert seen != sorted(seen)


def test_what_tfrecord_writes_is_read_as_tfrecord_reads_it(shared_embedded, home, tmp_path):
    import tfrecord

    path = tmp_path / "a.tfrecord"
    writer = tfrecord.TFRecordWriter(str(path))
    for number in range(40):
        writer.write(
            {
                "image": (image_bytes(number), "byte"),
                "label": (number, "int"),
                "box": ([number + 0.5, 2.0, 3.0], "float"),
            }
        )
    writer.close()
    upload(shared_embedded, home, tmp_path)
    ds = forebay.Dataset(f"{home}/d/a.tfrecord", fields={"record": "example"}, node=shared_embedded)
    theirs = list(tfrecord.tfrecord_loader(str(path), None))
    assert len(ds) == len(theirs) == 40
    for number in (39, 0, 17):
        ours = ds[number]["record"]
        assert ours["image"] == [bytes(theirs[number]["image"])]
        assert ours["label"].tolist() == theirs[number]["label"].tolist() == [number]
        assert ours["box"].tolist() == theirs[number]["box"].tolist()


@pytest.mark.parametrize("kind", ["npy", "bin"])
def test_tokens_come_packed_in_windows(shared_embedded, home, tmp_path, kind):
    tokens = np.random.default_rng(1).integers(0, 50_000, 10_000).astype(np.uint16)
    path = tmp_path / f"t.{kind}"
    if kind == "npy":
        np.save(path, tokens)
    else:
        tokens.tofile(path)
    upload(shared_embedded, home, tmp_path)
    windows = (128, 128, None if kind == "npy" else "uint16")
    ds = forebay.Dataset(f"{home}/d/t.{kind}", fields={"tokens": "auto"}, node=shared_embedded, tokens=windows)
    assert len(ds) == 10_000 // 128
    assert np.array_equal(ds[5]["tokens"], tokens[640:768])
    batch = next(iter(ds.loader(batch_size=6)))["tokens"]
    assert batch.dtype == np.uint16
    assert np.array_equal(batch, tokens[:768].reshape(6, 128))
    batch[0, 0] = 1


def test_lines_of_json_are_samples(shared_embedded, home):
    lines = [json.dumps({"n": number, "text": "ä" * number}, ensure_ascii=False) for number in range(50)]
    shared_embedded.put(f"{home}/d/a.jsonl", "\n".join(lines).encode())
    ds = forebay.Dataset(f"{home}/d/a.jsonl", fields={"json": "json"}, node=shared_embedded)
    assert [sample["json"]["n"] for sample in ds] == list(range(50))
    assert ds[49]["json"]["text"] == "ä" * 49


def mds_shard(columns, samples):
    """A shard as mosaicml-streaming lays it out: count, offsets, description, samples."""
    about = {
        "column_encodings": [encoding for _, encoding, _ in columns],
        "column_names": [name for name, _, _ in columns],
        "column_sizes": [size for _, _, size in columns],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }
    text = json.dumps(about, sort_keys=True).encode()
    packed = []
    for sample in samples:
        sizes = b"".join(len(sample[name]).to_bytes(4, "little") for name, _, size in columns if size is None)
        packed.append(sizes + b"".join(sample[name] for name, _, _ in columns))
    start = 4 + 4 * (len(packed) + 1) + len(text)
    offsets = np.cumsum([start, *map(len, packed)]).astype("<u4")
    return len(packed).to_bytes(4, "little") + offsets.tobytes() + text + b"".join(packed), about


def test_columns_of_mds_have_the_values_of_their_encodings(shared_embedded, home):
    columns = [("image", "jpeg", None), ("label", "int", 8), ("text", "str", None), ("values", "ndarray:float32:2,3", 24)]
    samples = [
        {
            "image": image_bytes(number),
            "label": number.to_bytes(8, "little"),
            "text": f"größe {number}".encode(),
            "values": (np.arange(6, dtype="<f4") + number).tobytes(),
        }
        for number in range(20)
    ]
    data, about = mds_shard(columns, samples)
    raw = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    index = {"version": 2, "shards": [{**about, "raw_data": raw, "zip_data": None, "samples": 20}]}
    shared_embedded.put(f"{home}/mds/shard.00000.mds", data)
    shared_embedded.put(f"{home}/mds/index.json", json.dumps(index).encode())
    ds = forebay.Dataset(f"{home}/mds/", node=shared_embedded)
    sample = ds[7]
    assert bytes(sample["image"]) == image_bytes(7)
    assert (sample["label"], sample["text"]) == (7, "größe 7")
    assert sample["values"].tolist() == [[7, 8, 9], [10, 11, 12]]
    seen = [batch["label"] for batch in ds.loader(batch_size=4, shuffle="global")]
    assert sorted(sum(seen, [])) == list(range(20))
