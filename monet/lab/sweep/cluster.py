"""Cells planned by the workers of a Dask scheduler that is there already: past one machine.

The step is prepared here, once, and its costs go along with the cells: machines that measured for themselves would
plan different problems. A worker makes the same step of them, which is checked, plans a cell and sends its plan back.
Which of the workers does what is Dask's to decide: a cell whose worker dies is planned again by another one, and fails
once it has ended several.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from monet.base.files.atomic import write_text_atomically
from monet.errors import ConfigError, MonetError
from monet.lab.sweep.cells import Cell, Outcome, Step
from monet.lab.sweep.cluster_job import Job, given, plan_remotely, versions_here
from monet.lab.sweep.source import Options, Source
from monet.step.second_memory.offload import parse_offload

logger = logging.getLogger(__name__)

ANSWER_S = 10
"""Seconds that the scheduler gets to answer, and then to have a worker."""


_ADDRESS = re.compile(r"([a-z]+://)?[^\s/]+:\d{1,5}/?|inproc://\S+")


class ClusterWorkers:
    """A context: the workers of the scheduler at ``address``, as ``tcp://10.0.0.1:8786``."""

    def __init__(self, source: Source, options: Options, address: str, progress: bool) -> None:
        self._source, self._options, self._address, self._progress = source, options, address, progress
        self._client: Any = None
        self._futures: list[Any] = []
        self._job: Job | None = None

    def __enter__(self) -> ClusterWorkers:
        """Raises ``ConfigError`` where the address is none, the extra is missing or the offload is of one machine;
        ``MonetError`` where no scheduler answers, where it has no workers, or these have other versions."""
        offload = None if self._options.offload is None else parse_offload(self._options.offload)
        if offload is not None and offload.is_here:
            raise ConfigError(
                f"--offload {offload} is a memory of one machine, and --cluster plans on several: say how fast it is, "
                "as --offload bandwidth=2GB/s"
            )
        if not _ADDRESS.fullmatch(self._address):  # which Dask would look for, and then end with a traceback
            raise ConfigError(f"--cluster {self._address!r} is no address of a scheduler: give one as tcp://HOST:8786")
        try:
            import distributed
        except ImportError as error:
            raise ConfigError(f"--cluster needs Dask's scheduler: pip install distributed ({error})") from None
        try:
            self._client = distributed.Client(self._address, timeout=ANSWER_S, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:  # TimeoutError is an OSError
            raise MonetError(
                f"no Dask scheduler answers at {self._address}: {error}; start one with `dask scheduler`, workers with "
                "`dask worker ADDRESS`, and give its address as tcp://HOST:8786"
            ) from error
        try:
            self._check_workers()
        except BaseException:
            self._client.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """What was not planned is cancelled; a worker that plans a cell at that time ends it for nothing."""
        try:
            waiting = [future for future in self._futures if not future.done()]
            if waiting and self._client.status == "running":
                self._client.cancel(waiting, force=True)
            self._futures.clear()
        finally:
            self._client.close()

    def _check_workers(self) -> None:
        def look() -> dict[str, str]:
            """Goes to the workers as code, for those that have no monet."""
            from importlib.metadata import PackageNotFoundError, version

            found = {}
            for package in ("monet-planner", "torch"):
                try:
                    found[package] = version(package)
                except PackageNotFoundError:
                    found[package] = "none"
            return found

        try:
            self._client.wait_for_workers(1, timeout=ANSWER_S)
        except TimeoutError as error:
            raise MonetError(
                f"the scheduler at {self._address} has no workers; start some with `dask worker {self._address}`"
            ) from error
        here = versions_here()
        for worker, there in sorted(self._client.run(look).items()):
            for package, version in here.items():
                if there[package] != version:
                    raise MonetError(
                        f"the worker at {worker} has {package} {there[package]}, and this is {package} {version}: "
                        "install the same on all machines"
                    )

    def prepare(self) -> Step:
        """Prepares the step in this process. Raises ``MonetError``."""
        from monet.lab.sweep.cell_planners import open_planner

        planner = open_planner(self._source, self._options, self._progress)
        threads = None
        if self._source.config is not None:
            import torch

            threads = torch.get_num_threads()
        self._job = Job(
            uuid.uuid4().hex, self._source, self._options, planner.step, planner.costs, threads, versions_here()
        )
        return planner.step

    def plan(self, cells: Mapping[Cell, Path]) -> Iterator[tuple[Cell, Outcome]]:
        """Cells and their outcomes, as they are done; the values are where a model's plan files go.

        Raises ``MonetError`` where the scheduler is lost.
        """
        import distributed

        job = self._job
        assert job is not None
        # A task of its own: its result is made again where the worker that has it dies.
        brought = self._client.submit(given, job, key=f"monet-job-{job.name}", pure=False)
        of: dict[Any, Cell] = {}
        for cell in cells:
            key = f"monet-cell-{cell.variant}-{cell.budget_bytes}-{job.name}"
            of[self._client.submit(plan_remotely, brought, cell, key=key, pure=False)] = cell
        self._futures = [*of, brought]
        for future in distributed.as_completed(of, loop=self._client.loop, raise_errors=False):
            if future.status in ("cancelled", "lost"):
                raise MonetError(
                    f"the scheduler at {self._address} was lost; finished cells are kept, and the same command goes on"
                )
            cell = of[future]
            error = future.exception()
            if error is not None:
                yield cell, Outcome("error", job.step.problem, _reason(error))
                continue
            outcome, plan = future.result()
            if plan is not None:
                write_text_atomically(cells[cell], plan)
            yield cell, outcome


def _reason(error: BaseException) -> str:
    if type(error).__name__ == "KilledWorker":
        return "the workers that planned it died, one after the other, most likely for lack of memory"
    return f"{type(error).__name__}: {error}"
