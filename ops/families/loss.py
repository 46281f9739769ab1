"""Losses inside the captured step. Of its input, the gradient of a negative log-likelihood reads the shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from monet.ops.offers import shape_only
from monet.ops.offers.record import Record
from monet.ops.offers.sample import Input, Sample, between, integers

aten = torch.ops.aten
functional = torch.nn.functional

_CLASSES = integers((6,), 7)
_SHARES = between(0.05, 0.95, (6, 7), requires_grad=False)


def _cross_entropy(name: str, *inputs: Input, weights: tuple[Input, ...] = (), **kwargs: Any) -> Sample:
    return Sample(name, lambda x, t, *w: functional.cross_entropy(x, t, *w, **kwargs), inputs, weights)


def _pair(name: str, call: Callable[..., Any], target: Input = _SHARES, **kwargs: Any) -> Sample:
    """A loss of a tensor against a target that is the module's own, as batches and targets must not be scaled."""
    return Sample(name, lambda x, t: call(x, t, **kwargs), ((6, 7),), (target,))


def _kernel(name: str, forward: str, backward: str, *samples: Sample) -> Record:
    return Record(
        name=name,
        family="losses",
        forward_targets=(getattr(aten, forward).default,),
        backward_targets=(getattr(aten, backward).default,),
        equations="the gradient reads the difference to the target, so it needs both",
        samples=samples,
    )


RECORDS = (
    Record(
        name="cross entropy, nll",
        family="losses",
        forward_targets=(aten.nll_loss_forward.default,),
        backward_targets=(aten.nll_loss_backward.default,),
        equations="the gradient is -weight at the target, 0 elsewhere: of the input, the shape",
        samples=(
            _cross_entropy("cross_entropy", (6, 7), _CLASSES),
            _cross_entropy("cross_entropy-smooth", (6, 7), _CLASSES, label_smoothing=0.1),
            _cross_entropy(
                "cross_entropy-weighted",
                (6, 7),
                _CLASSES,
                weights=(between(0.5, 1.0, (7,), requires_grad=False),),
                ignore_index=2,
            ),
            _cross_entropy("cross_entropy-sum", (6, 7), _CLASSES, reduction="sum"),
        ),
        backward=shape_only.backward,
    ),
    Record(
        name="cross entropy of maps",
        family="losses",
        forward_targets=(aten.nll_loss2d_forward.default,),
        backward_targets=(aten.nll_loss2d_backward.default,),
        equations="the gradient is -weight at the target, 0 elsewhere: of the input, the shape",
        samples=(
            _cross_entropy("cross_entropy-2d", (2, 7, 5, 4), integers((2, 5, 4), 7)),
            _cross_entropy("cross_entropy-2d-none", (2, 7, 5, 4), integers((2, 5, 4), 7), reduction="none"),
        ),
        backward=shape_only.backward,
    ),
    _kernel(
        "mse",
        "mse_loss",
        "mse_loss_backward",
        _pair("mse", functional.mse_loss),
        _pair("mse-none", functional.mse_loss, reduction="none"),
    ),
    _kernel("smooth l1", "smooth_l1_loss", "smooth_l1_loss_backward", _pair("smooth_l1", functional.smooth_l1_loss)),
    _kernel("huber", "huber_loss", "huber_loss_backward", _pair("huber", functional.huber_loss)),
    _kernel(
        "binary cross entropy",
        "binary_cross_entropy",
        "binary_cross_entropy_backward",
        _pair("bce", lambda x, t: functional.binary_cross_entropy(x.sigmoid(), t)),
    ),
    Record(
        name="binary cross entropy with logits",
        family="losses",
        forward_targets=(aten.binary_cross_entropy_with_logits.default,),
        backward_targets=(),
        equations="torch makes the gradient of sigmoid(x) - target, in several operators",
        samples=(_pair("bce_with_logits", functional.binary_cross_entropy_with_logits),),
    ),
    Record(
        name="l1, kl, cosine embedding, soft targets",
        family="losses",
        forward_targets=(aten.neg.default, aten.xlogy.Tensor),
        backward_targets=(aten.sgn.default,),
        equations="elementwise operators and sums, each with its own gradient",
        samples=(
            _pair("l1", functional.l1_loss),
            _pair("kl", lambda x, t: functional.kl_div(x.log_softmax(1), t, reduction="batchmean")),
            _pair("cross_entropy-soft", functional.cross_entropy),
            Sample(
                "cosine_embedding",
                lambda x, y, t: functional.cosine_embedding_loss(x, y, t * 2 - 1),
                ((6, 7), (6, 7), integers((6,), 2)),
            ),
        ),
    ),
)
