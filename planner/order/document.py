"""Graphs to order, read from JSON: operators, the storages that they read, make and overwrite, and their sizes.

::

    {"ops": [{"name": "add_", "ins": [3, 4], "new": [], "mut": [3], "view": false, "workspace": 0}, ...],
     "size": {"3": 4096, ...}, "inputs": [3], "outputs": [9]}

``workspace`` may be left out; fields besides these are ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError

from monet.errors import ConfigError
from monet.planner.order.graph import InvalidGraph, Node, OrderGraph

_Bytes = Annotated[StrictInt, Field(ge=0)]
_Storages = tuple[StrictInt, ...]


class _Operator(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    ins: _Storages
    new: _Storages
    mut: _Storages = ()
    view: StrictBool = False
    workspace: _Bytes = 0


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    ops: tuple[_Operator, ...]
    size: dict[int, _Bytes]
    inputs: _Storages
    outputs: _Storages


def load_graph(path: Path) -> OrderGraph:
    """The graph in ``path``. An output that is an input, too, is not counted: it is there from the start.

    Raises ``ConfigError``: the file cannot be read, is not such a document, or is not a graph.
    """
    try:
        document = _Document.model_validate_json(path.read_bytes())
        inputs = frozenset(document.inputs)
        nodes = tuple(Node(op.name, op.ins, op.new, op.mut, op.workspace, op.view) for op in document.ops)
        return OrderGraph(nodes, document.size, inputs, frozenset(document.outputs) - inputs)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the document"
        raise ConfigError(f"{path} is no graph to order: {place}: {first['msg']}") from None
    except InvalidGraph as error:
        raise ConfigError(f"{path} is no graph to order: {error}") from None
