"""Other libraries, each as an epoch over the same samples: what `bench/dataset.py` compares with.

Every function returns a generator function that gives batches of 64 as lists of (bytes, label), or of token rows, and reads one whole epoch of warm
local files. Each library is set up as its documentation suggests for one process without workers, shuffled as it shuffles.
"""

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

BATCH = 64
Epoch = Callable[[], Iterator[Any]]


def webdataset_images(root: pathlib.Path) -> Epoch:
    import webdataset

    shards = sorted(str(path) for path in (root / "lake/bench/images").glob("*.tar"))

    def epoch() -> Iterator[Any]:
        data = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=7).shuffle(1000).to_tuple("jpg", "cls")
        yield from data.batched(BATCH, collation_fn=None)

    return epoch


def webdataset_tokens(root: pathlib.Path) -> Epoch:
    import webdataset

    shards = sorted(str(path) for path in (root / "tokens-tar").glob("*.tar"))

    def epoch() -> Iterator[Any]:
        data = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=7).shuffle(1000).to_tuple("bin")
        yield from data.batched(BATCH, collation_fn=None)

    return epoch


def _mds(folder: pathlib.Path, give: Callable[[Any], Any]) -> Epoch:
    import streaming

    streaming.base.util.clean_stale_shared_memory()
    data = streaming.StreamingDataset(local=str(folder), shuffle=True, shuffle_seed=7, batch_size=BATCH)

    def epoch() -> Iterator[Any]:
        batch = []
        for sample in data:
            batch.append(give(sample))
            if len(batch) == BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    return epoch


def mds_images(root: pathlib.Path) -> Epoch:
    return _mds(root / "mds", lambda sample: (sample["jpg"], sample["cls"]))


def mds_tokens(root: pathlib.Path) -> Epoch:
    return _mds(root / "tokens-mds", lambda sample: sample["tokens"])


def _litdata(folder: pathlib.Path, give: Callable[[Any], Any], **options: Any) -> Epoch:
    import litdata

    data = litdata.StreamingDataset(str(folder), shuffle=True, seed=7, **options)

    def epoch() -> Iterator[Any]:
        batch = []
        for sample in data:
            batch.append(give(sample))
            if len(batch) == BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    return epoch


def litdata_images(root: pathlib.Path) -> Epoch:
    return _litdata(root / "litdata", lambda sample: (sample["jpg"], sample["cls"]))


def litdata_tokens(root: pathlib.Path) -> Epoch:
    from litdata.streaming.item_loader import TokensLoader

    from dataset_data import TOKENS_LENGTH

    return _litdata(root / "tokens-litdata", lambda row: row, item_loader=TokensLoader(block_size=TOKENS_LENGTH))


def _parquet(folder: pathlib.Path, give: Callable[[Any], Any]) -> Epoch:
    import random

    import pyarrow.parquet

    files = sorted(folder.glob("*.parquet"))

    def epoch() -> Iterator[Any]:
        groups = [(file, group) for file in files for group in range(pyarrow.parquet.ParquetFile(file).num_row_groups)]
        rng = random.Random(7)
        rng.shuffle(groups)
        for file, group in groups:
            table = pyarrow.parquet.ParquetFile(file).read_row_group(group, use_threads=False)
            rows = give(table)
            rng.shuffle(rows)
            for first in range(0, len(rows), BATCH):
                yield rows[first : first + BATCH]

    return epoch


def parquet_images(root: pathlib.Path) -> Epoch:
    def give(table: Any) -> list[Any]:
        return list(zip(table["jpg"].to_pylist(), table["cls"].to_pylist(), strict=True))

    return _parquet(root / "parquet", give)


def parquet_tokens(root: pathlib.Path) -> Epoch:
    return _parquet(root / "tokens-parquet", lambda table: table["tokens"].to_pylist())
