"""What to plan: a model, its inputs and its mode, read from a YAML file and checked by a schema.

Errors name the file, the line and the field::

    resnet50.yaml:7: inputs[0].shape: must be a list of positive whole numbers, such as [8, 3, 224, 224]
"""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictBool, StrictInt, Tag, ValidationError

from monet.errors import ConfigError
from monet.models.yaml_document import YamlDocument

FLOAT_DTYPES = ("float32", "float64", "float16", "bfloat16")
INTEGER_DTYPES = ("int64", "int32", "int16", "int8", "uint8")
FloatName = Literal["float32", "float64", "float16", "bfloat16"]
AutocastName = Literal["bfloat16", "float16"]
DtypeName = Literal["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]

# A size that varies.
_VARYING = re.compile(r"([A-Za-z_]\w*)\s*<=\s*(\d+)")

# The two ways to write ``inputs``; pydantic puts the tag into the location of an error below it.
_BY_POSITION, _BY_NAME = "<by position>", "<by name>"


MOST_ELEMENTS = 1 << 56
"""Of an input: what is more, PyTorch cannot count in bytes."""


class InputSpec(BaseModel):
    """One tensor that the model is called with; ``dtype``, where it is not given, is the configuration's, or float32.

    Floating-point values are drawn from the standard normal distribution, integers uniformly from
    [``low``, ``high``), and booleans are fair coins. A size may be written as ``length<=512``: the plan is then for
    every size up to it, and ``shape`` has the largest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    shape: tuple[Annotated[StrictInt, Field(ge=1)], ...]
    dtype: DtypeName = "float32"
    requires_grad: StrictBool = False
    low: StrictInt | None = None
    high: StrictInt | None = None
    _names: tuple[str | None, ...] = ()

    @property
    def names(self) -> tuple[str | None, ...]:
        """Of each size that varies, the dimension's name; None for the others."""
        return self._names or (None,) * len(self.shape)

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _read_sizes(cls, given: Any, read: Any) -> InputSpec:
        if not isinstance(given, Mapping) or not isinstance(given.get("shape"), list | tuple):
            spec: InputSpec = read(given)
            return spec
        found = [_VARYING.fullmatch(size) if isinstance(size, str) else None for size in given["shape"]]
        sizes = [size if of is None else int(of[2]) for size, of in zip(given["shape"], found, strict=True)]
        spec = read({**given, "shape": sizes})
        if any(found):
            spec._names = tuple(None if of is None else of[1] for of in found)
        return spec

    @pydantic.model_validator(mode="after")
    def _check_values(self) -> InputSpec:
        if math.prod(self.shape) > MOST_ELEMENTS:
            raise ValueError(f"shape: {math.prod(self.shape):.1e} elements are more than any memory has")
        if self.requires_grad and self.dtype not in FLOAT_DTYPES:
            raise ValueError(f"requires_grad needs a floating-point dtype, not {self.dtype}")
        if self.dtype not in INTEGER_DTYPES:
            if self.low is not None or self.high is not None:
                raise ValueError(f"low and high are for integer inputs, not for {self.dtype}")
        elif self.high is None:
            raise ValueError(f"an {self.dtype} input needs `high`: its values are drawn from [low, high)")
        else:
            low, high = self.value_range
            least, most = _integer_limits(self.dtype)
            if not least <= low < high <= most + 1:
                raise ValueError(f"values from [{low}, {high}) do not exist or do not fit {self.dtype}")
        return self

    @property
    def value_range(self) -> tuple[int, int]:
        """[low, high) that integer values are drawn from."""
        return self.low or 0, self.high or 0


def _integer_limits(dtype: str) -> tuple[int, int]:
    bits = int(dtype.partition("int")[2])
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _written_form(inputs: Any) -> str | None:
    if isinstance(inputs, list | tuple):
        return _BY_POSITION
    return _BY_NAME if isinstance(inputs, Mapping) else None


class Config(BaseModel):
    """A training step to plan: ``model`` is ``package.module:callable``, called with ``kwargs``.

    ``inputs`` is a tuple for positional inputs or a mapping for keyword inputs. ``seed`` is set
    before the model is built. ``dtype``: parameters and buffers are converted to it (None: as the model is made).
    ``autocast``: the step is planned and run under ``torch.autocast`` with this dtype. ``accumulate``: gradients add up
    over several batches. ``device``: where the model and its inputs are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Annotated[str, Field(pattern=r"^\w+(\.\w+)*:\w+(\.\w+)*$", strict=True)]
    kwargs: Mapping[str, Any] = Field(default_factory=dict)
    inputs: Annotated[
        Annotated[tuple[InputSpec, ...], Field(min_length=1), Tag(_BY_POSITION)]
        | Annotated[dict[str, InputSpec], Field(min_length=1), Tag(_BY_NAME)],
        Discriminator(_written_form),
    ]
    dtype: FloatName | None = None
    autocast: AutocastName | None = None
    accumulate: StrictBool = False
    gradients: Literal["freed", "kept"] = "freed"
    training: StrictBool = True
    device: Literal["cpu", "cuda"] = "cpu"
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] = 0

    def dtype_of(self, spec: InputSpec) -> DtypeName:
        """Of an input: its own, or where it has none the model's."""
        return self.dtype if self.dtype is not None and "dtype" not in spec.model_fields_set else spec.dtype

    def batch(self) -> int:
        """The first dimension that all inputs share."""
        specs = self.inputs if isinstance(self.inputs, tuple) else tuple(self.inputs.values())
        sizes = {spec.shape[0] for spec in specs if spec.shape}
        if len(sizes) != 1:
            raise ConfigError(
                f"another batch needs inputs with one first dimension in common; these have {sorted(sizes)}"
            )
        return sizes.pop()

    @property
    def dynamic(self) -> dict[str, tuple[int, dict[int, list[int]]]]:
        """By dimension that varies, its largest size, and by position of an input the axes that have it. Raises
        ``ConfigError`` for a dimension of two sizes."""
        specs = self.inputs if isinstance(self.inputs, tuple) else tuple(self.inputs.values())
        found: dict[str, tuple[int, dict[int, list[int]]]] = {}
        for position, spec in enumerate(specs):
            for axis, (name, size) in enumerate(zip(spec.names, spec.shape, strict=True)):
                if name is None:
                    continue
                most, axes = found.setdefault(name, (size, {}))
                if most != size:
                    raise ConfigError(f"inputs: {name} is at most {most} in one input and at most {size} in another")
                axes.setdefault(position, []).append(axis)
        return found

    def on(self, device: str | None) -> Config:
        """The same on another device; None: as it is."""
        return self if device is None else self.model_copy(update={"device": device})

    def with_batch(self, batch: int) -> Config:
        """The same with another first dimension of all inputs."""
        self.batch()

        def sized(spec: InputSpec) -> InputSpec:
            if not spec.shape:
                return spec
            other = spec.model_copy(update={"shape": (batch, *spec.shape[1:])})
            if math.prod(other.shape) > MOST_ELEMENTS:
                raise ConfigError(f"batch {batch}: {math.prod(other.shape):.1e} elements are more than any memory has")
            if any(spec.names):
                other._names = (None, *spec.names[1:])
            return other

        inputs = self.inputs
        if isinstance(inputs, tuple):
            return self.model_copy(update={"inputs": tuple(map(sized, inputs))})
        return self.model_copy(update={"inputs": {name: sized(spec) for name, spec in inputs.items()}})


def load_config(path: str | Path) -> Config:
    """The checked content of the YAML file at ``path``.

    A bare name that is not a file in the working directory is looked up among the configurations
    that ship with monet. Raises :class:`ConfigError`.
    """
    document = YamlDocument.parse(_read_text(Path(path)), str(path))
    if not isinstance(document.value, Mapping):
        raise ConfigError(f"{path}:{document.line(())}: must be a mapping of fields: {', '.join(Config.model_fields)}")
    try:
        return Config.model_validate(document.value)
    except ValidationError as error:
        raise ConfigError("\n".join(_describe(detail, document) for detail in _innermost(error.errors()))) from error


def shipped_configs() -> tuple[str, ...]:
    """File names of the configurations that ship with monet, sorted."""
    return tuple(
        sorted(entry.name for entry in resources.files("monet.configs").iterdir() if entry.name.endswith(".yaml"))
    )


def _read_text(path: Path) -> str:
    try:
        if not path.exists() and path.name == str(path):
            return _shipped_text(path.name)
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


def _shipped_text(name: str) -> str:
    shipped = shipped_configs()
    if name not in shipped:
        guess = _did_you_mean(name, shipped)
        raise ConfigError(
            f"{name}: no such file in the working directory, nor a configuration shipped with monet{guess}; "
            f"shipped are {', '.join(shipped)}"
        )
    return resources.files("monet.configs").joinpath(name).read_text(encoding="utf-8")


def _did_you_mean(word: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


_MEANING = {
    "model": "package.module:callable, such as torchvision.models:resnet50",
    "kwargs": "a mapping of keyword arguments for the model's callable",
    "inputs": "a list of inputs, or a mapping from names to inputs, each with a shape",
    "shape": "a list of positive whole numbers, such as [8, 3, 224, 224]",
    "dtype": "one of " + ", ".join(("float32", *FLOAT_DTYPES[1:], *INTEGER_DTYPES, "bool")),
    "autocast": "bfloat16 or float16",
    "accumulate": "true or false",
    "gradients": '"freed" or "kept"',
    "requires_grad": "true or false",
    "low": "a whole number",
    "high": "a whole number",
    "training": "true or false",
    "seed": "a whole number, 0 or more",
}


def _innermost(details: list[Any]) -> list[Any]:
    """Without the errors of a list or mapping that follow from an error inside it."""
    places = [detail["loc"] for detail in details]
    return [
        detail
        for detail in details
        if not any(len(place) > len(detail["loc"]) and place[: len(detail["loc"])] == detail["loc"] for place in places)
    ]


def _describe(detail: Any, document: YamlDocument) -> str:
    """One error of the schema as ``file:line: field: what is wrong``."""
    location = [part for part in detail["loc"] if part not in (_BY_POSITION, _BY_NAME, "[key]")]
    place = f"{document.name}:{document.line(location)}: {_field_name(location)}"
    # Below a field, parts are positions (a shape's numbers, inputs): the field's own name says what is meant.
    known = tuple(Config.model_fields) if len(location) == 1 else tuple(InputSpec.model_fields)
    named = [part for part in location if part in _MEANING]
    if location == ["dtype"]:  # the model's, not an input's
        return f"{place}: must be one of {', '.join(FLOAT_DTYPES)}; got {reprlib.repr(detail['input'])}"
    match detail["type"]:
        case "extra_forbidden":
            guess = _did_you_mean(str(location[-1]), known)
            return f"{place}: unknown field{guess}; fields here are {', '.join(known)}"
        case "missing":
            return f"{place}: missing; must be {_MEANING[named[-1]]}"
        case "value_error":
            return f"{place}: {detail['ctx']['error']}"
        case "model_type" | "model_attributes_type":
            return f"{place}: must be a mapping with a shape, such as {{shape: [8, 3, 224, 224]}}"
        case _ if named and named[-1] == "shape" and isinstance(location[-1], int):
            known_forms = "a positive whole number, or a name and the largest size as length<=512"
            return f"{place}: must be {known_forms}; got {reprlib.repr(detail['input'])}"
        case _ if named:
            return f"{place}: must be {_MEANING[named[-1]]}; got {reprlib.repr(detail['input'])}"
        case _:
            return f"{place}: {detail['msg']}"


def _field_name(location: list[Any]) -> str:
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else str(part)
    return name
