"""Measures checkpoints; run by `cargo xtask bench checkpoint`, one row group per call.

Prints one JSON object per line: {"name": ..., "samples": [...]}. What a row must reach is known to xtask alone. The state is that of a model of 220 million
parameters with AdamW: 492 tensors, 2.2 GB, bf16 weights and fp32 moments. Files of peers and the lake are folders of one file system. Comparisons alternate
A-B-B-A.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import shutil
import statistics
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable
from typing import Any

import checkpoint_peers as peers
import torch

import forebay

#: Elements of the layers: most large, some small, as models have them.
SIZES = [(1024, 4096), (3200, 1024), (1024, 1024), (1024,), (1024, 1024), (1024, 1024), (1024,), (1024,)]
THREADS = 2
#: A step that keeps all cores busy.
STEP = 512


def emit(name: str, samples: list[float]) -> None:
    print(json.dumps({"name": name, "samples": samples}), flush=True)


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def abba(ours: Callable[[], Any], other: Callable[[], Any], rounds: int) -> tuple[list[float], list[float]]:
    """Times of both, each the mean of its two turns in a round."""
    mine, theirs = [], []
    for _ in range(rounds):
        a, b, c, d = seconds(ours), seconds(other), seconds(other), seconds(ours)
        mine.append((a + d) / 2)
        theirs.append((b + c) / 2)
    return mine, theirs


def ratio(mine: list[float], theirs: list[float]) -> list[float]:
    return [a / b for a, b in zip(mine, theirs, strict=True)]


def cpu_seconds(pid: int) -> float:
    return time.clock_gettime(((~pid) << 3) | 2)


def state(scale: int = 1) -> dict[str, Any]:
    """Weights and moments; 492 tensors at scale 1."""
    generator = torch.Generator().manual_seed(1)
    weights, first, second = {}, {}, {}
    for index in range(164 // scale):
        shape = SIZES[index % len(SIZES)]
        name = f"layers.{index // 8}.{index % 8}"
        values = torch.rand(shape, generator=generator)
        weights[name] = values.bfloat16()
        first[name], second[name] = values * 0.1, values * 0.01
    return {"model": weights, "exp_avg": first, "exp_avg_sq": second}


def tensors(found: dict[str, Any]) -> list[torch.Tensor]:
    return [tensor for part in found.values() for tensor in part.values()]


def size(found: dict[str, Any]) -> int:
    return sum(tensor.nbytes for tensor in tensors(found))


def change(found: dict[str, Any]) -> None:
    """As a training step does: everything is another value."""
    for tensor in tensors(found):
        tensor.mul_(1.0009765625)


class Run:
    """Steps of a run, and where peers write."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.node = forebay.connect(args.socket)
        self.pid = args.node_pid
        self.admin = args.admin
        self.folder = pathlib.Path(args.data) / "peers"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        name = f"forebay://bench/run-{os.getpid()}"
        self.ckpt = forebay.Checkpoints(name, node=self.node, keep_last=1, on_error="raise", alarms="off", threads=THREADS)
        self.step = 0

    def save(self, found: dict[str, Any]) -> Any:
        self.step += 1
        return self.ckpt.save(self.step, found)

    def durable(self, found: dict[str, Any]) -> Any:
        handle = self.save(found)
        handle.durable().result(600)
        return handle

    def lake_bytes(self) -> float:
        with urllib.request.urlopen(f"{self.admin}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        name = "forebay_lake_read_bytes_total"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


def stall(args: argparse.Namespace, run: Run) -> None:
    """How long `save` holds up the trainer."""
    found = state()
    copies = [torch.empty_like(tensor) for tensor in tensors(found)]
    pairs = sorted(zip(tensors(found), copies, strict=True), key=lambda pair: -pair[0].nbytes)
    pool = concurrent.futures.ThreadPoolExecutor(THREADS)

    def memcpy() -> None:
        list(pool.map(lambda index: [target.copy_(source) for source, target in pairs[index::THREADS]], range(THREADS)))

    memcpy()
    run.durable(found)
    stalls, copied, dcp_saves, durable, written = [], [], [], [], []
    node_cpu = []
    for _ in range(args.rounds):
        for _ in range(2):
            change(found)
            copied.append(seconds(memcpy))
            before = cpu_seconds(run.pid)
            handle = run.durable(found)
            node_cpu.append((cpu_seconds(run.pid) - before) / (size(found) / 1e9))
            stalls.append(handle.report.stall_seconds)
            durable.append(handle.report.durable_seconds)
            copied[-1] = (copied[-1] + seconds(memcpy)) / 2
        change(found)
        dcp_saves += [seconds(lambda: peers.dcp_save(run.folder, found))] * 2
        written += [seconds(lambda: peers.plain_write(run.folder, tensors(found)))] * 2
    emit("stall by memcpy", ratio(stalls, copied))
    emit("stall by dcp save", ratio(stalls, dcp_saves))
    emit("durable by plain write", ratio(durable, written))
    emit("node cpu", node_cpu)
    emit("dcp save by plain write", ratio(dcp_saves, written))


def busy(args: argparse.Namespace, run: Run) -> None:
    """What a save costs a trainer whose steps keep every core busy."""
    found = state()
    left, right = torch.rand(STEP, STEP), torch.rand(STEP, STEP)
    torch.set_num_threads(os.cpu_count() or 1)
    run.durable(found)
    peers.dcp_save(run.folder, found)

    def dcp_saves() -> float:
        return statistics.median(seconds(lambda: peers.dcp_save(run.folder, found)) for _ in range(2))

    one = statistics.median(seconds(lambda: left @ right) for _ in range(50))
    count = max(20, int(2.5 * dcp_saves() / one))

    def steps(save: Callable[[], Any] | None) -> float:
        def work() -> None:
            for index in range(count):
                if index == count // 10 and save is not None:
                    save()
                left @ right

        return seconds(work)

    cost, asynchronous, times = [], [], []
    for _ in range(args.rounds):
        change(found)
        handles: list[Any] = []
        futures: list[Any] = []
        # The disk is not as quick every second: the save that is compared with comes before and after.
        dcp = dcp_saves()
        alone = steps(None)
        ours = steps(lambda: handles.append(run.save(found)))  # noqa: B023
        handles[0].durable().result(600)
        theirs = steps(lambda: futures.append(peers.dcp_async(run.folder, found)))  # noqa: B023
        futures[0].result()
        alone = (alone + steps(None)) / 2
        dcp = (dcp + dcp_saves()) / 2
        times.append(handles[0].report.durable_seconds / dcp)
        cost.append((ours - alone) / dcp)
        asynchronous.append((theirs - alone) / dcp)
    emit("stall and slow-down by dcp save", cost)
    emit("durable by dcp save", times)
    emit("dcp async stall and slow-down", asynchronous)


def load(args: argparse.Namespace, run: Run) -> None:
    """Into tensors that are there, everything proved."""
    found = state()
    run.durable(found)
    peers.plain_write(run.folder, tensors(found))
    peers.dcp_save(run.folder, found)
    read, ours = lambda: peers.plain_read(run.folder, tensors(found)), lambda: run.ckpt.load(run.step, into=found)
    read()
    ours()
    mine, plain = abba(ours, read, args.rounds)
    emit("load by plain read", ratio(mine, plain))
    again, dcp = abba(ours, lambda: peers.dcp_load(run.folder, found), args.rounds)
    emit("dcp load by ours", ratio(dcp, again))


def others(args: argparse.Namespace, run: Run) -> None:
    """Other ways to keep the same state, against plain bytes to and from the same file system."""
    found = state()
    emit("state", [size(found) / 1e9])
    for name, (save, back) in peers.PEERS.items():
        save(run.folder, found)
        writes, plain = abba(lambda: save(run.folder, found), lambda: peers.plain_write(run.folder, tensors(found)), 1)  # noqa: B023
        emit(f"{name} save", ratio(writes, plain))
        reads, plain = abba(lambda: back(run.folder, found), lambda: peers.plain_read(run.folder, tensors(found)), 1)  # noqa: B023
        emit(f"{name} load", ratio(reads, plain))


def views(args: argparse.Namespace, run: Run) -> None:
    """Four processes that open one model."""
    model = {"model": state()["model"]}
    run.durable(model)
    context = multiprocessing.get_context("spawn")
    before = run.lake_bytes()
    ready, end = context.Queue(), context.Event()
    job = (args.socket, run.ckpt.root, run.step, ready, end)
    processes = [context.Process(target=peers.open_views, args=job) for _ in range(4)]
    for process in processes:
        process.start()
    opened = [ready.get(timeout=300) for _ in processes]
    used = sum(peers.pss(pid) - before for pid, before in opened)
    end.set()
    for process in processes:
        process.join()
    emit("views memory", [used / size(model)])
    emit("views lake bytes", [(run.lake_bytes() - before) / size(model)])


def frozen(args: argparse.Namespace, run: Run) -> None:
    """A second save of which nine tenths did not change."""
    found = state(4)
    run.durable(found)
    small = sorted(tensors(found), key=lambda tensor: tensor.nbytes)
    left = size(found) // 10
    for tensor in small:
        if tensor.nbytes <= left:
            left -= tensor.nbytes
            tensor.add_(1)
    report = run.durable(found).report
    emit("bytes written again", [report.bytes_written / report.bytes])


def steps_of(run: Run, name: str, **options: Any) -> forebay.Checkpoints:
    return forebay.Checkpoints(f"forebay://bench/{name}", node=run.node, on_error="raise", alarms="off", threads=THREADS, **options)


def differential(args: argparse.Namespace, run: Run) -> None:
    """Steps that are stored as differences, until one is stored whole again; and the state of the last of the chain, whole."""
    found = state(4)
    with steps_of(run, "chain", differential="auto") as chain, steps_of(run, "whole") as whole:
        chain.save(1, found).durable().result(600)
        reports: list[Any] = []
        while len(reports) < 32:
            for tensor in tensors(found):
                tensor.view(-1)[::3].mul_(1.0009765625)
            report = chain.save(len(reports) + 2, found).durable().result(600)
            if reports and report.bytes_encoded < reports[-1].bytes_encoded / 2:
                break
            reports.append(report)
            if report.bytes_encoded == 0:
                raise SystemExit("nothing was stored as a difference")
        end = len(reports) + 1
        chain.load(end, into=found)
        whole.save(end, found).durable().result(600)
        whole.load(end, into=found)
        encoded, plain = abba(lambda: chain.load(end, into=found), lambda: whole.load(end, into=found), args.rounds)
    emit("differential bytes", [reports[-1].bytes_written / reports[-1].bytes])
    emit("differential chain", [len(reports)])
    emit("differential warm", ratio(encoded, plain))


def restore(args: argparse.Namespace, run: Run) -> None:
    """Both of them from a cold node before a slow lake: what a job waits for that starts again."""
    found = state(4)
    with steps_of(run, "chain") as chain, steps_of(run, "whole") as whole:
        end = whole.latest()
        encoded, plain = seconds(lambda: chain.load(end, into=found)), seconds(lambda: whole.load(end, into=found))
    emit("restore", [encoded / plain])


def memory(args: argparse.Namespace, run: Run) -> None:
    """Private memory of trainer and node, at its highest, beyond what they had when nothing was saved."""
    found = state()
    run.durable(found)
    pids = [os.getpid(), run.pid]
    used = []
    for _ in range(args.rounds):
        change(found)
        before = sum(map(peers.private_bytes, pids))
        highest, over = [before], threading.Event()

        def watch(highest: list[int] = highest, over: threading.Event = over) -> None:
            while not over.wait(0.01):
                highest[0] = max(highest[0], sum(map(peers.private_bytes, pids)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        run.durable(found)
        over.set()
        watcher.join()
        used.append((highest[0] - before) / (1 << 20))
    emit("memory", used)


GROUPS = {"stall": stall, "busy": busy, "load": load, "views": views, "frozen": frozen, "memory": memory, "others": others}
GROUPS |= {"differential": differential, "restore": restore}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--node-pid", type=int, required=True)
    parser.add_argument("--admin", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    run = Run(args)
    if "bench" not in run.node.buckets():
        run.node.create_bucket("bench")
    GROUPS[args.group](args, run)
    run.ckpt.close()
    shutil.rmtree(run.folder)


if __name__ == "__main__":
    main()
