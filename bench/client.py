"""Measures the client on the host; run by `cargo xtask bench client`, one row group per call.

Prints one JSON object per line: {"name": ..., "samples": [...]} where each sample is a ratio or a cost. What a row must
reach is known to xtask alone. Every comparison alternates A-B-B-A in this process, so that noise meets both sides.
"""

import argparse
import json
import mmap
import os
import time

import numpy

import forebay

MIB = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")


def emit(name: str, samples: list[float]) -> None:
    print(json.dumps({"name": name, "samples": samples}), flush=True)


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratios(ours, limit, rounds: int) -> list[float]:
    """How fast `ours` is as a share of `limit`, A-B-B-A."""
    found = []
    for _ in range(rounds):
        a, b, c, d = seconds(ours), seconds(limit), seconds(limit), seconds(ours)
        found.append((b + c) / (a + d))
    return found


def node_cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def wait_until_idle(pid: int) -> None:
    """Waits while the node gives huge pages to memory it has just begun to use."""
    deadline = time.perf_counter() + 60
    while time.perf_counter() < deadline:
        before = node_cpu_seconds(pid)
        time.sleep(0.5)
        if node_cpu_seconds(pid) - before < 0.02:
            return
    raise SystemExit("the node never came to rest")


def plain_memory(nbytes: int) -> numpy.ndarray:
    """Private memory in 4 KiB pages, touched."""
    area = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    array = numpy.frombuffer(area, dtype=numpy.uint64)
    array[:] = 1
    return array


def view(node, args) -> None:
    key = "bench/256mib"
    plain = plain_memory(256 * MIB)
    node.get(key).release()  # Filled, and its segments mapped in this process.
    wait_until_idle(args.node_pid)
    held = {}

    def first() -> None:
        held["view"] = node.get(key)
        held["array"] = numpy.frombuffer(held["view"], dtype=numpy.uint64)
        held["array"].sum()

    def again() -> None:
        held["array"].sum()

    def limit() -> None:
        plain.sum()

    emit("view first", ratios(first, limit, args.rounds))
    emit("view again", ratios(again, limit, args.rounds))


def read_into(node, args) -> None:
    key, nbytes = "bench/64mib", 64 * MIB
    target = numpy.ones(nbytes, dtype=numpy.uint8)
    source = numpy.ones(nbytes, dtype=numpy.uint8)
    node.read_into(key, target)
    emit("read_into", ratios(lambda: node.read_into(key, target), lambda: numpy.copyto(target, source), args.rounds * 4))


def batch(node, args, length: int, name: str) -> None:
    key = "bench/256mib"
    rows = [
        [(key, (64 * batch + item) * length % (255 * MIB) // 4096 * 4096, length) for item in range(64)]
        for batch in range(16)
    ]
    for items in rows:
        node.get_batch(items)
    samples = []
    for _ in range(args.rounds):
        count = 0
        client, server, start = time.process_time(), node_cpu_seconds(args.node_pid), time.perf_counter()
        while time.perf_counter() - start < args.seconds:
            for items in rows:
                views = node.get_batch(items)
                assert len(views) == 64
                del views
            count += 64 * len(rows)
        used = time.process_time() - client + node_cpu_seconds(args.node_pid) - server
        samples.append(used * 1e6 / count)
    emit(name, samples)


def fsspec_read(node, args) -> None:
    import fsspec

    ours = fsspec.filesystem("forebay", address=args.socket)
    theirs = fsspec.filesystem(
        "s3", key=args.key, secret=args.secret, endpoint_url=args.s3, client_kwargs={"region_name": "us-east-1"}
    )

    def read(fs) -> None:
        with fs.open("bench/1gib", "rb", block_size=4 * MIB) as file:
            total = 0
            while chunk := file.read(4 * MIB):
                total += len(chunk)
            assert total == 1024 * MIB

    node.get("bench/1gib").release()
    emit("fsspec", ratios(lambda: read(ours), lambda: read(theirs), args.rounds))


def pss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))


def memory(node, args) -> None:
    """Eight processes hold and touch one object of 1 GiB; what they and the node gain together."""
    import multiprocessing

    def hold(pipe) -> None:
        own = forebay.connect(args.socket)
        own.stat("bench/1gib")
        pipe.send("connected")
        pipe.recv()
        view = own.get("bench/1gib")
        numpy.frombuffer(view, dtype=numpy.uint64).sum()
        pipe.send("held")
        pipe.recv()
        view.release()

    context = multiprocessing.get_context("fork")
    pairs = [context.Pipe() for _ in range(8)]
    processes = [context.Process(target=hold, args=(theirs,)) for _, theirs in pairs]
    for process in processes:
        process.start()
    everyone = [process.pid for process in processes] + [args.node_pid]

    def step() -> int:
        for ours, _ in pairs:
            ours.recv()
        return sum(pss_bytes(pid) for pid in everyone)

    before = step()
    for ours, _ in pairs:
        ours.send("go")
    after = step()
    for ours, _ in pairs:
        ours.send("end")
    for process in processes:
        process.join()
    emit("memory", [(after - before) / (1024 * MIB)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--node-pid", type=int, required=True)
    parser.add_argument("--s3", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--secret", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    node = forebay.connect(args.socket)
    if args.group == "memory":
        memory(node, args)
    elif args.group == "view":
        view(node, args)
    elif args.group == "read_into":
        read_into(node, args)
    elif args.group == "batch":
        batch(node, args, 4096, "batch 4 KiB")
        batch(node, args, 52_000, "batch 52 KB")
    elif args.group == "fsspec":
        fsspec_read(node, args)
    else:
        parser.error(f"there is no group {args.group}")


if __name__ == "__main__":
    main()
