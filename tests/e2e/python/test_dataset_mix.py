"""Mixes of datasets that differ: every sample is read as its own dataset says."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from dataset_shards import put_tars

COUNT = 12


def parquet(node, folder, **options):
    """A dataset of one shard with these columns."""

    def make(table):
        file = io.BytesIO()
        pq.write_table(pa.table(table), file)
        node.put(f"{folder}/0.parquet", file.getvalue())
        return forebay.Dataset(f"{folder}/", node=node, **options)

    return make


def samples_of(sources, **options):
    """All samples of an epoch of a mix, field by field."""
    found = {}
    with forebay.mix([(source, 1) for source in sources], seed=2).loader(batch_size=6, **options) as loader:
        for batch in loader:
            for name, values in batch.items():
                found.setdefault(name, []).extend(values)
    return found


def test_labels_are_those_of_their_own_dataset(shared_embedded, home):
    sources = []
    for animal in ("cat", "dog"):
        for number in range(COUNT):
            shared_embedded.put(f"{home}/{animal}s/{animal}/{number}.txt", animal.encode())
        fields = {"data": str, "label": str, "__source__": int}
        sources.append(forebay.Dataset(f"{home}/{animal}s/", fields, shared_embedded, labels="folder"))
    found = samples_of(sources)
    assert sorted(set(found["data"])) == ["cat", "dog"]
    assert found["label"] == found["data"]
    assert [("cat", "dog")[source] for source in found["__source__"]] == found["data"]


def test_functions_of_map_are_those_of_their_own_dataset(shared_embedded, home):
    def plus(more):
        return lambda sample: {**sample, "cls": sample["cls"] + more}

    plain = forebay.Dataset(
        put_tars(shared_embedded, f"{home}/d", shards=1, samples=COUNT), {"cls": int, "__source__": int}, shared_embedded
    )
    found = samples_of([plain.map(plus(1000)), plain, plain.map(plus(100)).map(plus(100))])
    for source, more in enumerate((1000, 0, 200)):
        own = [value for value, of in zip(found["cls"], found["__source__"], strict=True) if of == source]
        assert own and set(own) <= set(range(more, more + COUNT)), source


def test_columns_of_other_types_need_a_common_decoder(shared_embedded, home):
    whole = pa.array(range(COUNT), pa.int32())
    half = pa.array([number + 0.5 for number in range(COUNT)], pa.float32())

    def sources(fields):
        return [
            parquet(shared_embedded, f"{home}/{name}", fields=fields)({"x": values})
            for name, values in (("whole", whole), ("half", half))
        ]

    for fields in (None, ["x"]):
        with pytest.raises(forebay.InvalidInputError, match='fields={"x": "bytes"}, int, float or str'):
            samples_of(sources(fields))
    with forebay.mix([(source, 1) for source in sources({"x": float})]).loader(batch_size=COUNT) as loader:
        batches = list(loader)
    assert all(batch["x"].dtype == np.float64 for batch in batches)
    values = np.concatenate([batch["x"] for batch in batches])
    assert set(values) == {number + part for number in range(COUNT) for part in (0, 0.5)}
    texts = samples_of(sources({"x": str}))["x"]
    assert set(texts) == {str(number + part) for number in range(COUNT) for part in (0, 0.5)} - {
        str(float(number)) for number in range(COUNT)
    } | {str(number) for number in range(COUNT)}


def test_nulls_of_one_dataset_stay_nulls(shared_embedded, home):
    sources = [
        parquet(shared_embedded, f"{home}/{name}", fields={"x": int, "__source__": int})({"x": values})
        for name, values in (
            ("full", pa.array(range(COUNT), pa.int32())),
            ("gaps", pa.array([None] * COUNT, pa.int64())),
        )
    ]
    found = samples_of(sources)
    for value, source in zip(found["x"], found["__source__"], strict=True):
        assert (value is None) == (source == 1)


def test_fields_that_only_one_dataset_has_are_there(shared_embedded, home):
    sources = [
        parquet(shared_embedded, f"{home}/{name}")({"x": pa.array(range(COUNT)), name: pa.array([name] * COUNT)})
        for name in ("left", "right")
    ]
    found = samples_of(sources)
    assert sorted(found) == ["__key__", "left", "right", "x"]
    assert len(found["x"]) == len(found["left"]) == 2 * COUNT
    for left, right in zip(found["left"], found["right"], strict=True):
        assert (left, right) in (("left", None), (None, "right"))


def test_a_mix_that_differs_resumes_and_pickles(shared_embedded, home):
    import pickle

    name = put_tars(shared_embedded, f"{home}/d", shards=1, samples=COUNT)
    plain = forebay.Dataset(name, {"cls": int}, shared_embedded)
    mix = forebay.mix([(plain, 1), (plain.map(_negative), 1)], seed=1)
    with mix.loader(batch_size=4) as loader:
        wanted = [batch["cls"].tolist() for batch in loader]
    with mix.loader(batch_size=4) as loader:
        next(iter(loader))
        with pickle.loads(pickle.dumps(loader)) as other:
            assert [batch["cls"].tolist() for batch in other] == wanted[1:]


def _negative(sample):
    return {**sample, "cls": -sample["cls"] - 1}


def test_a_state_of_other_weights_or_filters_is_refused(shared_embedded, home):
    rows = parquet(shared_embedded, f"{home}/rows")({"x": pa.array(range(COUNT))})
    other = parquet(shared_embedded, f"{home}/other")({"x": pa.array(range(COUNT))})
    with forebay.mix([(rows, 0.7), (other, 0.3)]).loader(batch_size=2) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with forebay.mix([(rows, 7), (other, 3)]).loader(batch_size=2) as loader:
        loader.load_state_dict(state)
    for weights, stop in [((1, 1), "first"), ((0.7, 0.3), "all")]:
        mixed = forebay.mix(list(zip((rows, other), weights, strict=True)), stop=stop)
        with mixed.loader(batch_size=2) as loader, pytest.raises(forebay.InvalidInputError, match="resume with them"):
            loader.load_state_dict(state)
    state = rows.loader(batch_size=2).state_dict()
    filtered = forebay.Dataset(f"{home}/rows/", node=shared_embedded, filter=[("x", ">", 3)])
    with pytest.raises(forebay.ChangedError, match="filter"):
        filtered.loader(batch_size=2).load_state_dict(state)
