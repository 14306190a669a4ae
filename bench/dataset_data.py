"""Makes the data of `cargo xtask bench dataset`, the same in every format, from one seed.

Images: 20,000 samples of 10 to 110 KB (random bytes: nothing is decoded) with a label. Tokens: 50,000 samples of 2,048 uint16. Written as
tar and `.bin` for us and WebDataset, as MDS, LitData and Parquet for their own readers. A folder that is whole is left as it is.
"""

import argparse
import io
import pathlib
import shutil
import tarfile
from collections.abc import Iterator

import numpy

IMAGES, IMAGES_PER_SHARD = 20_000, 500
TOKENS, TOKENS_PER_SHARD, TOKENS_LENGTH = 50_000, 5_000, 2_048


def images() -> Iterator[tuple[int, bytes, int]]:
    """Number, bytes and label of every image; sizes have a mean of 52 KB."""
    rng = numpy.random.default_rng(7)
    noise = rng.bytes(8 << 20)
    sizes = numpy.clip(rng.gamma(4.0, 13_000.0, IMAGES), 10_000, 110_000).astype(int)
    for number, size in enumerate(sizes):
        start = int(rng.integers(0, len(noise) - size))
        # The number first, so that no two are alike and a reader can tell them apart.
        yield number, number.to_bytes(8, "little") + noise[start : start + size - 8], number % 1000


def tokens() -> numpy.ndarray:
    """All token samples, one per row."""
    return numpy.random.default_rng(9).integers(0, 50_000, (TOKENS, TOKENS_LENGTH), dtype=numpy.uint16)


def write_tar(folder: pathlib.Path) -> None:
    tar = None
    for number, image, label in images():
        if number % IMAGES_PER_SHARD == 0:
            if tar is not None:
                tar.close()
            tar = tarfile.open(folder / f"{number // IMAGES_PER_SHARD:04}.tar", "w", format=tarfile.USTAR_FORMAT)
        assert tar is not None
        for ending, body in (("jpg", image), ("cls", str(label).encode())):
            member = tarfile.TarInfo(f"{number:08}.{ending}")
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    if tar is not None:
        tar.close()


def write_bin(folder: pathlib.Path) -> None:
    rows = tokens()
    for first in range(0, TOKENS, TOKENS_PER_SHARD):
        rows[first : first + TOKENS_PER_SHARD].tofile(folder / f"{first // TOKENS_PER_SHARD:04}.bin")


def write_tokens_tar(folder: pathlib.Path) -> None:
    rows = tokens()
    for first in range(0, TOKENS, TOKENS_PER_SHARD):
        with tarfile.open(folder / f"{first // TOKENS_PER_SHARD:04}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(first, first + TOKENS_PER_SHARD):
                member = tarfile.TarInfo(f"{number:08}.bin")
                member.size = TOKENS_LENGTH * 2
                tar.addfile(member, io.BytesIO(rows[number].tobytes()))


def write_mds(folder: pathlib.Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"jpg": "bytes", "cls": "int"}, size_limit=26 << 20) as out:
        for _, image, label in images():
            out.write({"jpg": image, "cls": label})


def write_tokens_mds(folder: pathlib.Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:uint16:{TOKENS_LENGTH}"}, size_limit=20 << 20) as out:
        for row in tokens():
            out.write({"tokens": row})


def write_litdata(folder: pathlib.Path) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes=26 << 20)
    for number, image, label in images():
        writer.add_item(number, {"jpg": image, "cls": label})
    writer.done()
    writer.merge()


def write_tokens_litdata(folder: pathlib.Path) -> None:
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_size=TOKENS_LENGTH * TOKENS_PER_SHARD, item_loader=TokensLoader())
    for number, row in enumerate(tokens()):
        writer.add_item(number, torch.from_numpy(row.astype(numpy.int16)))
    writer.done()
    writer.merge()


def write_parquet(folder: pathlib.Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows: list[tuple[bytes, int]] = []
    for number, image, label in images():
        rows.append((image, label))
        if len(rows) == IMAGES_PER_SHARD or number == IMAGES - 1:
            table = pyarrow.table({"jpg": [row[0] for row in rows], "cls": [row[1] for row in rows]})
            path = folder / f"{number // IMAGES_PER_SHARD:04}.parquet"
            # Row groups of 13 MB, uncompressed: images do not shrink.
            pyarrow.parquet.write_table(table, path, row_group_size=250, compression="none", use_dictionary=False)
            rows = []


def write_tokens_parquet(folder: pathlib.Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows, width = tokens(), TOKENS_LENGTH * 2
    for first in range(0, TOKENS, TOKENS_PER_SHARD):
        memory = pyarrow.py_buffer(rows[first : first + TOKENS_PER_SHARD].tobytes())
        column = pyarrow.Array.from_buffers(pyarrow.binary(width), TOKENS_PER_SHARD, [None, memory])
        path = folder / f"{first // TOKENS_PER_SHARD:04}.parquet"
        table = pyarrow.table({"tokens": column})
        pyarrow.parquet.write_table(table, path, row_group_size=1000, compression="none", use_dictionary=False)


FORMATS = {
    "lake/bench/images": write_tar,
    "lake/bench/tokens": write_bin,
    "tokens-tar": write_tokens_tar,
    "mds": write_mds,
    "tokens-mds": write_tokens_mds,
    "litdata": write_litdata,
    "tokens-litdata": write_tokens_litdata,
    "parquet": write_parquet,
    "tokens-parquet": write_tokens_parquet,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    for name, write in FORMATS.items():
        whole = folder / f"{name.replace('/', '-')}.whole"
        if whole.exists():
            continue
        target = folder / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        write(target)
        whole.touch()


if __name__ == "__main__":
    main()
