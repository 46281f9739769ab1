"""Amounts of memory: what is read, what is refused, and how they are shown."""

from __future__ import annotations

import pickle
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monet.base.amounts import (
    ByteBudget,
    ByteCount,
    PeakShare,
    format_bytes,
    format_exactly,
    parse_budget,
    parse_byte_count,
    refusals_in,
    refusals_of,
)
from monet.errors import ConfigError, InfeasibleBudget


@pytest.mark.parametrize(
    ("written", "budget"),
    [
        ("6GB", ByteCount(6_000_000_000)),
        ("6GiB", ByteCount(6 * 2**30)),
        ("6000000000", ByteCount(6_000_000_000)),
        ("500MB", ByteCount(500_000_000)),
        ("6e9", ByteCount(6_000_000_000)),
        ("5.5E3kB", ByteCount(5_500_000)),
        ("5.5GiB", ByteCount(11 * 2**29)),
        ("  6 gb ", ByteCount(6_000_000_000)),
        ("1.5B", ByteCount(1)),
        ("3,000,000 bytes", ByteCount(3_000_000)),
        ("1,500", ByteCount(1500)),
        ("512 bytes", ByteCount(512)),
        ("2KiB", ByteCount(2048)),
        ("1TB", ByteCount(10**12)),
        ("1TiB", ByteCount(2**40)),
        ("50%", PeakShare(Fraction(1, 2))),
        ("12.5 %", PeakShare(Fraction(1, 8))),
        ("150%", PeakShare(Fraction(3, 2))),
        (6_000_000_000, ByteCount(6_000_000_000)),
        (6e9, ByteCount(6_000_000_000)),
        (ByteCount(7), ByteCount(7)),
        (PeakShare(Fraction(1, 3)), PeakShare(Fraction(1, 3))),
    ],
)
def test_budget_is_read(written: ByteBudget | int | float | str, budget: ByteBudget) -> None:
    assert parse_budget(written) == budget


@pytest.mark.parametrize(
    "written",
    [
        "6QB",
        "",
        "GB",
        "-1GB",
        "1,5GB",
        "1,500GB",
        "15,00",
        "6e",
        "1e400",
        "6 G",
        "6GBs",
        "%",
        "9" * 5000,
        "\u0666GB",
        -1,
        True,
        None,
        float("inf"),
        float("nan"),
    ],
)
def test_budget_is_refused_with_what_is_accepted(written: int | str) -> None:
    with pytest.raises(ConfigError, match=r"not an amount of memory.*6GB.*5\.5GiB.*50%"):
        parse_budget(written)


@pytest.mark.parametrize("written", ["0", 0, "0.4B", 0.5, "0%"])
def test_a_budget_of_nothing_is_refused(written: float | str) -> None:
    with pytest.raises(ConfigError, match="50%"):
        parse_budget(written)


def test_budget_is_resolved_against_eagers_peak() -> None:
    assert parse_budget("50%").resolve(1001) == 500
    assert parse_budget("33.3%").resolve(1000) == 333
    assert parse_budget("6GB").resolve(1001) == 6_000_000_000


def test_byte_count_may_be_zero_but_not_a_share() -> None:
    assert parse_byte_count("0") == 0
    assert parse_byte_count("1.5kB") == 1500
    with pytest.raises(ConfigError, match="share"):
        parse_byte_count("50%")
    with pytest.raises(ConfigError, match="not an amount"):
        parse_byte_count("6QB")


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.000 kB"),
        (5_998_123_456, "5.998 GB"),
        (15_040_000_000, "15.040 GB"),
        (999_999_999, "1.000 GB"),
        (-2_500_000, "-2.500 MB"),
        (3 * 10**13, "30.000 TB"),
    ],
)
def test_bytes_are_shown(count: int, shown: str) -> None:
    assert format_bytes(count) == shown


@given(st.integers(min_value=1, max_value=10**14))
def test_shown_bytes_read_back_within_their_last_digit(count: int) -> None:
    assert parse_byte_count(format_bytes(count)) == pytest.approx(count, rel=5.01e-4)


@pytest.mark.parametrize(
    ("written", "count", "shown"),
    [
        ("6GB", 5_986_000_000, "5.986 GB"),
        ("6GB", 294_000_000, "294.000 MB"),
        ("6000MB", 15_040_000_000, "15040.000 MB"),
        ("5.5gib", 11 * 2**29, "5.500 GiB"),
        ("5.5GiB", 3 * 2**20, "3.000 MiB"),
        ("5GiB", 1023, "1023 B"),
        ("6000000000", 5_986_123_456, "5,986,123,456 bytes"),
        ("6000000000B", 512, "512 bytes"),
        (6_000_000_000, 5_986_123_456, "5,986,123,456 bytes"),
        ("50%", 5_986_000_000, "5.986 GB"),
    ],
)
def test_amounts_are_shown_in_the_unit_of_the_budget(written: str | int, count: int, shown: str) -> None:
    unit = parse_budget(written).unit
    assert format_bytes(count, unit) == shown
    exactly = f"{count:,} bytes"
    assert format_exactly(count, unit) == (exactly if count < 2000 or unit == "B" else f"{shown} ({exactly})")
    assert parse_budget(exactly) == ByteCount(count)


def test_refusals_are_told_in_the_unit_of_the_budget() -> None:
    def refused(unit: str) -> str:
        with pytest.raises(InfeasibleBudget) as caught, refusals_in(unit):
            raise InfeasibleBudget(("No plan fits in ", 5_500_000_000, "."), 6_000_000_001)
        return str(caught.value)

    named = "The smallest budget known to work is"
    assert refused("GB").startswith(
        f"No plan fits in 5.500 GB (5,500,000,000 bytes). {named} 6.000 GB (6,000,000,001 bytes). Try that budget"
    )
    assert refused("MiB").startswith(f"No plan fits in 5245.209 MiB (5,500,000,000 bytes). {named} 5722.046 MiB")
    assert refused("B").startswith(f"No plan fits in 5,500,000,000 bytes. {named} 6,000,000,001 bytes. Try")
    untold = InfeasibleBudget(("No plan fits in ", 5_500_000_000, "."), 6_000_000_001)
    assert str(untold) == refused("B")
    again = pickle.loads(pickle.dumps(untold))
    assert (str(again), again.smallest_bytes) == (str(untold), 6_000_000_001)


@pytest.mark.parametrize(("count", "full"), [(3_000_001, 6_000_000), (999, 1000), (1, 3), (1_234_567, 1_000_003)])
def test_a_share_that_is_refused_is_answered_by_one_that_works(count: int, full: int) -> None:
    def refused(budget: str) -> str:
        with pytest.raises(InfeasibleBudget) as caught, refusals_of(parse_budget(budget), full):
            raise InfeasibleBudget(("No plan fits in ", 7, "."), count)
        return str(caught.value)

    said = re.search(r"is ([\d,]+) bytes, ([\d.]+%) of eager's peak\. Try", refused("40%"))
    assert said is not None and said[1] == f"{count:,}"
    named = parse_budget(said[2]).resolve(full)
    assert count <= named <= count + full // 1000
    assert "of eager's peak" not in refused("6GB")


def test_budgets_print_for_people() -> None:
    assert str(parse_budget("6GiB")) == "6.000 GiB"
    assert str(parse_budget("12.5%")) == "12.5% of eager's peak"
