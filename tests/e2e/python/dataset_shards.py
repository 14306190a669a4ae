"""Shards for tests of datasets: what is in them is a function of the number of the sample."""

import io
import random
import tarfile


def image_bytes(number: int) -> bytes:
    """Bytes of the field `bin` of a sample: 1 to 9 KB, other for each number."""
    return random.Random(number).randbytes(1000 + number * 37 % 8000)


def tar_shard(numbers, extra=None) -> bytes:
    """A tar as WebDataset wants it: `<number>.bin` and `<number>.cls`, and what `extra` adds for a number."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number in numbers:
            parts = {"bin": image_bytes(number), "cls": b"%d" % number, **(extra(number) if extra else {})}
            for field, data in parts.items():
                member = tarfile.TarInfo(f"{number:06}.{field}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def put_tars(node, folder: str, shards: int = 4, samples: int = 50, extra=None) -> str:
    """Writes shards with consecutive samples, and returns their common name."""
    for shard in range(shards):
        numbers = range(shard * samples, (shard + 1) * samples)
        node.put(f"{folder}/{shard:04}.tar", tar_shard(numbers, extra))
    return f"forebay://{folder}/{{0000..{shards - 1:04}}}.tar"
