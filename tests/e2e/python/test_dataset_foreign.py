"""What other tools have left beside the data: wids' and DALI's indexes; and shards that are cut, empty, missing or odd."""

import io
import json
import tarfile

import pytest

import forebay
from dataset_shards import image_bytes, put_tars, tar_shard


def dali(shard: bytes) -> bytes:
    """What DALI's wds2idx writes, version 1.2."""
    samples: dict[str, list[str]] = {}
    with tarfile.open(fileobj=io.BytesIO(shard)) as tar:
        for member in tar:
            key, field = member.name.split(".", 1)
            samples.setdefault(key, []).append(f"{field} {member.offset_data} {member.size} {member.name}")
    return "\n".join([f"v1.2 {len(samples)}", *(" ".join(one) for one in samples.values())]).encode()


def test_a_wids_index_names_the_shards(shared_embedded, home):
    put_tars(shared_embedded, f"{home}/d", shards=3, samples=10)
    sizes = [len(tar_shard(range(shard * 10, shard * 10 + 10))) for shard in range(3)]
    shards = [{"url": f"{shard:04}.tar", "nsamples": 10, "filesize": sizes[shard]} for shard in (2, 0)]
    document = {"wids_version": 1, "name": "x", "shardlist": shards}
    shared_embedded.put(f"{home}/d/part.json", json.dumps(document).encode())
    ds = forebay.Dataset(f"forebay://{home}/d/part.json", fields={"cls": int}, node=shared_embedded)
    assert [sample["cls"] for sample in ds] == [*range(20, 30), *range(10)]
    shards[0]["filesize"] += 1
    shared_embedded.put(f"{home}/d/wrong.json", json.dumps(document).encode())
    with pytest.raises(forebay.CorruptError, match="size"):
        len(forebay.Dataset(f"forebay://{home}/d/wrong.json", node=shared_embedded))


def test_dali_indexes_are_borrowed_and_compared(shared_embedded, home):
    shard = tar_shard(range(30))
    shared_embedded.put(f"{home}/d/a.tar", shard)
    shared_embedded.put(f"{home}/d/a.idx", dali(shard))
    options = {"fields": {"__key__": str, "bin": "bytes", "cls": int}, "node": shared_embedded}
    ds = forebay.Dataset(f"{home}/d/a.tar", borrow_index=True, **options)
    assert ds.index_origin == "memory"
    for number in (29, 0, 13):
        sample = ds[number]
        assert (sample["__key__"], bytes(sample["bin"]), sample["cls"]) == (f"{number:06}", image_bytes(number), number)
    assert forebay.Dataset(f"{home}/d/a.tar", **options).index().index_origin == "built"
    shared_embedded.put(f"{home}/d/a.tar", tar_shard(range(1, 31)))
    with pytest.raises(forebay.CorruptError, match="does not fit"):
        len(forebay.Dataset(f"{home}/d/a.tar", borrow_index=True, **options))


def test_tfrecord_indexes_are_borrowed(shared_embedded, home, tmp_path):
    import tfrecord
    from tfrecord.tools.tfrecord2idx import create_index

    path = tmp_path / "a.tfrecord"
    writer = tfrecord.TFRecordWriter(str(path))
    for number in range(20):
        writer.write({"label": (number, "int")})
    writer.close()
    create_index(str(path), str(tmp_path / "a.idx"))
    for name in ("a.tfrecord", "a.idx"):
        shared_embedded.put(f"{home}/d/{name}", (tmp_path / name).read_bytes())
    ds = forebay.Dataset(f"{home}/d/a.tfrecord", fields={"record": "example"}, node=shared_embedded, borrow_index=True)
    assert ds.index_origin == "memory"
    assert [int(sample["record"]["label"][0]) for sample in ds] == list(range(20))


def test_a_shard_that_is_cut_is_named(shared_embedded, home):
    put_tars(shared_embedded, f"{home}/d", shards=2, samples=10)
    shared_embedded.put(f"{home}/d/0001.tar", tar_shard(range(10, 20))[:20_000])
    with pytest.raises(forebay.CorruptError, match=r"0001\.tar"):
        len(forebay.Dataset(f"{home}/d/", node=shared_embedded))


def test_shards_that_are_missing_are_named(shared_embedded, home):
    put_tars(shared_embedded, f"{home}/d", shards=2, samples=10)
    with pytest.raises(forebay.NotFoundError, match=r"0002\.tar"):
        len(forebay.Dataset(f"forebay://{home}/d/{{0000..0003}}.tar", node=shared_embedded))


def test_empty_shards_and_samples_without_bytes_are_what_they_are(shared_embedded, home):
    shared_embedded.put(f"{home}/d/0.tar", tar_shard(range(3), lambda number: {"txt": b""}))
    shared_embedded.put(f"{home}/d/1.tar", tar_shard([]))
    shared_embedded.put(f"{home}/d/2.tar", tar_shard(range(3, 5), lambda number: {"txt": b""}))
    ds = forebay.Dataset(f"{home}/d/", fields={"txt": str, "cls": int}, node=shared_embedded)
    assert [samples for _, samples, _ in ds.shards] == [3, 0, 2]
    assert [sample["cls"] for sample in ds] == [0, 1, 2, 3, 4]
    assert ds[4]["txt"] == ""
    loader = ds.loader(batch_size=5, shuffle="window", seed=1)
    assert sorted(next(iter(loader))["cls"].tolist()) == [0, 1, 2, 3, 4]


def test_a_field_that_comes_twice_is_an_error_and_a_key_that_comes_again_another_sample(shared_embedded, home):
    def tar(names):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as out:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size = 1
                out.addfile(member, io.BytesIO(b"7"))
        return file.getvalue()

    shared_embedded.put(f"{home}/twice/0.tar", tar(["a.cls", "a.cls"]))
    with pytest.raises(forebay.InvalidInputError, match="twice"):
        len(forebay.Dataset(f"{home}/twice/", node=shared_embedded))
    shared_embedded.put(f"{home}/again/0.tar", tar(["a.cls", "b.cls", "a.cls"]))
    ds = forebay.Dataset(f"{home}/again/", fields={"__key__": str}, node=shared_embedded)
    assert [sample["__key__"] for sample in ds] == ["a", "b", "a"]
    assert ds.find("a") == 0


def test_a_header_that_claims_ten_gigabytes_takes_no_memory(shared_embedded, home):
    member = tarfile.TarInfo("a.bin")
    member.size = 10 << 30
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        shared_embedded.put(f"{home}/d/0.tar", member.tobuf(kind) + bytes(2048))
        with pytest.raises(forebay.CorruptError, match=r"0\.tar"):
            len(forebay.Dataset(f"{home}/d/", node=shared_embedded))
