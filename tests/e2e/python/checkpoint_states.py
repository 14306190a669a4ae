"""States to save, and programs of ranks that save and load them in processes of their own."""

import contextlib
import json
import os
import subprocess
import sys
import textwrap

import numpy

SECONDS_MAX = 120


def small(seed: int = 0) -> dict:
    """A state with something of everything, other values for each seed."""
    rng = numpy.random.default_rng(seed)
    return {
        "model": {
            "embed": rng.standard_normal((64, 32)).astype("f4"),
            "layers": [{"w": rng.standard_normal((32, 32)).astype("f4"), "b": numpy.full(32, seed, "f8")} for _ in range(3)],
        },
        "optim": {"lr": 0.5 / (seed + 1), "m": {0: rng.standard_normal(100), 1: rng.integers(0, 9, 7)}},
        "scalar": numpy.array(seed, "i8"),
        "nothing": numpy.zeros((0, 4), "f4"),
        "note": "x" * 10_000,
        "raw": bytes([seed % 256]) * 100,
        "epoch": seed,
        "none": None,
    }


def blank(state):
    """The same state with other values, to be loaded into."""
    if isinstance(state, dict):
        return {key: blank(value) for key, value in state.items()}
    if isinstance(state, list):
        return [blank(value) for value in state]
    if isinstance(state, numpy.ndarray):
        return numpy.full_like(state, 99)
    return None


def equal(found, expected, at="state"):
    """Compare two states, with the place where they differ."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), at
        for key in expected:
            equal(found[key], expected[key], f"{at}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), at
        for index, value in enumerate(expected):
            equal(found[index], value, f"{at}.{index}")
    elif isinstance(expected, numpy.ndarray):
        assert found.dtype == expected.dtype and found.shape == expected.shape, at
        assert numpy.array_equal(found, expected), at
    else:
        assert found == expected and type(found) is type(expected), at


class Ranks:
    """Processes that run one program, each with its rank."""

    def __init__(self, program: str, world: int, address: str, env: dict[str, str] | None = None):
        text = textwrap.dedent(HEAD) + textwrap.dedent(program)
        self.processes = []
        for rank in range(world):
            here = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "NODE": address, **(env or {})}
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=here
                )
            )

    def results(self) -> list:
        """What each program gave to `tell`; an error shows all of its output."""
        found = []
        with self:
            for rank, process in enumerate(self.processes):
                out, err = process.communicate(timeout=SECONDS_MAX)
                assert process.returncode == 0, f"rank {rank}: {out}{err}"
                found.append(json.loads(out.splitlines()[-1]))
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.communicate()


#: What every program of a rank begins with.
HEAD = """
import json, os, numpy, forebay
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
node = forebay.connect(os.environ["NODE"])

def tell(value):
    print(json.dumps(value))

def rows(shape, parts, index):
    "The rows of a whole that one of several has."
    first, end = shape[0] * index // parts, shape[0] * (index + 1) // parts
    return first, end

def shard(whole, parts, index):
    first, end = rows(whole.shape, parts, index)
    return forebay.Shard(whole[first:end].copy(), offset=(first,) + (0,) * (whole.ndim - 1), shape=whole.shape)
"""


def run_ranks(program: str, world: int, address: str, **env: str) -> list:
    """Run a program in so many processes and return what each told."""
    return Ranks(program, world, address, env).results()
