"""Measures datasets; run by `cargo xtask bench dataset`, one row group per call.

Prints one JSON object per line: {"name": ..., "samples": [...]}. What a row must reach is known to xtask alone. CPU time is that of this process and of
the node together, from the kernel's clocks of processes; contenders alternate A-B-B-A, epoch by epoch, and every one has had a warm-up epoch.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import pathlib
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import dataset_peers as peers
import numpy  # noqa: F401  Its memory is that of any job; where ranks are measured it is there before.

import forebay

BATCH = 64
IMAGES, TOKENS = 20_000, 50_000
#: Epochs of ours that are measured together: one is too short for a steady figure.
EPOCHS = 3


def emit(name: str, samples: list[float]) -> None:
    print(json.dumps({"name": name, "samples": samples}), flush=True)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, ended threads included."""
    return time.clock_gettime(((~pid) << 3) | 2)


def lake_counter(args: argparse.Namespace, name: str) -> float:
    with urllib.request.urlopen(f"{args.admin}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def images(args: argparse.Namespace, **options: Any) -> forebay.Dataset:
    node = forebay.connect(args.socket)
    names = "forebay://bench/images/{0000..0039}.tar"
    return forebay.Dataset(names, fields={"jpg": "bytes", "cls": int}, node=node, **options)


def tokens(args: argparse.Namespace) -> forebay.Dataset:
    node = forebay.connect(args.socket)
    return forebay.Dataset(
        "forebay://bench/tokens/{0000..0009}.bin", fields={"tokens": "tokens:uint16"}, node=node, tokens=(2048, 2048, "uint16")
    )


def ours(dataset: forebay.Dataset, field: str, **options: Any) -> Callable[[], Iterator[Any]]:
    loader = dataset.loader(batch_size=BATCH, seed=7, tail="pad", **options)

    def epochs() -> Iterator[Any]:
        for _ in range(EPOCHS):
            for batch in loader:
                yield batch[field]

    return epochs


def drain(epoch: Callable[[], Iterator[Any]], expected: int) -> None:
    """Reads an epoch and looks at every sample."""
    count = 0
    for batch in epoch():
        for sample in batch:
            count += len(sample) > 0
    if not expected <= count < expected + EPOCHS * BATCH:
        raise SystemExit(f"{count} samples came, {expected} should have")


def compare(args: argparse.Namespace, samples: int, contenders: dict[str, Callable[[], Iterator[Any]]]) -> None:
    """CPU µs per sample of every contender; the first is ours."""
    names = list(contenders)
    counts = {name: samples * (EPOCHS if name.startswith("forebay") else 1) for name in names}
    costs: dict[str, list[float]] = {name: [] for name in names}

    def once(name: str) -> float:
        before = time.process_time() + cpu_seconds(args.node_pid)
        drain(contenders[name], counts[name])
        return (time.process_time() + cpu_seconds(args.node_pid) - before) * 1e6 / counts[name]

    for name in names:
        once(name)
    for _ in range(args.rounds):
        for name in names + names[::-1]:
            costs[name].append(once(name))
    for name, found in costs.items():
        emit(name, found)
        both = [statistics.mean(found[at : at + 2]) for at in range(0, len(found), 2)]
        mine = [statistics.mean(costs[names[0]][at : at + 2]) for at in range(0, len(found), 2)]
        emit(f"{name} by ours", [theirs / own for theirs, own in zip(both, mine, strict=True)])


def group_images(args: argparse.Namespace) -> None:
    contenders = {"forebay": ours(images(args), "jpg", shuffle="window")}
    contenders["forebay global"] = ours(images(args), "jpg", shuffle="global")
    contenders |= {
        "webdataset": peers.webdataset_images(args.data),
        "mds": peers.mds_images(args.data),
        "litdata": peers.litdata_images(args.data),
        "parquet": peers.parquet_images(args.data),
    }
    compare(args, IMAGES, contenders)


def group_tokens(args: argparse.Namespace) -> None:
    contenders = {"forebay": ours(tokens(args), "tokens", shuffle="window")}
    contenders |= {
        "webdataset": peers.webdataset_tokens(args.data),
        "mds": peers.mds_tokens(args.data),
        "litdata": peers.litdata_tokens(args.data),
        "parquet": peers.parquet_tokens(args.data),
    }
    compare(args, TOKENS, contenders)


def group_resume(args: argparse.Namespace) -> None:
    """Another loader goes on where one stood after half an epoch: seconds to its first batch."""
    dataset = images(args)
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": "window", "seed": 7}
    found = []
    with dataset.loader(**options) as loader:
        state = {**loader.state_dict(), "position": IMAGES // 2}
    for _ in range(args.rounds * 2):
        with dataset.loader(**options) as again:
            start = time.perf_counter()
            again.load_state_dict(state)
            next(iter(again))
            found.append(time.perf_counter() - start)
    emit("resume", found)


def group_index(args: argparse.Namespace) -> None:
    """Building the index of the images from a warm node: GB per CPU second of client and node."""
    found = []
    gigabytes = sum(size for _, _, size in images(args).shards) / 1e9
    for _ in range(args.rounds + 1):
        before = time.process_time() + cpu_seconds(args.node_pid)
        images(args, store_index=False).index(rebuild="always")
        found.append(gigabytes / (time.process_time() + cpu_seconds(args.node_pid) - before))
    emit("index", found[1:])


def lake_bytes(args: argparse.Namespace) -> float:
    return lake_counter(args, "forebay_lake_read_bytes_total")


def group_lake(args: argparse.Namespace) -> None:
    """A cold node before a lake with a latency and a rate: the first batch, and the rate of the epoch behind it."""
    latency, rate = 0.020, 200e6
    dataset = images(args).index(rebuild="never")
    with dataset.loader(batch_size=BATCH, shuffle="window", seed=7) as loader:
        batches = iter(loader)
        start = time.perf_counter()
        first = next(batches)
        took = time.perf_counter() - start
        size = sum(len(view) for view in first["jpg"])
        emit("first batch", [took])
        emit("first batch by ideal", [took / (3 * latency + size / rate)])
        before, start = lake_bytes(args), time.perf_counter()
        for _ in batches:
            pass
        emit("steady rate", [(lake_bytes(args) - before) / (time.perf_counter() - start) / rate])
    # What the same node and lake give to plain reads of whole objects, eight at a time.
    node, names = forebay.connect(args.socket), [f"forebay://bench/tokens/{number:04}.bin" for number in range(10)]
    before, start = lake_bytes(args), time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: len(node.get(name)), names))
    emit("plain rate", [(lake_bytes(args) - before) / (time.perf_counter() - start) / rate])


def group_far(args: argparse.Namespace) -> None:
    """A cold node before a lake so far away that nothing but requests that wait for each other counts."""
    latency = 0.5
    dataset = images(args).index(rebuild="never")
    with dataset.loader(batch_size=BATCH, shuffle="window", seed=7) as loader:
        start = time.perf_counter()
        next(iter(loader))
        emit("first batch latencies", [(time.perf_counter() - start) / latency])


def group_half(args: argparse.Namespace) -> None:
    """The second epoch through a cache of half the data: what came from the cache, by what could have come."""
    cache, ahead = 512 << 20, 128 << 20
    dataset = images(args).index()
    total = sum(size for _, _, size in dataset.shards)
    with dataset.loader(batch_size=BATCH, shuffle="window", seed=7) as loader:
        for _ in loader:
            pass
        before = lake_bytes(args)
        for _ in loader:
            pass
        cached = 1 - (lake_bytes(args) - before) / total
    emit("half", [cached / ((cache - ahead) / total)])
    emit("half share", [cached])


RANKS = 8


def own_kib(pid: int | str) -> float:
    """Memory of a process that is not memory of the node's cache: its heap and stacks, and its part of files that several processes map."""
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_File:")))


def shared_kib() -> float:
    """Shared memory of the whole machine: that of the node's cache, once, whoever maps it at this moment."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("Shmem:"))


def rank_of_job(args: argparse.Namespace, rank: int, read: Any, measured: Any, found: Any) -> None:
    """One rank of a job reads its share of an epoch; what its memory has grown by, in KiB, when all have read theirs."""
    before = own_kib("self")
    dataset = images(args).index()
    with dataset.loader(batch_size=BATCH, shuffle="window", seed=7, rank=rank, world_size=RANKS) as loader:
        for batch in loader:
            del batch
        read.wait()
        found.put(own_kib("self") - before)
        measured.wait()


def group_ranks(args: argparse.Namespace) -> None:
    """A job of eight processes on a cold node: bytes from the lake and memory of node and ranks, by the size of the data."""
    total = sum(size for _, _, size in images(args).index().shards)
    bytes_before, node_before, shared_before = lake_bytes(args), own_kib(args.node_pid), shared_kib()
    context = multiprocessing.get_context("spawn")
    read, measured, found = context.Barrier(RANKS), context.Barrier(RANKS + 1), context.Queue()
    ranks = [context.Process(target=rank_of_job, args=(args, rank, read, measured, found)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    grown = [found.get(timeout=300) for _ in ranks]
    # All ranks still stand there with what they have.
    node, shared = own_kib(args.node_pid) - node_before, shared_kib() - shared_before
    measured.wait()
    for process in ranks:
        process.join()
    emit("ranks lake", [(lake_bytes(args) - bytes_before) / total])
    emit("ranks memory", [(shared + node + sum(grown)) * 1024 / total])
    emit("ranks cache", [shared * 1024 / total])
    emit("ranks own", [sum(grown) / RANKS / 1024])
    emit("ranks node", [node / 1024])


GROUPS = {"lake": group_lake, "far": group_far, "half": group_half, "ranks": group_ranks}
GROUPS |= {"images": group_images, "tokens": group_tokens, "resume": group_resume, "index": group_index}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", choices=sorted(GROUPS))
    parser.add_argument("--socket", required=True)
    parser.add_argument("--node-pid", type=int, required=True)
    parser.add_argument("--admin", required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    GROUPS[args.group](args)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
