"""Batches padded to a few lengths (buckets), so that a few plans run all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch

from monet.errors import ConfigError

CollateFn = Callable[[list[Any]], Any]
_IDS, _MASKS, _LABELS = ("input_ids", "decoder_input_ids"), ("attention_mask", "decoder_attention_mask"), "labels"


class BucketPadding:
    """A collate function that pads what another one makes. It can be pickled where that one can, for the workers of a
    ``DataLoader``."""

    def __init__(
        self, collate_fn: CollateFn, buckets: tuple[int, ...], values: Mapping[str, float], side: str, mask: bool
    ) -> None:
        self.collate_fn, self.buckets, self.values = collate_fn, buckets, dict(values)
        self.side, self.mask = side, mask

    def __call__(self, features: list[Any]) -> dict[str, Any]:
        """The batch of ``features``, padded to the next bucket. Raises ``ConfigError`` for a batch that is no mapping,
        a batch longer than the largest bucket, or a tensor along the sequence that no padding is known for."""
        batch = self._batch(features)
        along = self._along(batch)
        return self._padded(batch, along, self._bucket({name: batch[name].shape[1] for name in along}))

    def samples(self, features: list[Any]) -> list[dict[str, Any]]:
        """A batch of ``features`` in each length, cut where it is longer: what ``monet.plan_many`` plans for."""
        batch = self._batch(features)
        along = self._along(batch)
        return [self._padded(batch, along, bucket) for bucket in self.buckets]

    def _batch(self, features: list[Any]) -> dict[str, Any]:
        batch = self.collate_fn(features)
        if not isinstance(batch, Mapping):
            raise ConfigError(
                f"pad_to_buckets pads tensors by their names, and the collate function returns a "
                f"{type(batch).__name__}; return a dictionary, such as {{'input_ids': ..., 'labels': ...}}"
            )
        batch = dict(batch)
        ids = batch.get("input_ids")
        if self.mask and isinstance(ids, torch.Tensor) and "attention_mask" not in batch:
            batch["attention_mask"] = torch.ones_like(ids)
        return batch

    def _along(self, batch: Mapping[str, Any]) -> set[str]:
        """The names of the tensors along a sequence."""
        known = {name for name, value in batch.items() if name in self.values and _is_along(name, value)}
        lengths = {batch[name].shape[1] for name in known if name != _LABELS}
        for name, value in batch.items():
            if name in known or name == _LABELS or not isinstance(value, torch.Tensor) or value.dim() < 2:
                continue
            if value.shape[1] in lengths:
                raise ConfigError(
                    f"{name} of shape {tuple(value.shape)} is as long as the sequence, and what to pad it with is not "
                    f"known; say so by pad_values={{{name!r}: 0}}"
                )
        if not known:
            raise ConfigError(
                f"nothing in a batch of {sorted(batch)} is known to lie along a sequence; name it and what it is "
                "padded with by pad_values"
            )
        return known

    def _padded(self, batch: Mapping[str, Any], along: set[str], length: int) -> dict[str, Any]:
        padded = dict(batch)
        for name in along:
            value = batch[name][:, :length]
            more = value.new_full((value.shape[0], length - value.shape[1], *value.shape[2:]), self.values[name])
            padded[name] = torch.cat((value, more) if self.side == "right" else (more, value), dim=1)
        return padded

    def _bucket(self, lengths: Mapping[str, int]) -> int:
        """For all sequences of a batch one, so that there are as many geometries as buckets."""
        longest = max(lengths.values(), default=0)
        for bucket in self.buckets:
            if longest <= bucket:
                return bucket
        name = next(name for name, length in lengths.items() if length == longest)
        raise ConfigError(
            f"{name} has {longest} tokens, more than the largest bucket, {self.buckets[-1]}; add a larger bucket, or "
            f"cut texts in the tokenizer (truncation=True, max_length={self.buckets[-1]})"
        )


def pad_to_buckets(
    collate_fn: CollateFn,
    buckets: Iterable[int],
    *,
    pad_token_id: int = 0,
    label_pad_token_id: int = -100,
    pad_values: Mapping[str, float] | None = None,
    padding_side: Literal["right", "left"] = "right",
    attention_mask: bool = True,
) -> BucketPadding:
    """A collate function that pads the batches of ``collate_fn`` to the next of a few lengths, for a ``DataLoader`` or
    as ``data_collator`` of a ``Trainer``. All sequences of a batch get one length, so there are as many geometries of
    calls as there are buckets.

    ``collate_fn``: returns a mapping of tensors, of shape (batch, length, ...) along a sequence. ``buckets``: lengths,
    in tokens. Padded are, by name: ``input_ids`` and ``decoder_input_ids`` with ``pad_token_id``, their
    ``attention_mask`` with 0, ``token_type_ids`` and ``position_ids`` with 0, ``special_tokens_mask`` with 1, and
    ``labels`` of whole numbers, one a token, with ``label_pad_token_id``, which losses leave out; ``pad_values`` has
    the value for any other name. ``attention_mask``: whether one is made where ``collate_fn`` makes none.

    Raises ``ConfigError`` for buckets that are none, and for a side that there is not.
    """
    given: Sequence[Any] = list(buckets)
    if not given or not all(isinstance(length, int) and length > 0 for length in given):
        raise ConfigError(f"buckets must be lengths, whole numbers above 0, not {given}")
    lengths = sorted(set(given))
    if padding_side not in ("right", "left"):
        raise ConfigError(f"padding_side must be 'right' or 'left', not {padding_side!r}")
    values: dict[str, float] = {**dict.fromkeys(_IDS, pad_token_id), **dict.fromkeys(_MASKS, 0)}
    values |= {"token_type_ids": 0, "position_ids": 0, "special_tokens_mask": 1, _LABELS: label_pad_token_id}
    return BucketPadding(collate_fn, tuple(lengths), values | dict(pad_values or {}), padding_side, attention_mask)


def _is_along(name: str, value: Any) -> bool:
    """Labels of a classification are one a text, or one a class, which are not whole numbers."""
    if not isinstance(value, torch.Tensor) or value.dim() < 2:
        return False
    return name != _LABELS or not value.is_floating_point()
