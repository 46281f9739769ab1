"""A plan as a file: what ``docs/plan-format.md`` describes, written and read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from monet.base.files.atomic import write_text_atomically
from monet.errors import InvalidPlan
from monet.plans.format import FORMAT, FREED, KEPT, VERSION, Buffer, PlanData, PlanStep
from monet.plans.verifier import verify


def write_plan(plan: PlanData, path: Path) -> None:
    """``PlanData.save``."""
    try:
        text = plan_text(plan)
        _read(text.encode())
    except (InvalidPlan, TypeError, ValueError, RecursionError) as error:
        raise InvalidPlan(f"{path}: not written, the plan has no JSON form: {error}") from error
    write_text_atomically(path, text)


def read_plan(path: Path) -> PlanData:
    """``PlanData.load``."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidPlan(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        return plan_of(data)
    except InvalidPlan as error:
        raise InvalidPlan(f"{path}: {error}") from error


def plan_of(data: bytes) -> PlanData:
    """The plan of a file's content, verified. Raises ``InvalidPlan``."""
    plan = _read(data)
    verify(plan)
    return plan


# Writing. One top-level member a line, and one step or buffer a line, so that text tools and diffs work.
def plan_text(plan: PlanData) -> str:
    """The file's text. Every line but the checksum's own goes into the checksum."""
    document: dict[str, str] = {
        "format": _dump(FORMAT),
        "version": _dump(VERSION),
        "peak_bytes": _dump(plan.peak_bytes),
    }
    for member in fields(plan):
        value = getattr(plan, member.name)
        if member.name in ("steps", "buffers"):
            rows = ",\n".join(_dump({cell.name: getattr(row, cell.name) for cell in fields(row)}) for row in value)
            document[member.name] = f"[\n{rows}\n]" if rows else "[]"
        else:
            document[member.name] = _dump(value)
    document["sha256"] = ""
    lines = [f"{_dump(name)}:{document[name]}" for name in sorted(document)]
    # "sha256" is never the last member, so its line, left out or in, always ends with a comma.
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    digest = _checksum(text.encode())
    return text.replace('\n"sha256":,\n', f'\n"sha256":"{digest}",\n', 1)


def _dump(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} is not a JSON value")


def _checksum(data: bytes) -> str:
    """SHA-256, in hexadecimal, of all lines but the one that begins with ``"sha256":``."""
    lines = data.split(b"\n")
    return hashlib.sha256(b"\n".join(line for line in lines if not line.startswith(b'"sha256":'))).hexdigest()


# Reading. A reader takes a JSON value and where it stands, and returns the value of that field.
_Reader = Callable[[Any, str], Any]


def _read(data: bytes) -> PlanData:
    """A plan of the right form, not verified. Raises InvalidPlan."""
    try:
        document = json.loads(
            data.decode(), parse_constant=_not_finite, parse_float=_finite, object_pairs_hook=_without_duplicates
        )
    except (ValueError, RecursionError) as error:
        raise InvalidPlan(f"not JSON, or cut short: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidPlan(f"not a plan: its format is not {FORMAT!r}")
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise InvalidPlan(f"version is {version!r}; this monet reads version {VERSION}: make the plan again")
    digest = _checksum(data)
    if document.get("sha256") != digest:
        raise InvalidPlan(
            f"the checksum does not match: sha256 is {document.get('sha256')!r}, but the file's is {digest!r}; "
            "it was changed or damaged after it was written"
        )
    values = _members(_PLAN)(document, "")
    peak = values["fixed_bytes"] + values["arena_bytes"]
    if values["peak_bytes"] != peak:
        raise InvalidPlan(f"peak_bytes: is {values['peak_bytes']}, but fixed_bytes + arena_bytes is {peak}")
    return PlanData(**{member.name: values[member.name] for member in fields(PlanData)})


def _fail(where: str, what: str) -> NoReturn:
    raise InvalidPlan(f"{where or 'the file'}: {what}")


def _not_finite(literal: str) -> NoReturn:
    raise InvalidPlan(f"{literal} is not a number that a plan may hold")


def _finite(literal: str) -> float:
    return value if math.isfinite(value := float(literal)) else _not_finite(literal)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in pairs:
        if key in row:
            raise InvalidPlan(f"the name {key!r} occurs twice in one object")
        row[key] = value
    return row


def _whole(value: Any, where: str) -> int:
    return value if type(value) is int else _fail(where, f"must be an integer, is {value!r:.80}")


def _count(value: Any, where: str) -> int:
    count: int = _whole(value, where)
    if not 0 <= count < 1 << 63:
        _fail(where, f"must be at least 0 and less than 2^63, is {count}")
    return count


def _string(value: Any, where: str) -> str:
    return value if isinstance(value, str) else _fail(where, f"must be a string, is {value!r:.80}")


def _flag(value: Any, where: str) -> bool:
    return value if isinstance(value, bool) else _fail(where, f"must be true or false, is {value!r:.80}")


def _free(value: Any, where: str) -> dict[str, Any]:
    return value if isinstance(value, dict) else _fail(where, f"must be an object, is {value!r:.80}")


def _nullable(reader: _Reader) -> _Reader:
    return lambda value, where: None if value is None else reader(value, where)


def _array(item: _Reader) -> _Reader:
    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            _fail(where, f"must be an array, is {value!r:.80}")
        return tuple(item(element, f"{where}[{n}]") for n, element in enumerate(value))

    return read


def _counts_by_name(value: Any, where: str) -> dict[str, int]:
    return {name: _count(size, f"{where}[{name!r}]") for name, size in _free(value, where).items()}


def _some_of(readers: Mapping[str, _Reader]) -> _Reader:
    """Any of these members, and no others."""

    def read(value: Any, where: str) -> dict[str, Any]:
        row = _free(value, where)
        for name in sorted(row.keys() - readers.keys()):
            _fail(where, f"{name!r} is not a field of format version {VERSION}")
        prefix = f"{where}." if where else ""
        return {name: readers[name](found, prefix + name) for name, found in row.items()}

    return read


def _members(readers: Mapping[str, _Reader], make: Callable[..., Any] = dict) -> _Reader:
    """Exactly these members, handed to ``make`` by name."""
    some = _some_of(readers)

    def read(value: Any, where: str) -> Any:
        for name in sorted(readers.keys() - _free(value, where).keys()):
            _fail(where, f"{name!r} is missing")
        return make(**some(value, where))

    return read


def _as_it_is(reader: _Reader) -> _Reader:
    """The value itself, once it is read."""

    def read(value: Any, where: str) -> Any:
        reader(value, where)
        return value

    return read


def _number(value: Any, where: str) -> float:
    """From 0 on; what is no finite number is none in a file."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        _fail(where, f"must be a number from 0 on, is {value!r:.80}")
    return value


def _one_of(*texts: str) -> _Reader:
    def read(value: Any, where: str) -> Any:
        return value if value in texts else _fail(where, f"must be one of {', '.join(texts)}, is {value!r:.80}")

    return read


def _range(value: Any, where: str) -> Any:
    least, most = value if isinstance(value, list) and len(value) == 2 else _fail(where, "must be two sizes")
    if not 1 <= _count(least, where) <= _count(most, where):
        _fail(where, f"must be a least size from 1 on and a largest one, is {value!r:.80}")
    return value


def _by_name(reader: _Reader) -> _Reader:
    return lambda value, where: {name: reader(each, f"{where}[{name!r}]") for name, each in _free(value, where).items()}


def _leaf(value: Any, where: str) -> Any:
    """An input: a tensor's geometry, or the value of something else."""
    return _members(_TENSOR if "shape" in _free(value, where) else {"path": _path, "value": _any})(value, where)


def _path(value: Any, where: str) -> Any:
    """Of positions, names and keys, the first of which tells arguments (0) and keyword arguments (1) apart."""
    if not isinstance(value, list) or len(value) < 2 or value[0] not in (0, 1):
        _fail(where, f"must be 0 or 1 and a position or a name, is {value!r:.80}")
    if len(value) > MOST_DEPTH:
        _fail(where, f"has {len(value)} parts, {MOST_DEPTH} at most")
    for key in value:  # a tuple that is a key is a list here
        _key(key, where)
    if value[0] == 0 and type(value[1]) is not int:
        _fail(where, f"an argument by position has a number, not {value[1]!r:.80}")
    if value[0] == 1 and not isinstance(value[1], str):
        _fail(where, f"an argument by keyword has a name, not {value[1]!r:.80}")
    return value


def _key(value: Any, where: str, depth: int = 0) -> Any:
    """A position, a name, or another key of a dictionary."""
    if isinstance(value, dict) or depth > MOST_DEPTH:
        _fail(where, f"must be a position, a name or a key, is {value!r:.80}")
    return [_key(part, where, depth + 1) for part in value] if isinstance(value, list) else value


def _nest(value: Any, where: str) -> Any:
    """A tuple, a list or a dict among the inputs: its path, and its positions or keys, each once."""
    nest = _members({"path": _path, "kind": _one_of("tuple", "list", "dict"), "keys": _array(_key)})(value, where)
    keys = list(nest["keys"])
    if len({repr(key) for key in keys}) < len(keys) or (nest["kind"] != "dict" and keys != list(range(len(keys)))):
        _fail(f"{where}.keys", f"must be each position or key once, are {keys!r:.80}")
    return nest


MOST_DEPTH = 64
"""Of inputs inside of inputs."""


def _any(value: Any, _: str) -> Any:
    return value


_TENSOR: dict[str, _Reader] = {
    "path": _path,
    **dict.fromkeys(("shape", "stride"), _array(_count)),
    **dict.fromkeys(("dtype", "device"), _string),
    "requires_grad": _flag,
}
_MODEL: dict[str, _Reader] = {
    **dict.fromkeys(("name", "fingerprint"), _string),
    "inputs": _array(_leaf),
    "nests": _array(_nest),
    "training": _array(_flag),
    **dict.fromkeys(("exact", "fused", "accumulate"), _flag),
    "seed": _whole,
    "autocast": _nullable(_members({"dtype": _string, "cache": _flag})),
    "storage": _array(_string),
    "density": _number,
    "gradients": _one_of(FREED, KEPT),
    "dynamic": _members(
        {"sizes": _by_name(_range), "axes": _by_name(_array(_nullable(_string))), "bytes": _by_name(_string)}
    ),
}
_ENVIRONMENT: dict[str, _Reader] = {
    **dict.fromkeys(("torch", "profile", "device"), _string),
    **dict.fromkeys(("threads", "library_bytes", "island_bytes"), _count),
    "second_memory": _some_of(
        {
            **dict.fromkeys(("disk", "host"), _flag),
            **dict.fromkeys(("device", "measured", "mode"), _string),
            "folder": _nullable(_string),
            **dict.fromkeys(("write_rate", "read_rate", "slowdown_s"), _number),
        }
    ),
}
_SOLVER: dict[str, _Reader] = {
    **dict.fromkeys(("status", "bound_scope", "order", "layout"), _string),
    **dict.fromkeys(("objective_s", "baseline_s", "eager_memory_s"), _number),
    **dict.fromkeys(("bound_s", "gap"), _nullable(_number)),
    **dict.fromkeys(("baseline_peak_bytes", "eager_peak_bytes", "order_peak_bytes"), _count),
    "order_bound_bytes": _nullable(_count),
}
_STEP: dict[str, _Reader] = {
    "kind": _string,
    "node": _string,
    "implementation": _string,
    "reads": _counts_by_name,
    "writes": _counts_by_name,
    "requests": _array(_nullable(_count)),
    "request_bytes": _array(_count),
    "begin": _count,
    "workers": _flag,
    "place": _nullable(_count),
}
_BUFFER: dict[str, _Reader] = {
    "value": _string,
    **dict.fromkeys(("id", "bytes", "offset", "begin", "end", "first", "last"), _count),
    "leaves": _flag,
}
_PLAN: dict[str, _Reader] = {
    **dict.fromkeys(
        ("budget_bytes", "arena_bytes", "arena_bound_bytes", "fixed_bytes", "peak_bytes", "second_bytes"), _count
    ),
    **dict.fromkeys(("format", "sha256"), _string),
    "version": _count,
    "fixed": _counts_by_name,
    "model": _as_it_is(_some_of(_MODEL)),
    "environment": _as_it_is(_some_of(_ENVIRONMENT)),
    "solver": _as_it_is(_some_of(_SOLVER)),
    "steps": _array(_members(_STEP, PlanStep)),
    "buffers": _array(_members(_BUFFER, Buffer)),
}
