"""What a document in the format ``monet-profile-1`` must look like, checked before a problem is made of it.

Its fields are listed as data (``_DOCUMENT``): a name and what it holds; a name that ends in ``_`` is of a field that
may be missing. Unknown fields are ignored. References are checked after types: nothing may read, overwrite or save
what is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from monet.errors import ConfigError

FORMAT = "monet-profile-1"

Check = Callable[[Any, str], None]
"""(value, its place in the document) -> None; raises ``_Wrong``."""


def check_document(document: Any, path: str) -> None:
    """Refuses a document that no problem can be made of.

    Raises:
        ConfigError: names ``path``, the place in the document, and what is wrong there.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(f"{path} is not in the format {FORMAT}")
    try:
        _DOCUMENT(document, "")
        _check_references(document)
    except _Wrong as wrong:
        raise ConfigError(f"{path} is no valid {FORMAT} document: {wrong}") from None


class _Wrong(Exception):
    """The place and what is wrong there."""


def _is(what: str, accepts: Callable[[Any], bool]) -> Check:
    """A single value; ``what`` it must be, for the message."""

    def check(value: Any, where: str) -> None:
        if not accepts(value):
            shown = repr(value)
            raise _Wrong(f"{where} is {shown if len(shown) <= 40 else f'{shown[:37]}...'}, not {what}")

    return check


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _record(**fields: Check) -> Check:
    """A JSON object with these fields; ``name_`` stands for an optional ``name``."""

    def check(value: Any, where: str) -> None:
        _OBJECT(value, where or "the document")
        for field, inner in fields.items():
            name = field.removesuffix("_")
            place = f"{where}.{name}" if where else name
            if name in value:
                inner(value[name], place)
            elif name == field:
                raise _Wrong(f"{place} is missing")

    return check


def _list(inner: Check, least: int = 0) -> Check:
    """A JSON list of at least so many items, each checked by ``inner``."""

    def check(value: Any, where: str) -> None:
        _LIST(value, where)
        if len(value) < least:
            raise _Wrong(f"{where} is empty")
        for position, item in enumerate(value):
            inner(item, f"{where}[{position}]")

    return check


_OBJECT = _is("an object", lambda value: isinstance(value, dict))
_LIST = _is("a list", lambda value: isinstance(value, list))
_TEXT = _is("text", lambda value: isinstance(value, str))
_INTEGER = _is("an integer", _integer)
_BYTES = _is("a number of bytes", lambda value: _integer(value) and value >= 0)
_MILLISECONDS = _is(
    "a number of milliseconds",
    lambda value: (_integer(value) or isinstance(value, float)) and math.isfinite(value) and value >= 0,
)
_NAME = _is("the id of an operator or of what it saves", lambda value: _integer(value) or isinstance(value, str))
_KIND = _is("sign_bits or pool_index", lambda value: value in ("sign_bits", "pool_index"))

_SIZED = _record(bytes=_BYTES)
_COST = {"name": _TEXT, "ms": _MILLISECONDS, "workspace": _INTEGER, "aliased": _INTEGER}
_DOCUMENT = _record(
    model=_TEXT,
    batch=_INTEGER,
    input=_SIZED,
    params=_list(_SIZED),
    outputs=_list(_INTEGER),
    forward=_list(
        _record(
            id=_INTEGER,
            op_=_TEXT,
            inputs=_list(_INTEGER),
            bytes=_BYTES,
            saved=_list(_record(id=_TEXT, kind=_KIND, bytes=_BYTES)),
            impls=_list(
                _record(
                    **_COST,
                    overwrites_=_INTEGER,
                    saves_=_TEXT,
                    recompute_ms_=_MILLISECONDS,
                    recompute_workspace_=_BYTES,
                ),
                least=1,
            ),
        ),
        least=1,
    ),
    backward=_list(
        _record(
            id=_INTEGER,
            of=_INTEGER,
            op=_TEXT,
            part=_TEXT,
            grad_inputs=_list(_INTEGER),
            grad_input_bytes=_list(_BYTES),
            param_grad_bytes=_BYTES,
            impls=_list(_record(**_COST, reads=_list(_NAME)), least=1),
        ),
        least=1,
    ),
)


def _check_references(document: Mapping[str, Any]) -> None:
    """Refuses what names an operator or a tensor that is not there, and saving without a plain run beside it."""
    made: set[int | str] = set()
    for position, f in enumerate(document["forward"]):
        where = f"forward[{position}]"
        _known(f["inputs"], made, f"{where}.inputs")
        saved = {s["id"] for s in f["saved"]}
        for name in (f["id"], *(s["id"] for s in f["saved"])):
            if name in made:
                raise _Wrong(f"{where} makes {name!r} a second time")
            made.add(name)
        for number, q in enumerate(f["impls"]):
            _known(
                [q["overwrites"]] if "overwrites" in q else [], set(f["inputs"]), f"{where}.impls[{number}].overwrites"
            )
            _known([q["saves"]] if q.get("saves") else [], saved, f"{where}.impls[{number}].saves")
        if all(q.get("saves") for q in f["impls"]):
            raise _Wrong(f"{where}.impls has none that saves nothing")
        unsaved = saved - {q.get("saves") for q in f["impls"]}
        if unsaved:
            raise _Wrong(f"{where}.impls has none that saves {min(unsaved)!r}")
        if saved and not any(q["name"] == "plain" for q in f["impls"]):
            raise _Wrong(f"{where}.impls has no 'plain', which what it saves is compared with")
    operators = {f["id"] for f in document["forward"]}
    _known(document["outputs"], operators, "outputs")
    for position, b in enumerate(document["backward"]):
        where = f"backward[{position}]"
        _known([b["of"]], operators, f"{where}.of")
        _known(b["grad_inputs"], operators, f"{where}.grad_inputs")
        if len(b["grad_inputs"]) != len(b["grad_input_bytes"]):
            raise _Wrong(f"{where}.grad_input_bytes is not as long as {where}.grad_inputs")
        for number, q in enumerate(b["impls"]):
            _known(q["reads"], made, f"{where}.impls[{number}].reads")


def _known(names: list[int | str], known: set[Any], where: str) -> None:
    """Refuses the first of ``names`` that is not in ``known``."""
    for name in names:
        if name not in known:
            raise _Wrong(f"{where} has {name!r}, which is not there")
