"""``torch.no_grad`` inside of ``torch.autocast``, in a model that torch.export traces.

Torch 2.13's export cuts its graph where gradients are turned off, and looks for that call at the beginning of a part.
Inside of autocast a part begins with entering it, so the call is not found and is dropped: gradients would flow where
eager has none. Here the results in there are detached, which is what ``no_grad`` means to those who use them, and the
graph is not cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._export.passes.replace_set_grad_with_hop_pass as passes
from torch._subclasses.fake_tensor import FakeTensor

_amp = torch.amp.autocast_mode
_NAME = "replace_set_grad_with_hop_pass"


@contextmanager
def keeping_no_grad() -> Iterator[None]:
    """A context in which torch.export keeps ``no_grad`` inside of autocast."""
    real = getattr(passes, _NAME)

    def detaching(module: torch.fx.GraphModule, signature: Any) -> Any:
        _detach(module, signature)
        return real(module, signature)

    setattr(passes, _NAME, detaching)
    try:
        yield
    finally:
        setattr(passes, _NAME, real)


def _detach(module: torch.fx.GraphModule, signature: Any) -> None:
    """Where gradients are turned off in autocast; everywhere, if they are turned on or off in autocast inside of
    ``no_grad``: the export looks at neither there, and what is made under ``enable_grad`` has a gradient."""
    everywhere = _is_turned_inside(module.graph)
    graph = module.graph
    depth, outside, enabled = 0, True, True
    with module._set_replace_hook(signature.get_replace_hook()):
        for node in list(graph.nodes):
            depth += _entered(node)
            if node.target is torch._C._set_grad_enabled:
                enabled = bool(node.args[0])
                if depth == 0 and not everywhere:
                    outside = enabled
                elif outside:
                    graph.erase_node(node)
            elif outside and not enabled and (depth or everywhere) and _makes_a_tensor(node):
                with graph.inserting_after(node):
                    detached = graph.call_function(torch.ops.aten.detach.default, (node,))
                detached.meta = dict(node.meta)
                node.replace_all_uses_with(detached, delete_user_cb=lambda user, own=detached: user is not own)
    module.recompile()


def _is_turned_inside(graph: torch.fx.Graph) -> bool:
    depth, outside = 0, True
    for node in graph.nodes:
        depth += _entered(node)
        if node.target is torch._C._set_grad_enabled:
            if depth == 0:
                outside = bool(node.args[0])
            elif not outside:
                return True
    return False


def _entered(node: torch.fx.Node) -> int:
    """By how many contexts of autocast what follows is deeper."""
    return (node.target is _amp._enter_autocast) - (node.target is _amp._exit_autocast)


def _makes_a_tensor(node: torch.fx.Node) -> bool:
    """Whether its result may require a gradient, and is not just what it was given, as ``x.float()`` is for an ``x``
    in float32: that has its gradient in ``no_grad``, too, and later uses of it are traced as uses of this result."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return False
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or not isinstance(value, FakeTensor):
        return True
    given = [argument.meta.get("val") for argument in node.all_input_nodes]
    memory = {tensor.untyped_storage()._cdata for tensor in given if isinstance(tensor, FakeTensor)}
    if value.untyped_storage()._cdata not in memory:
        return True
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda argument: argument.meta.get("val"))
    with value.fake_mode, torch.no_grad():
        return all(target(*args, **kwargs) is not tensor for tensor in given)
