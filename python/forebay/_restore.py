"""From a tree back to a state: new, or into one that is there.

Nothing is touched while it is found out what has to be read where: a state that does not fit the step is refused as it
is, with all that is missing, unexpected or of another shape. Then the caller reads the wants, and `finish` puts in what
is not a tensor.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from forebay._state import Node
from forebay._tensors import Piece, Target, empty, empty_like, library, targets, word_of
from forebay.errors import InvalidInputError, UnsupportedError

#: What stands where nothing is to be loaded into.
NEW = object()
#: Entries named in an error.
_NAMED_MAX = 10


class Restore:
    """One loading of one step by one rank."""

    def __init__(
        self,
        tensors: Mapping[str, tuple[str, tuple[int, ...]]],
        read_object: Callable[[str], tuple[str, bytes]],
        *,
        rank: int = 0,
        strict: bool = True,
        allow_pickle: bool = False,
        names: Callable[[str], bool] | None = None,
        later_bytes_min: int | None = None,
    ) -> None:
        self.tensors = tensors
        self.read_object = read_object
        self.rank = rank
        self.strict = strict
        self.allow_pickle = allow_pickle
        #: Which entries to load, by name; the others are left out, or as they are.
        self.names = names
        self.later_bytes_min = later_bytes_min
        #: What is to be read where.
        self.wants: list[tuple[str, Piece]] = []
        #: What cannot be read where it belongs, and is large: see `Target.beside`.
        self.later: list[tuple[str, Target]] = []
        #: What the state has and the step has not.
        self.missing: list[str] = []
        #: What the step has and the state has not.
        self.unexpected: list[str] = []
        #: What differs in shape or type.
        self.different: list[str] = []
        self._after: list[Callable[[], object]] = []
        #: Values that were put into a state, other than by filling its tensors.
        self._puts = 0
        #: Whether entries that the step has and the state has not are added to it.
        self._grows = False
        #: Tensors made here, by name: names that shared memory share it again.
        self._made: dict[str, Any] = {}

    def plan(self, tree: Node, into: Any = NEW, path: tuple[Any, ...] = ()) -> Any:
        """Return the state as it will be, once the wants are read and `finish` was called; the tree lies at `path`."""
        state = self._node(tree, into, path)
        problems = list(self.different)
        if self.strict:
            problems += [f"missing in the step: {name}" for name in self.missing]
            problems += [f"not in the state: {name}" for name in self.unexpected]
        if problems:
            more = len(problems) - _NAMED_MAX
            shown = "; ".join(problems[:_NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
            raise InvalidInputError(
                f"the state does not fit the step, nothing was loaded: {shown}"
                + ("" if self.different else " (strict=False loads what fits)")
            )
        return state

    def finish(self) -> None:
        """Put everything in its place that was not read there."""
        for step in self._after:
            step()
        self._after.clear()

    # --- nodes ---

    def _node(self, node: Node, into: Any, path: tuple[Any, ...]) -> Any:
        if not isinstance(node, list):
            return node
        tag = node[0]
        if tag == "r":
            return self._node(self._of_rank(node), into, path)
        if tag == "t":
            return self._tensor(node[1], node[2], into, path)
        if into is not NEW and library(into) in ("t", "n"):
            self.different.append(f"{_name(path)} is a tensor in the state, and something else in the step")
            return into
        if tag == "s":
            return self._of_object(node[1], into, path)
        if into is not NEW and hasattr(into, "load_state_dict") and tag in ("d", "o"):
            return self._of_object(node, into, path)
        if tag in ("d", "o"):
            return self._dict(node, into, path)
        if tag in ("l", "u"):
            return self._sequence(node, into, path)
        if tag == "g":
            return _numpy_scalar(node[1], node[2])
        return self._value(tag, node[1], path)

    def _of_rank(self, node: Node) -> Node:
        for ranks, variant in node[1:]:
            if self.rank in ranks:
                return variant
        return node[1][1]

    def _dict(self, node: Node, into: Any, path: tuple[Any, ...]) -> Any:
        items = {_key(key): (value, ranks) for key, value, *ranks in node[1:]}
        wanted = {key: pair for key, pair in items.items() if self._is_wanted(pair[0], (*path, key))}
        if into is NEW or self._grows or not isinstance(into, MutableMapping):
            old = into if isinstance(into, Mapping) else {}
            made = [(key, self._node(value, old.get(key, NEW), (*path, key))) for key, (value, _) in wanted.items()]
            return OrderedDict(made) if node[0] == "o" else dict(made)
        for key, (value, ranks) in wanted.items():
            if key in into:
                self._put(into, key, self._node(value, into[key], (*path, key)))
            elif not ranks:
                self.unexpected.append(_name((*path, key)))
        absent = (_name((*path, key)) for key in into if key not in items)
        self.missing += [name for name in absent if self.names is None or self.names(name)]
        return into

    def _put(self, into: Any, key: Any, value: Any) -> None:
        if value is not into[key]:
            self._puts += 1
            self._after.append(lambda: into.__setitem__(key, value))

    def _sequence(self, node: Node, into: Any, path: tuple[Any, ...]) -> Any:
        fits = into is not NEW and isinstance(into, (list, tuple)) and len(into) == len(node) - 1
        olds = into if fits else [NEW] * (len(node) - 1)
        values = [
            self._node(value, old, (*path, index))
            for index, (value, old) in enumerate(zip(node[1:], olds, strict=True))
        ]
        if fits and isinstance(into, list):
            for index, value in enumerate(values):
                self._put(into, index, value)
            return into
        if node[0] == "l":
            return values
        kind = type(into) if fits else tuple
        # A named tuple takes its fields one by one.
        return kind(*values) if hasattr(kind, "_fields") else tuple(values)

    def _of_object(self, node: Node, into: Any, path: tuple[Any, ...]) -> Any:
        """State of an object: its tensors are filled in place, the rest it gets by `load_state_dict`."""
        if into is NEW or isinstance(into, Mapping) or not hasattr(into, "load_state_dict"):
            return self._node(node, into, path)
        is_module = hasattr(into, "named_parameters")
        puts, grows = self._puts, self._grows
        # A module knows what it consists of; others, such as optimizers, learn it from the state they are given.
        self._grows = not is_module
        filled = self._node(node, _own_state(into), path)
        self._grows = grows
        if not is_module or self._puts != puts:
            strict = {"strict": False} if is_module and not self.strict else {}
            self._after.append(lambda: into.load_state_dict(filled, **strict))
        return into

    def _tensor(self, name: str, kind: str, into: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(into, _StateOfParameter):
            return self._like(name, kind, into.parameter)
        if into is not NEW and library(into) in ("t", "n") and self._fill(name, into, path):
            return into
        if name in self._made:
            return self._made[name]
        word, shape = self._described(name)
        made = empty(word, shape, kind)
        self._want(name, targets(made, name))
        self._made[name] = made
        return made

    def _like(self, name: str, kind: str, parameter: Any) -> Any:
        """A new tensor of an optimizer, spread over ranks as its parameter is, if it has the parameter's shape."""
        word, shape = self._described(name)
        if tuple(parameter.shape) != shape or not hasattr(parameter, "device_mesh"):
            return self._tensor(name, kind, NEW, ())
        made = empty_like(word, parameter)
        self._want(name, targets(made, name, later_bytes_min=self.later_bytes_min))
        return made

    def _fill(self, name: str, into: Any, path: tuple[Any, ...]) -> bool:
        """Take a tensor that is there; `False` if a new one is to be made instead."""
        word, shape = self._described(name)
        mine = tuple(getattr(into, "global_shape", into.shape)), word_of(into, name)
        if mine != (shape, word):
            if self._grows:
                return False
            self.different.append(
                f"{_name(path)} is {mine[1]} {list(mine[0])} in the state, and {word} {list(shape)} in the step"
            )
        else:
            self._want(name, targets(into, name, later_bytes_min=self.later_bytes_min))
        return True

    def _want(self, name: str, found: list[Target]) -> None:
        for target in found:
            if target.beside is not None:
                self.later.append((name, target))
                continue
            self.wants.append((name, target.piece))
            if target.finish is not None:
                self._after.append(target.finish)

    def _described(self, name: str) -> tuple[str, tuple[int, ...]]:
        found = self.tensors.get(name)
        if found is None:
            raise InvalidInputError("the tree of the step names a tensor that it has not", [("tensor", name)])
        return found

    def _value(self, tag: str, text: str, path: tuple[Any, ...]) -> Any:
        if tag == "f":
            return float.fromhex(text)
        if tag == "i":
            return int(text)
        if tag == "x":
            return base64.b64decode(text).decode("utf-8", "surrogatepass")
        if tag == "T":
            return _of_torch(text)
        if tag in ("b", "B", "S"):
            _, data = self.read_object(text)
            if tag == "B":
                return bytearray(data)
            return data if tag == "b" else data.decode()
        if tag == "p":
            return self._unpickled(text, path)
        if tag == "j":
            return self._json(text, path)
        raise UnsupportedError("the step was written by a newer forebay; update forebay to load it", [("node", tag)])

    def _json(self, name: str, path: tuple[Any, ...]) -> Any:
        """An entry that PyTorch's DCP saved: a tree in JSON, or what `torch.save` made of it."""
        kind, data = self.read_object(name)
        if kind == "json":
            return self._node(json.loads(data), NEW, path)
        if not self.allow_pickle:
            raise refused_pickle(_name(path))
        import io

        import torch

        return torch.load(io.BytesIO(data), weights_only=False)

    def _unpickled(self, name: str, path: tuple[Any, ...]) -> Any:
        if not self.allow_pickle:
            raise refused_pickle(_name(path))
        _, data = self.read_object(name)
        return pickle.loads(data)

    def _is_wanted(self, node: Node, path: tuple[Any, ...]) -> bool:
        """Whether something at or below a node is to be loaded."""
        if self.names is None:
            return True
        if isinstance(node, list):
            if node[0] in ("d", "o"):
                return any(self._is_wanted(value, (*path, _key(key))) for key, value, *_ in node[1:])
            if node[0] in ("l", "u"):
                return any(self._is_wanted(value, (*path, index)) for index, value in enumerate(node[1:]))
            if node[0] in ("s", "r"):
                inner = node[1] if node[0] == "s" else self._of_rank(node)
                return self._is_wanted(inner, path)
        return self.names(_name(path))


class _Own(dict[Any, Any]):
    """A state dict of an object, to be changed without changing the object's own."""

    @classmethod
    def of(cls, state: Any) -> Any:
        if isinstance(state, Mapping):
            return cls((key, cls.of(value)) for key, value in state.items())
        if isinstance(state, list):
            return [cls.of(value) for value in state]
        return state


class _StateOfParameter(Mapping[Any, Any]):
    """What an optimizer that has not stepped yet has for a parameter: nothing, but it will look like the parameter."""

    def __init__(self, parameter: Any) -> None:
        self.parameter = parameter

    def __getitem__(self, key: Any) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _own_state(owner: Any) -> Any:
    """The state of an object, and for an optimizer of torch what it will have for parameters without a state yet."""
    state = _Own.of(owner.state_dict())
    groups = getattr(owner, "param_groups", None)
    if groups is None or not isinstance(state, dict) or not isinstance(state.get("state"), dict):
        return state
    parameters = [parameter for group in groups for parameter in group["params"]]
    for number, parameter in enumerate(parameters):
        state["state"].setdefault(number, _StateOfParameter(parameter))
    return state


def _key(key: Node) -> Any:
    if not isinstance(key, list):
        return key
    if key[0] == "u":
        return tuple(_key(one) for one in key[1:])
    if key[0] == "f":
        return float.fromhex(key[1])
    if key[0] == "i":
        return int(key[1])
    return base64.b64decode(key[1]).decode("utf-8", "surrogatepass")


def refused_pickle(name: str) -> UnsupportedError:
    """Return the error for an entry that only unpickling could load."""
    message = "this entry is a pickle, which can run any code: use allow_pickle=True if you trust who wrote it"
    return UnsupportedError(message, [("entry", name)])


def _numpy_scalar(dtype: str, text: str) -> Any:
    import numpy

    return numpy.frombuffer(base64.b64decode(text), dtype=dtype)[0]


def _of_torch(text: str) -> Any:
    import torch

    kind, _, rest = text.partition(":")
    if kind == "device":
        return torch.device(rest)
    if kind == "size":
        return torch.Size(json.loads(rest))
    found = getattr(torch, text.removeprefix("torch."), None)
    # A step names types of torch here, and nothing else of it.
    if not isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
        raise UnsupportedError(f"this version of torch has no type {text}; update torch", [("type", text)])
    return found


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(str(key) for key in path) or "value"
