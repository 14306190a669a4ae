"""Filters: exactly what pyarrow lets through, and nothing read that statistics rule out."""

import datetime
import decimal
import pickle
import subprocess
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from dataset_shards import tar_shard
from forebay_node import binary

ROWS = 2000
MOMENT = datetime.datetime(2020, 1, 1)


@pytest.fixture(scope="module")
def home(shared_embedded, tmp_path_factory):
    """Two files of sorted and unsorted columns, with nulls, in small row groups and pages."""
    folder = tmp_path_factory.mktemp("filter")
    name = f"b-{uuid.uuid4().hex[:12]}"
    shared_embedded.create_bucket(name)
    rng = np.random.default_rng(5)
    for shard in range(2):
        numbers = list(range(shard * ROWS, (shard + 1) * ROWS))
        rows = pa.table(
            {
                "id": pa.array(numbers, pa.int64()),
                "big": pa.array([2**63 + number for number in numbers], pa.uint64()),
                "mixed": pa.array(rng.integers(0, 100, ROWS), pa.int32()),
                "score": pa.array([None if n % 5 == 0 else (float("nan") if n % 7 == 0 else n / 4) for n in numbers]),
                "text": pa.array([f"word {number // 100}" for number in numbers]),
                "when": pa.array([MOMENT + datetime.timedelta(minutes=n) for n in numbers], pa.timestamp("us")),
                "day": pa.array([(MOMENT + datetime.timedelta(minutes=n)).date() for n in numbers], pa.date32()),
                "flag": pa.array([number % 3 == 0 for number in numbers]),
            }
        )
        path = folder / f"{shard}.parquet"
        pq.write_table(rows, path, row_group_size=500, write_page_index=True, data_page_size=512)
        shared_embedded.put(f"{name}/d/{shard}.parquet", path.read_bytes())
    return name, pa.concat_tables([pq.read_table(folder / f"{shard}.parquet") for shard in range(2)])


FILTERS = [
    [("id", "==", 1234)],
    [("id", ">=", 500), ("id", "<", 510)],
    [("mixed", "in", [3, 5, 7]), ("id", ">", 3000)],
    [("mixed", "not in", list(range(90)))],
    [("score", "<=", 12.5)],
    [("score", "!=", 12.5)],
    [("text", "==", "word 17")],
    [("text", ">", "word 8")],
    [("flag", "==", True), ("id", "<", 30)],
    [("day", "==", datetime.date(2020, 1, 2))],
    [("when", ">=", MOMENT + datetime.timedelta(minutes=3990, seconds=30))],
    [[("id", "<", 3)], [("id", ">", 3995)], [("mixed", "==", 50), ("flag", "==", False)]],
    [("id", "<", 0)],
]


@pytest.mark.parametrize("given", FILTERS, ids=str)
def test_a_filter_lets_through_what_pyarrow_lets_through(shared_embedded, home, given):
    bucket, rows = home
    theirs = rows.filter(pq.filters_to_expression(given))["id"].to_pylist()
    ds = forebay.Dataset(f"{bucket}/d/", fields=["id"], node=shared_embedded, filter=given)
    assert len(ds) == len(theirs)
    assert [int(sample["id"]) for sample in ds] == theirs
    if len(theirs) > 4:
        loader = ds.loader(batch_size=2, shuffle="window", window=1000, seed=2, tail="pad")
        assert {int(one) for batch in loader for one in batch["id"]} == set(theirs)
        assert int(ds[-1]["id"]) == theirs[-1]


def test_what_statistics_rule_out_is_not_read(shared_embedded, home, tmp_path):
    path = tmp_path / "0.parquet"
    rows = pa.table({"id": list(range(4000)), "text": [f"{number:05}" for number in range(4000)]})
    options = {"compression": "none", "use_dictionary": False, "write_page_index": True}
    pq.write_table(rows, path, row_group_size=1000, data_page_size=1024, write_batch_size=100, **options)
    data, footer = bytearray(path.read_bytes()), pq.ParquetFile(path).metadata
    # Whoever looks at what is not wanted meets damage: all of three row groups, and of the fourth the first and last pages.
    for group in range(4):
        for column in range(2):
            chunk = footer.row_group(group).column(column)
            start, size = chunk.data_page_offset, chunk.total_compressed_size
            kept = range(size // 3, 2 * size // 3) if group == 1 else range(0)
            for at in range(size):
                if at not in kept:
                    data[start + at] = 0xAA
    shared_embedded.put(f"{home[0]}/damaged/0.parquet", bytes(data))
    wanted = [("id", ">=", 1495), ("id", "<", 1505)]
    ds = forebay.Dataset(f"{home[0]}/damaged/", node=shared_embedded, filter=wanted)
    assert [(int(sample["id"]), sample["text"]) for sample in ds] == [(n, f"{n:05}") for n in range(1495, 1505)]
    with pytest.raises(forebay.CorruptError):
        len(forebay.Dataset(f"{home[0]}/damaged/", node=shared_embedded, filter=[("id", "<", 10)]))


def test_labels_of_raw_files_can_be_filtered(shared_embedded):
    shared_embedded.create_bucket("labelled")
    for number in range(12):
        shared_embedded.put(f"labelled/d/{['cat', 'dog', 'eel'][number % 3]}/{number:02}.txt", b"%d" % number)
    ds = forebay.Dataset("labelled/d/", node=shared_embedded, labels="folder", filter=[("label", "in", ["cat", "eel"])])
    assert len(ds) == 8
    assert sorted(int(bytes(sample["data"])) for sample in ds) == [0, 2, 3, 5, 6, 8, 9, 11]
    manifest = "path,label\n" + "".join(f"cat/{number:02}.txt,{number % 2}\n" for number in range(0, 12, 3))
    listed = forebay.Dataset(
        "labelled/d/cat/", fields={"data": "bytes", "label": str}, node=shared_embedded, labels=manifest.replace("cat/", "")
    )
    assert [sample["label"] for sample in listed] == ["0", "1", "0", "1"]


def test_decimals_and_numbers_of_16_bits_are_compared(shared_embedded, home, tmp_path):
    path, large = tmp_path / "0.parquet", 2**53 + 1
    columns = {
        "whole": pa.array([decimal.Decimal(large), decimal.Decimal(large - 1), None], pa.decimal128(38, 0)),
        "price": pa.array([decimal.Decimal("0.10"), decimal.Decimal("-2.50"), None], pa.decimal128(10, 2)),
        "half": pa.array(np.array([0.5, 1.0, 2.0], np.float16)),
    }
    pq.write_table(pa.table(columns), path)
    shared_embedded.put(f"{home[0]}/exact/0.parquet", path.read_bytes())
    for given, expected in [
        (("whole", "==", large), 1),
        (("whole", "==", decimal.Decimal(large)), 1),
        (("whole", "<", large), 1),
        (("whole", "in", [large, large - 1]), 2),
        (("price", "==", 0.1), 1),
        (("price", "<=", decimal.Decimal("-2.5")), 1),
        (("price", "!=", decimal.Decimal("1E-1")), 1),
        (("half", ">", 0.6), 2),
    ]:
        assert len(forebay.Dataset(f"{home[0]}/exact/", node=shared_embedded, filter=[given])) == expected, given


def test_numbers_of_64_bits_are_compared_without_rounding(shared_embedded, home):
    for given in ([("big", ">=", 2**63 + 3990)], [("big", "in", [2**63 + number for number in range(3990, 4000)])]):
        ds = forebay.Dataset(f"{home[0]}/d/", fields=["id"], node=shared_embedded, filter=given)
        assert [int(sample["id"]) for sample in ds] == list(range(3990, 4000))


@pytest.mark.parametrize(
    ("given", "says"),
    [([("nothing", "==", 1)], "does not have"), ([("id", "~", 1)], "compares with"), ([("id", "==")], "condition")],
)
def test_a_filter_that_means_nothing_is_refused(shared_embedded, home, given, says):
    with pytest.raises(forebay.InvalidInputError, match=says):
        len(forebay.Dataset(f"{home[0]}/d/", node=shared_embedded, filter=given))


def test_a_state_of_another_filter_is_refused(shared_embedded, home):
    one, other = (
        forebay.Dataset(f"{home[0]}/d/", fields=["id"], node=shared_embedded, filter=[("id", "<", limit)])
        for limit in (100, 200)
    )
    state = one.loader(batch_size=10).state_dict()
    with pytest.raises(forebay.ChangedError):
        other.loader(batch_size=10).load_state_dict(state)


def split(folder, out, *more):
    command = [binary(), "dataset", "split", folder, "--parts", "train=0.7,val=0.2", "--out", out, *more]
    ran = subprocess.run(list(map(str, command)), capture_output=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("more", [[], ["--by-shard"]])
def test_the_parts_of_a_split_are_the_dataset_each_sample_once(tmp_path, more):
    """The lists could be written, but nothing could read them."""
    (tmp_path / "lake/d").mkdir(parents=True)
    for shard in range(10):
        (tmp_path / f"lake/d/{shard}.tar").write_bytes(tar_shard(range(shard * 10, shard * 10 + 10)))
    split(tmp_path / "lake/d", tmp_path / "lists", *more)
    with forebay.open(f"file://{tmp_path}") as node:

        def part(of, **options):
            return forebay.Dataset("lake/d/", fields={"cls": int}, node=node, part=of, **options)

        parts = {name: part(tmp_path / f"lists/{name}.txt") for name in ("train", "val")}
        assert (len(parts["train"]), len(parts["val"])) == (70, 20)
        numbers = {name: [sample["cls"] for sample in ds] for name, ds in parts.items()}
        assert len({*numbers["train"], *numbers["val"]}) == 90
        train = parts["train"]
        epoch = [int(number) for batch in train.loader(batch_size=7, shuffle="window") for number in batch["cls"]]
        assert sorted(epoch) == numbers["train"] and epoch != numbers["train"]
        assert pickle.loads(pickle.dumps(train))[-1]["cls"] == numbers["train"][-1]
        assert [sample["cls"] for sample in part([7, 3, 5])] == [3, 5, 7]
        assert len(part([])) == 0
        for wrong, says in [([3, 3], "each once"), ([100], "does not have")]:
            with pytest.raises(forebay.InvalidInputError, match=says):
                len(part(wrong))
        (tmp_path / "plain.txt").write_text("1\n2\n")
        with pytest.raises(forebay.InvalidInputError, match="forebay dataset split"):
            len(part(tmp_path / "plain.txt"))
        with pytest.raises(forebay.NotFoundError, match="part leaves out"):
            part([1]).find("000002")


def test_a_list_of_data_that_has_changed_is_refused(tmp_path):
    (tmp_path / "lake/d").mkdir(parents=True)
    for shard in range(2):
        (tmp_path / f"lake/d/{shard}.tar").write_bytes(tar_shard(range(shard * 10, shard * 10 + 10)))
    split(tmp_path / "lake/d", tmp_path / "lists")
    (tmp_path / "lake/d/1.tar").write_bytes(tar_shard(range(10, 21)))
    with forebay.open(f"file://{tmp_path}") as node, pytest.raises(forebay.ChangedError, match="divide the data again"):
        len(forebay.Dataset("lake/d/", node=node, part=tmp_path / "lists/train.txt"))


def test_a_part_and_a_filter_leave_what_is_in_both(shared_embedded, home):
    ds = forebay.Dataset(f"{home[0]}/d/", fields=["id"], node=shared_embedded, filter=[("id", "<", 100)], part=range(90, 200))
    assert [int(sample["id"]) for sample in ds] == list(range(90, 100))
