"""asyncio: the same calls, cancellation."""

import asyncio

import pytest

import forebay
from conftest import socket_of, stalled
from forebay_node import wait_for


def test_calls_of_asyncio_do_what_the_others_do(node, bucket):
    async def work():
        aio = node.aio
        await aio.put(f"{bucket}/a", b"aaaa")
        buffer = await aio.alloc(4)
        with memoryview(buffer) as memory:
            memory[:] = b"bbbb"
        await aio.put(f"{bucket}/b", buffer)
        target = bytearray(2)
        assert await aio.read_into(f"{bucket}/a", target, 1) == 2
        assert await aio.read(f"{bucket}/b", 1, 2) == b"bb"
        views = await aio.get_batch([f"{bucket}/a", (f"{bucket}/b", 0, 1)])
        assert [bytes(view) for view in views] == [b"aaaa", b"b"]
        assert [info.name async for info in aio.list(bucket)] == [f"{bucket}/a", f"{bucket}/b"]
        assert (await aio.stat(f"{bucket}/a")).bytes == 4
        await aio.delete(f"{bucket}/a")
        assert not await aio.exists(f"{bucket}/a")
        with pytest.raises(FileNotFoundError):
            await aio.get(f"{bucket}/a")

    asyncio.run(work())


def test_many_calls_run_at_once(node, bucket):
    async def work():
        await asyncio.gather(*(node.aio.put(f"{bucket}/{index}", bytes([index])) for index in range(64)))
        views = await asyncio.gather(*(node.aio.get(f"{bucket}/{index}") for index in range(64)))
        assert [bytes(view) for view in views] == [bytes([index]) for index in range(64)]

    asyncio.run(work())


def test_a_cancelled_task_stops_its_thread(daemon):
    process = daemon()
    node = forebay.connect(str(socket_of(process)))
    node.create_bucket("demo")
    node.put("demo/a", b"a")
    with stalled(process):

        async def work():
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(node.aio.get("demo/a"), 0.2)

        asyncio.run(work())
        pool = node.aio._pool
        # Long before the call's own timeout.
        wait_for("the thread to be free", lambda: pool.submit(lambda: True).result(20) and _idle(pool))
    assert bytes(node.get("demo/a")) == b"a"


def _idle(pool) -> bool:
    """All threads of the pool wait for work: each has given its semaphore back."""
    return pool._idle_semaphore._value >= len(pool._threads)
