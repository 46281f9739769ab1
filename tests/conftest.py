"""Shared by all tests: measurements go to a cache of this run, not to the user's."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from cuda_machine import Machine

    from monet import MonetModule
    from monet.pipeline.planning import PlanResult


# Two workers share the cores: a kernel's threads that wait for each other in a loop would take them from the other's.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# On a busy machine anything may be slow.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow what ``sampled`` leaves out of the variants that are not, before what is slow is deselected."""
    variants: Counter[str] = Counter()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is not None and item.get_closest_marker("slow") is None:
            name = item.nodeid.partition("[")[0]
            if variants[name] % sampled.args[0] != 0:
                item.add_marker(pytest.mark.slow)
            variants[name] += 1


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a disk that copies can go to."""
    from moved_steps import disk_or_skip

    return disk_or_skip(tmp_path_factory.mktemp("disk"))


@pytest.fixture(scope="session", autouse=True)
def own_profile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Built libraries may come from the user's cache, measurements may not: they must be made anew.

    Where the user has none, the workers of a run share what they build.
    """
    from monet.base.files.cache import cache_folder, private_folder

    built = cache_folder() / "native"
    folder = tmp_path_factory.mktemp("monet-cache")
    before = os.environ.get("MONET_CACHE")
    if not built.exists() and "PYTEST_XDIST_WORKER" in os.environ:
        built = private_folder(tmp_path_factory.getbasetemp().parent / "native")  # beside the folders of the workers
    if built.exists():
        (folder / "native").symlink_to(built)
    os.environ["MONET_CACHE"] = str(folder)
    yield
    if before is None:
        del os.environ["MONET_CACHE"]
    else:
        os.environ["MONET_CACHE"] = before


@pytest.fixture(scope="module", autouse=True)
def short_collections() -> Iterator[None]:
    """What is there before a file's tests, millions of objects of imported modules, is not looked at again by each of
    their ``gc.collect()``, nor by each trace, which looks for functions' caches: tenths of a second in files that do so
    a hundred times. By file, since much is imported when it is first used."""
    from monet.capture import direct_trace

    gc.collect()
    _frozen_caches.update((id(found), found) for found in gc.get_objects() if type(found) is _lru_cache_wrapper)
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_trace, "live_objects", lambda: [*_frozen_caches.values(), *gc.get_objects()])
        yield


_frozen_caches: dict[int, Any] = {}
"""Of functions, among what ``short_collections`` has set aside."""


@pytest.fixture(scope="session", autouse=True)
def machine_to_itself() -> Iterator[None]:
    """The other worker keeps a core busy all the time: a test would wait and look whether it still does, before each
    plan of operators that were measured before. What is done about it is tested by itself."""
    from monet.ops.measuring.busy_machine import OtherPrograms

    def alone(threads: int) -> OtherPrograms:
        return OtherPrograms(threads, Path(os.devnull))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("monet.ops.measuring.profiling.OtherPrograms", alone)
        yield


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """A command that is called in this process sets them for good: it is alone where people call it. Kernels and what
    they ask for depend on them."""
    torch = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    yield
    if torch is not None and before != torch.get_num_threads():
        torch.set_num_threads(before)


@pytest.fixture
def instances() -> Path:
    """Published instances; tests that use them are skipped where the folder is missing."""
    from repository import INSTANCES

    folder = INSTANCES
    if not folder.is_dir():
        pytest.skip(f"no published instances at {folder} (set MONET_INSTANCES)")
    return folder


@pytest.fixture
def hasty_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what a plan does: that holds in any order, and the best one takes longer to find."""
    monkeypatch.setattr("monet.pipeline.placement.ORDER_S", 2.0)


@pytest.fixture
def default_interrupts() -> Iterator[None]:
    """A shell that starts the tests in the background has Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """A kernel's results must not depend on the number of threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def kernels_of_the_table() -> None:
    """Skips where others are offered than where docs/operators.md was written: native kernels need a compiler, norms
    run again from saved statistics where a variant of the kernel rounds as this machine's ATen does, and convolutions
    have other implementations where they are oneDNN's."""
    import torch

    from monet.ops.families.convolution.onednn import onednn_takes
    from monet.ops.kernels import bits, formats, norm_variants, norms, packed, pool_index, scales

    if not onednn_takes(torch.bfloat16):
        pytest.skip("oneDNN has no convolutions in bfloat16 here")
    of_norms = [norms.library(data) for data in formats.FORMATS]
    if None in (packed.library(), pool_index.library(), bits.library(), scales.library(), *of_norms):
        pytest.skip("native kernels cannot be built here")
    for trial in (norm_variants.try_batch_norm, norm_variants.try_group_norm, norm_variants.try_layer_norm):
        for data in formats.FORMATS:
            for parameters in {data, torch.float32}:
                found = norm_variants.variant_of(trial, data, parameters, False) is not None
                if found != (trial is norm_variants.try_batch_norm or parameters is torch.float32):
                    pytest.skip(f"ATen rounds {trial.__name__} of {data} otherwise here")
    if norm_variants.variant_of(norm_variants.try_batch_norm, torch.float32, torch.float32, True) is None:
        pytest.skip("ATen rounds batch norm in channels-last otherwise here")


@pytest.fixture(scope="module")
def residual() -> PlanResult:
    """A plan of the small residual network with everything kept."""
    from module_cases import case_plan

    return case_plan("residual", "10GB")


@pytest.fixture
def planned(residual: PlanResult) -> MonetModule:
    from module_cases import case_model

    from monet import MonetModule

    return MonetModule(case_model("residual"), residual.plan)


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A made-up GPU; nothing may be left of what a test takes of its memory."""
    from cuda_machine import Machine

    made = Machine()
    before = made.live_bytes
    yield made
    made.close()
    assert made.live_bytes == before, "memory is left over"
