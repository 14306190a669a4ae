"""A state taken apart and put together again, without a node: what is kept, what is refused, what is filled in place."""

import collections
import ctypes
import random

import numpy
import pytest

import forebay
from forebay._restore import NEW, Restore
from forebay._state import flatten, merged


class Machine:
    """Has a state, as optimizers and samplers do."""

    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = dict(state)


Pair = collections.namedtuple("Pair", "left right")


def restored(flat, into=NEW, tree=None, **options):
    """Put together what `flatten` gave, with copies of its memory in the place of a lake."""
    tensors = {name: (piece.dtype, piece.shape) for name, piece in flat.pieces}
    kept = {name: ctypes.string_at(piece.address, piece.nbytes) for name, piece in flat.pieces}
    objects = {name: (kind, data) for name, kind, data in flat.objects}
    restore = Restore(tensors, objects.__getitem__, **options)
    state = restore.plan(flat.tree if tree is None else tree, into)
    for name, piece in restore.wants:
        assert piece.is_whole
        ctypes.memmove(piece.address, kept[name], piece.nbytes)
    restore.finish()
    return state


STATE = {
    "plain": [None, True, False, 0, -7, 1 << 60, -(1 << 200), 1.5, float("inf"), -0.0, "text", "\ud800", ("a", [1, ()])],
    "long": "x" * 10_000,
    "raw": b"\x00\xff",
    "array": bytearray(b"abc"),
    "keys": {7: "int", "1.5": "text", None: "none", True: "bool", 2.5: "float", ("a", 1): "tuple"},
    "ordered": collections.OrderedDict([("z", 1), ("a", 2)]),
    "numbers": {"f32": numpy.float32(0.1), "i64": numpy.int64(-3), "b": numpy.bool_(True)},
    "python rng": random.Random(7).getstate(),
}


def test_what_is_not_a_tensor_comes_back_equal_and_of_the_same_type():
    back = restored(flatten(STATE))
    assert back == STATE
    assert repr(back) == repr(STATE)
    assert type(back["ordered"]) is collections.OrderedDict and list(back["ordered"]) == ["z", "a"]
    assert numpy.isnan(restored(flatten([float("nan")]))[0])


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "float32", "complex64", "float64", "uint64"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_arrays_come_back_as_they_were(dtype, shape):
    array = (numpy.arange(numpy.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    back = restored(flatten({"a": array}))["a"]
    assert back.dtype == array.dtype and back.shape == shape and numpy.array_equal(back, array)


def test_arrays_that_are_not_plain_memory_are_copied_and_counted():
    base = numpy.arange(24.0).reshape(4, 6)
    flat = flatten({"t": base.T, "cut": base[:, ::2], "big": base.astype(">f8"), "plain": base})
    assert flat.copied_bytes == base.nbytes * 2 + base[:, ::2].nbytes
    back = restored(flat)
    assert numpy.array_equal(back["t"], base.T) and numpy.array_equal(back["cut"], base[:, ::2])
    assert numpy.array_equal(back["big"], base)


def test_memory_with_two_names_is_kept_once_and_shared_again():
    shared = numpy.arange(10)
    flat = flatten({"embed": shared, "head": {"weight": shared}, "other": shared[:5]})
    assert [name for name, _ in flat.pieces] == ["embed", "other"]
    back = restored(flat)
    assert back["embed"] is back["head"]["weight"] and back["other"] is not back["embed"]


class Fresh:
    """Makes its state anew whenever it is asked, as optimizers that convert theirs do."""

    def __init__(self, seed):
        self.seed = seed

    def state_dict(self):
        return {"m": numpy.full((64, 64), self.seed, "f8").T}


def test_memory_that_is_freed_and_given_to_another_array_is_not_taken_for_the_same():
    flat = flatten({str(seed): Fresh(seed) for seed in range(20)})
    assert [name for name, _ in flat.pieces] == [f"{seed}.m" for seed in range(20)]
    back = restored(flat)
    assert [back[str(seed)]["m"][0, 0] for seed in range(20)] == list(range(20))


def test_arrays_are_filled_in_place_and_the_rest_is_replaced():
    flat = flatten({"w": numpy.arange(6.0).reshape(2, 3), "step": 9, "list": [1, numpy.ones(2)], "pair": Pair(1, 2)})
    weight, part = numpy.zeros((2, 3)), numpy.zeros(2)
    into = {"w": weight, "step": 0, "list": [0, part], "pair": Pair(0, 0)}
    assert restored(flat, into) is into
    assert into["w"] is weight and weight[1, 2] == 5 and into["step"] == 9
    assert into["list"][1] is part and part.tolist() == [1, 1] and into["list"][0] == 1
    assert into["pair"] == Pair(1, 2) and type(into["pair"]) is Pair


def test_targets_that_are_not_plain_memory_are_filled_too():
    flat = flatten({"w": numpy.arange(6.0).reshape(2, 3)})
    target = numpy.zeros((3, 2)).T
    restored(flat, {"w": target})
    assert target.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_state_that_does_not_fit_is_refused_with_every_name_and_left_alone():
    flat = flatten({"a": numpy.ones(3), "b": numpy.ones(3), "c": {"x": 1}, "only step": 1})
    into = {"a": numpy.zeros(4), "b": numpy.zeros(3, "f4"), "c": {"y": 1}, "only state": 2}
    with pytest.raises(forebay.InvalidInputError) as refused:
        restored(flat, into)
    for word in ["a is F64 [4]", "b is F32 [3]", "c.x", "c.y", "only step", "only state"]:
        assert word in str(refused.value), word
    assert into["a"].sum() == 0 and into["c"] == {"y": 1} and into["only state"] == 2


def test_not_strict_loads_what_fits():
    flat = flatten({"a": numpy.ones(3), "gone": 1})
    into = {"a": numpy.zeros(3), "new": 5}
    restored(flat, into, strict=False)
    assert into["a"].sum() == 3 and into["new"] == 5 and "gone" not in into


def test_names_choose_what_is_loaded():
    flat = flatten({"model": {"a": numpy.ones(2), "b": numpy.ones(2)}, "optim": {"a": numpy.ones(2)}, "step": 4})
    back = restored(flat, names=lambda name: name.startswith("model.a") or name == "step")
    assert set(back) == {"model", "step"} and set(back["model"]) == {"a"}


def test_an_object_with_a_state_dict_gets_it_back():
    moment = numpy.arange(4.0)
    flat = flatten({"optim": Machine(state={0: {"m": moment}}, lr=0.5)})
    fresh = Machine(state={}, lr=0.0)
    restored(flat, {"optim": fresh})
    assert fresh.state["lr"] == 0.5 and numpy.array_equal(fresh.state["state"][0]["m"], moment)
    warm = Machine(state={0: {"m": numpy.zeros(4)}}, lr=0.0)
    mine = warm.state["state"][0]["m"]
    restored(flat, {"optim": warm})
    assert warm.state["state"][0]["m"] is mine and numpy.array_equal(mine, moment)


def test_pickles_are_made_and_loaded_only_when_asked():
    state = {"odd": {1, 2}}
    with pytest.raises(forebay.UnsupportedError, match="allow_pickle"):
        flatten(state)
    flat = flatten(state, allow_pickle=True)
    with pytest.raises(forebay.UnsupportedError, match="allow_pickle"):
        restored(flat)
    assert restored(flat, allow_pickle=True) == state


def test_names_that_join_to_one_are_refused():
    with pytest.raises(forebay.InvalidInputError, match=r"a\.b"):
        flatten({"a": {"b": numpy.ones(1)}, "a.b": numpy.ones(1)})


def test_a_state_that_holds_itself_is_refused():
    state = {}
    state["me"] = state
    with pytest.raises(forebay.InvalidInputError, match="holds itself"):
        flatten(state)


def test_each_rank_gets_its_own_values_back_and_a_new_rank_those_of_the_first():
    states = [{"seed": 10, "same": 1}, {"seed": 11, "same": 1, "extra": 5}]
    flats = [flatten(state) for state in states]
    tree = merged([flat.tree for flat in flats])
    assert restored(flats[0], tree=tree, rank=0)["seed"] == 10
    assert restored(flats[0], tree=tree, rank=1)["seed"] == 11
    assert restored(flats[0], tree=tree, rank=7) == {"seed": 10, "same": 1, "extra": 5}
    into = {"seed": 0, "same": 0}
    assert restored(flats[0], into, tree=tree) == {"seed": 10, "same": 1}, "what only others had is not unexpected"
