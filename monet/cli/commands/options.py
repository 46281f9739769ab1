"""The options that ``monet plan`` and ``monet sweep`` share, each declared once, and how amounts are read."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from monet.base.amounts import parse_byte_count, parse_percentage
from monet.cli.commands.sectioned_help import Rows, SectionedOption
from monet.errors import ConfigError

if TYPE_CHECKING:
    from monet.planner.search import Solving
    from monet.step.second_memory.offload import Offload

_Amount = TypeVar("_Amount")
Command = Callable[..., None]
Decorator = Callable[[Command], Command]

WHAT, BUDGET, CHOICES, SOLVING, RESULT = "What to plan", "Budget", "What a plan may use", "Solving", "Result"
"""Headings of the sections of options."""
SHARE = "50%, which is of eager's peak, or of what keeping everything needs in a plan, if that is more."
"""What a percentage is of, in the help of budgets."""


class FiniteRange(click.FloatRange):
    """``click.FloatRange`` takes what is no number, and infinity, for numbers in any range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises ``click.BadParameter``."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Share(FiniteRange):
    """A share, as a number or with a percent sign: 0.01 or 1%."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share, 1 for 100%. Raises ``click.BadParameter``."""
        if isinstance(value, str) and value.rstrip().endswith("%"):
            return super().convert(value.rstrip().removesuffix("%"), param, ctx) / 100
        return super().convert(value, param, ctx)


def amount(parse: Callable[[str], _Amount]) -> Callable[[click.Context, click.Parameter, str | None], _Amount | None]:
    """An option's callback that reads an amount or a name; None where the option was not given."""

    def callback(context: click.Context, parameter: click.Parameter, value: str | None) -> _Amount | None:
        if value is None:
            return None
        try:
            return parse(value)
        except ConfigError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def _offload(text: str) -> Offload:
    from monet.step.second_memory.offload import parse_offload

    return parse_offload(text)


def option(section: str, *declarations: str, **attributes: Any) -> Decorator:
    """``click.option`` whose help stands under the heading ``section``."""
    return click.option(*declarations, cls=SectionedOption, section=section, **attributes)


profile = option(
    WHAT,
    "--profile",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Plan a step that was measured elsewhere: a file of monet profile. Or published costs, in the format "
    "monet-profile-1; there is no plan file then: a schedule comes out, which says what is run again and when.",
)
batch = option(
    WHAT, "--batch", type=click.IntRange(min=1), help="Another batch than CONFIG's: its inputs' first dimension."
)
device = option(
    WHAT, "--device", type=click.Choice(["cpu", "cuda"]), help="Where the model is, instead of where CONFIG says."
)
reserve = option(
    BUDGET,
    "--reserve",
    metavar="BYTES",
    default="0",
    show_default=True,
    callback=amount(parse_byte_count),
    help="Part of the budget to leave free, for optimiser state say: 200MB.",
)
offload = option(
    CHOICES,
    "--offload",
    metavar="MEMORY",
    callback=amount(_offload),
    help="A second memory that tensors may be moved to and back: disk (a folder that monet chooses), "
    "disk:FOLDER,limit=20GB, host (main memory, of a model on a GPU), or bandwidth=12GB/s for one that is not there.",
)
density = option(
    CHOICES,
    "--density",
    metavar="PERCENT",
    default="75%",
    show_default=True,
    callback=amount(parse_percentage),
    help="For the baselines gist and gist-reduced: the share of non-zero values that there is room for where a tensor "
    "is stored as its non-zero values alone.",
)
no_cache = option(
    CHOICES,
    "--no-cache",
    is_flag=True,
    help="Measure every operator and search again, and keep neither measurements nor plans.",
)
exact = option(
    CHOICES, "--exact", is_flag=True, help="Only implementations of operators whose results equal eager's bit for bit."
)
fused = option(
    CHOICES,
    "--fused",
    is_flag=True,
    help="Elementwise operators, norms and cross entropy in regions, with kernels that PyTorch's compiler makes of "
    "them where they are faster. Needs a C++ compiler, and a minute the first time.",
)


def _few_threads(context: click.Context, option: click.Parameter, value: int | None) -> int | None:
    """The operating system gives a process no number of threads, and OpenMP ends it where one is missing."""
    cores = os.cpu_count() or 1
    most = max(MOST_THREADS, THREADS_PER_CORE * cores)
    if value is not None and value > most:
        raise click.BadParameter(f"{value} is more than {most}, the most on a machine with {cores} cores")
    return value


MOST_THREADS, THREADS_PER_CORE = 64, 4
threads = option(
    CHOICES,
    "--threads",
    type=click.IntRange(min=1),
    callback=_few_threads,
    help="CPU threads to plan for.  [default: PyTorch's own number]",
)
solver = option(
    SOLVING,
    "--solver",
    metavar="NAME",
    default="HIGHS",
    show_default=True,
    help="Solver of the 0-1 program: HIGHS, which comes with monet, or one of the list below.",
)
window = option(
    SOLVING,
    "--window",
    type=click.IntRange(min=1),
    help="How many stages before its last use a tensor may be recomputed in. Fewer make a smaller 0-1 program, whose "
    "bound then holds for plans within the windows only.  [default: chosen by the number of stages]",
)
cores = option(
    SOLVING,
    "--cores",
    type=click.IntRange(min=1),
    help="How many cores the search may keep busy. With 1, the same inputs give the same plan in any process, unless "
    "--time-limit ends a part of the search.  [default: all]",
)
gap = option(
    SOLVING,
    "--gap",
    type=Share(min=0),
    default=0.01,
    show_default=True,
    help="Stop once the bound proves that the plan is this close to the best one: 0.01, or 1%.",
)


def time_limit(default_s: float, what: str) -> Decorator:
    """``--time-limit``; ``what``: the plans that it is for."""
    return option(
        SOLVING,
        "--time-limit",
        type=FiniteRange(min=0, min_open=True),
        default=default_s,
        show_default=True,
        help=f"Seconds to solve, order and place {what}. Capture and measuring come on top.",
    )


def measure(what: str) -> Decorator:
    """``--measure``; ``what``: the steps that it runs."""
    return option(RESULT, "--measure", is_flag=True, help=f"Then run {what}, and print seconds and peaks of memory.")


def output(what: str, default: str) -> Decorator:
    """``--output``; ``what`` is written there."""
    return option(
        RESULT,
        "--output",
        "-o",
        metavar="PATH",
        type=click.Path(path_type=Path),
        help=f"{what}.  [default: {default}]",
    )


@dataclass(frozen=True, slots=True)
class PlanningOptions:
    """What both commands are told of how to plan, read. ``time_limit``: seconds; ``gap``, ``density``: shares."""

    reserve: int
    density: float
    exact: bool
    threads: int | None
    solver: str
    window: int | None
    time_limit: float
    gap: float
    offload: Offload | None
    cores: int | None

    def solving(self, *, prove: bool = False) -> Solving:
        """How to solve."""
        from monet.planner.search import Solving

        return Solving(self.time_limit, self.gap, self.window, self.solver.upper(), prove, self.cores)


def planning_options(time_limit_s: float, solves: str) -> Decorator:
    """The options of ``PlanningOptions``; the command gets them as ``planning``."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def packed(**options: Any) -> None:
            shared = {field.name: options.pop(field.name) for field in fields(PlanningOptions)}
            command(**options, planning=PlanningOptions(**shared))

        packs: Command = packed
        for declare in (
            gap,
            time_limit(time_limit_s, solves),
            window,
            solver,
            cores,
            threads,
            exact,
            offload,
            density,
            reserve,
        ):
            packs = declare(packs)
        return packs

    return decorate


def words() -> Rows:
    """What the help of the options takes for granted."""
    return (
        ("eager", "PyTorch's own run of the step, without a plan; its default implementation of every operator."),
        ("stage", "One operator of the backward pass, and what is run again just before it."),
        ("0-1 program", "The integer program whose solutions are plans: what is kept, run again, and by what."),
        ("bound", "What the solver proves beside a plan: no solution of the program takes less time."),
        ("MONeT", "Memory Optimization for Deep Networks (Shah et al., ICLR 2021), whose program monet solves."),
    )


def variant_lists() -> Iterable[tuple[str, Rows]]:
    """Variants and baselines, as the planner's registry describes them."""
    from monet.planner.schedules import ABLATION, BASELINES, MOVING, VARIANTS

    headed = (
        ("Variants, MONeT and parts of it", ABLATION),
        ("Variants with a second memory", MOVING),
        ("Baselines", BASELINES),
    )
    for heading, names in headed:
        yield heading, [(name, VARIANTS[name].description) for name in names]


def solvers() -> Rows:
    """The solvers that ``--solver`` takes."""
    from monet.planner.solvers.cvxpy import MIP_SOLVERS

    return (
        ("HIGHS", "always there; it starts from known plans, and Ctrl-C ends it with the best one"),
        ("others", f"those of these that CVXPY finds installed: {', '.join(sorted(MIP_SOLVERS - {'HIGHS'}))}"),
    )


def check_target(path: Path | None, option: str, *read: str | Path | None) -> None:
    """Refuse a file that cannot be written before the work is done rather than after it, and one that is ``read``."""
    if path is None:
        return
    if path.is_dir():
        raise click.BadParameter(f"{path} is a folder, not a file", param_hint=option)
    if path.exists() and any(Path(other).exists() and path.samefile(other) for other in read if other is not None):
        raise click.BadParameter(f"{path} is what is read: it would be overwritten", param_hint=option)
    folder = Path(os.path.realpath(path)).parent
    if path.exists() and not path.is_file() and os.access(path, os.W_OK):  # a pipe
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.BadParameter(f"{folder} is not a folder that can be written to", param_hint=option)


def check_folder(folder: Path) -> None:
    """Make the folder, or refuse one that cannot be written to, before the work is done rather than after it."""
    if folder.exists() and not folder.is_dir():
        raise click.BadParameter(f"{folder} is a file, not a folder", param_hint="--output")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise click.BadParameter(f"{folder} is not a folder that can be written to", param_hint="--output")
