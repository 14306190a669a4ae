"""PyTorch's distributed checkpoints (DCP) as steps of a run: staged by one copy, committed whole, verified when read.

```python
import forebay.dcp
import torch.distributed.checkpoint as dcp

dcp.save(state, checkpoint_id="forebay://lake/run-7/step-100")
dcp.load(state, checkpoint_id="forebay://lake/run-7/step-100")
future = forebay.dcp.async_save(state, checkpoint_id="forebay://lake/run-7/step-200")
```

The import makes PyTorch choose the classes here for ids that begin with `forebay://`. Without it, PyTorch writes its
own files through fsspec. `async_save` is the one call that is better made here: PyTorch's does not ask for the writer
before it stages.
"""

from __future__ import annotations

import os
from typing import Any

import torch.distributed.checkpoint as _dcp

from forebay.dcp._choice import install
from forebay.dcp._reader import StorageReader
from forebay.dcp._stager import Stager
from forebay.dcp._writer import StorageWriter

__all__ = ["Stager", "StorageReader", "StorageWriter", "async_save", "load", "save"]

install()


def save(state_dict: dict[str, Any], checkpoint_id: str | os.PathLike[str], **options: Any) -> Any:
    """Save as `torch.distributed.checkpoint.save` does.

    Args:
        state_dict: The state.
        checkpoint_id: `forebay://bucket/run/step-100`.
        options: Those of `StorageWriter` and of PyTorch's `save`, together.

    """
    writer, rest = _writer(checkpoint_id, options)
    return _dcp.save(state_dict, storage_writer=writer, **rest)


def async_save(state_dict: dict[str, Any], checkpoint_id: str | os.PathLike[str], **options: Any) -> Any:
    """Save as `torch.distributed.checkpoint.async_save` does, staged in memory of the node.

    Returns:
        The future of PyTorch: done when the step is in the lake. When the call returns, the state may change, and this
        process may die.

    """
    writer, rest = _writer(checkpoint_id, options)
    return _dcp.async_save(state_dict, storage_writer=writer, **rest)


def load(state_dict: dict[str, Any], checkpoint_id: str | os.PathLike[str], **options: Any) -> None:
    """Load as `torch.distributed.checkpoint.load` does.

    Args:
        state_dict: The state to be filled.
        checkpoint_id: `forebay://bucket/run/step-100`.
        options: Those of `StorageReader` and of PyTorch's `load`, together.

    """
    ours = {name: options.pop(name) for name in _OF_READER if name in options}
    _dcp.load(state_dict, storage_reader=StorageReader(checkpoint_id, **ours), **options)


#: Options of `StorageReader`.
_OF_READER = ("step", "generation", "node", "thread_count", "allow_pickle")
#: Options that PyTorch takes, not the writer.
_OF_PYTORCH = {"planner", "process_group", "async_checkpointer_type", "use_collectives", "async_stager"}


def _writer(checkpoint_id: str | os.PathLike[str], options: dict[str, Any]) -> tuple[StorageWriter, dict[str, Any]]:
    rest = {name: value for name, value in options.items() if name in _OF_PYTORCH}
    ours = {name: value for name, value in options.items() if name not in _OF_PYTORCH}
    if "no_dist" in options:
        rest["no_dist"] = options["no_dist"]
    return StorageWriter(checkpoint_id, process_group=rest.get("process_group"), **ours), rest
