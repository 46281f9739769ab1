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
    depth, outside, enabled = 0, True, True
    graph = module.graph
    with module._set_replace_hook(signature.get_replace_hook()):
        for node in list(graph.nodes):
            if node.target is _amp._enter_autocast:
                depth += 1
            elif node.target is _amp._exit_autocast:
                depth -= 1
            elif node.target is torch._C._set_grad_enabled:
                enabled = bool(node.args[0])
                if depth == 0:
                    outside = enabled
                elif outside:
                    graph.erase_node(node)
            elif depth and outside and not enabled and _may_require_gradient(node.meta.get("val")):
                with graph.inserting_after(node):
                    detached = graph.call_function(torch.ops.aten.detach.default, (node,))
                detached.meta = dict(node.meta)
                node.replace_all_uses_with(detached, delete_user_cb=lambda user, own=detached: user is not own)
    module.recompile()


def _may_require_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
