"""Many processes read checked bytes while the cache is far too small for what they read.

Every word of an object says whose it is and where it lies, so a byte of another object, version or place cannot pass. Most reads go to a few
objects that change as time goes on, the others anywhere. Readers hold some views while others are read, and one process replaces objects meanwhile. `FOREBAY_TEST_READS` says how many reads are made: `cargo xtask test` makes
a tenth of a million, `cargo xtask test --all` the whole million.
"""

import multiprocessing
import os
import random
import time
from array import array

import pytest

import forebay
from conftest import socket_of

PROCESSES = 8
READS = int(os.environ.get("FOREBAY_TEST_READS", "100000"))
OBJECTS = 64
#: Sizes that are no multiples of anything; together about three times the RAM tier.
SIZES = [(40_961 + 7 * number) * 8 + (1 << 20) * (number % 6) for number in range(OBJECTS)]
RANGE_WORDS_MAX = 512
#: Objects that most reads go to, for so many reads of a process, and one read in how many goes elsewhere.
HOT, HOT_READS, ELSEWHERE = 6, 1000, 16
BATCH = 25
HELD_MAX = 40
SECONDS_MAX = 200 + READS // 200


def words(number: int, generation: int, start: int, count: int) -> bytes:
    """Words of an object: its number, its generation and the place of the word."""
    base = number << 56 | generation << 40
    return array("Q", range(base + start, base + start + count)).tobytes()


def generation_of(view: memoryview) -> int:
    return int.from_bytes(view[:8], "little") >> 40 & 0xFFFF


def check(view: forebay.View, number: int, start: int, count: int) -> None:
    with memoryview(view) as memory:
        expected = words(number, generation_of(memory), start, count)
        if memory != expected:
            raise AssertionError(f"wrong bytes in object {number} at word {start}")


def reader(address: str, seed: int, reads: int) -> None:
    """Reads in batches, holds some of the views for a while, and checks those again before it lets them go."""
    node = forebay.connect(address)
    choose = random.Random(seed)
    held: list[tuple[forebay.View, int, int, int]] = []
    done = 0
    while done < reads:
        places = []
        for _ in range(BATCH):
            first, among = (0, OBJECTS) if choose.randrange(ELSEWHERE) == 0 else (done // HOT_READS * 5, HOT)
            number = (first + choose.randrange(among)) % OBJECTS
            count = choose.randint(1, RANGE_WORDS_MAX)
            places.append((number, choose.randrange(SIZES[number] // 8 - count), count))
        items = [(f"box/{number}", start * 8, count * 8) for number, start, count in places]
        for view, place in zip(node.get_batch(items), places, strict=True):
            check(view, *place)
            if choose.random() < 0.05:
                held.append((view, *place))
        while len(held) > HELD_MAX:
            view, *place = held.pop(choose.randrange(len(held)))
            check(view, *place)
            view.release()
        done += BATCH
    for view, *place in held:
        check(view, *place)


def writer(address: str, stop) -> None:
    """Replaces objects, so that versions change under the readers."""
    node = forebay.connect(address)
    choose = random.Random(0)
    generation = 1
    while not stop.wait(0.2):
        generation += 1
        number = choose.randrange(OBJECTS)
        node.put(f"box/{number}", words(number, generation, 0, SIZES[number] // 8))


@pytest.mark.timeout(SECONDS_MAX + 40)
def test_not_one_wrong_byte_from_eight_processes_under_eviction(daemon):
    process = daemon(ram="64MiB", nvme="64MiB")
    address = str(socket_of(process))
    with forebay.connect(address) as node:
        node.create_bucket("box")
        for number, size in enumerate(SIZES):
            node.put(f"box/{number}", words(number, 1, 0, size // 8))
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    changing = spawn.Process(target=writer, args=(address, stop))
    readers = [spawn.Process(target=reader, args=(address, seed, READS // PROCESSES)) for seed in range(1, PROCESSES + 1)]
    deadline = time.monotonic() + SECONDS_MAX
    changing.start()
    try:
        for one in readers:
            one.start()
        for one in readers:
            one.join(max(0, deadline - time.monotonic()))
        stop.set()
        changing.join(60)
        assert [one.exitcode for one in readers] == [0] * PROCESSES
        assert changing.exitcode == 0
    finally:
        for one in [*readers, changing]:
            one.kill()
    assert process.metric("forebay_evicted_pages_total", tier="ram") > 0, "there was no pressure"
    with forebay.connect(address) as node:
        assert node.ping() is None
    assert process.metric("forebay_native_leases") == 0
