"""From ``package.module:callable`` to a model."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from monet.errors import ConfigError
from monet.models.config import Config
from monet.models.converted_tensors import convert_tensors
from monet.models.torchvision_schemas import with_torchvision_schemas

_MODEL_PACKAGES = ("torchvision", "monai", "transformers")


def build_model(config: Config) -> nn.Module:
    """The configuration's model in its dtype, on its device and in its training or evaluation mode, initialised from
    its seed.

    The global random state is left as it was. The working directory can be imported from, as it
    can by ``python train.py``. Raises :class:`ConfigError`.
    """
    _check_device(config.device)
    with _importable_working_directory(), torch.random.fork_rng(devices=[]):
        factory = _load_factory(config.model)
        torch.manual_seed(config.seed)
        model = _call(config, factory)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model {config.model}: returned an object of type {type(model).__qualname__}, not a torch.nn.Module; "
            "name a module class or a function that returns a module"
        )
    if config.dtype is not None:
        model = _in_dtype(model, getattr(torch, config.dtype))
    if config.device != "cpu":
        model = model.to(config.device)
    return model.train(config.training)


def _check_device(device: str) -> None:
    """Refuses CUDA where there is none before anything asks for it: on a PyTorch without CUDA a capture of tensors on
    such a device would end the process."""
    if device == "cpu" or torch.cuda.is_available():
        return
    lacks = "finds no GPU" if torch.version.cuda else "is built without CUDA"
    raise ConfigError(
        f"device {device}: this PyTorch ({torch.__version__}) {lacks}. Measure the step where there is one (monet "
        "profile), and plan it here from that file (monet plan --profile FILE)"
    )


def _in_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    if not any(isinstance(tensor, FakeTensor) for tensor in (*model.parameters(), *model.buffers())):
        return model.to(dtype)
    convert_tensors(model, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
    return model


def precision(config: Config) -> contextlib.AbstractContextManager[Any]:
    """Where the configuration's model is planned and called: ``torch.autocast``, if it asks for that."""
    if config.autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(config.device, dtype=getattr(torch, config.autocast))


def _load_factory(reference: str) -> Callable[..., Any]:
    module_name, _, path = reference.partition(":")
    try:
        target = with_torchvision_schemas(lambda: _look_up(module_name, path))
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        raise ConfigError(f"model {reference}: {error}; {_advice(missing, module_name)}") from error
    except _MissingName as error:
        raise ConfigError(f"model {reference}: {error}") from error
    except (Exception, SystemExit) as error:  # a training script without a main guard may end here
        raise ConfigError(
            f"model {reference}: importing {module_name} failed: {_reason(error)}; "
            f"try it alone: python -c 'import {module_name}'"
        ) from error
    if not callable(target):
        raise ConfigError(
            f"model {reference}: {path} is an object of type {type(target).__qualname__}, not a class or a function"
        )
    factory: Callable[..., Any] = target
    return factory


class _MissingName(Exception):
    """A module has no such name."""


def _look_up(module_name: str, path: str) -> object:
    target: object = importlib.import_module(module_name)
    for name in path.split("."):
        try:
            target = getattr(target, name)  # may import more, where a package does so on first use
        except AttributeError as error:
            close = difflib.get_close_matches(name, dir(target), n=1)
            guess = f"did you mean {close[0]}?" if close else "check the spelling"
            raise _MissingName(f"{module_name} has no {path}; {guess}") from error
    return target


def _call(config: Config, factory: Callable[..., Any]) -> object:
    try:
        return with_torchvision_schemas(lambda: factory(**config.kwargs))
    except (Exception, SystemExit) as error:
        given = ", ".join(f"{name}={value!r}" for name, value in config.kwargs.items())
        advice = "check kwargs in the configuration" if isinstance(error, TypeError) else "it raises that itself"
        raise ConfigError(
            f"model {config.model}: calling it with ({given}) failed: {_reason(error)} ({advice})"
        ) from error


def _advice(missing: str, module_name: str) -> str:
    package = missing.partition(".")[0]
    if package in _MODEL_PACKAGES:
        return f"try: pip install {package} torch=={torch.__version__}"  # a newer one may bring another PyTorch
    if f"{module_name}.".startswith(f"{missing}."):
        return f"check the spelling, install {package}, or run in the folder that holds it"
    return f"{module_name} needs it: install {package}"


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@contextlib.contextmanager
def _importable_working_directory() -> Iterator[None]:
    folder = os.getcwd()
    if folder in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
