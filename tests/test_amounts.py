"""Amounts of memory: what is read, what is refused, and how they are shown."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monet.amounts import ByteBudget, ByteCount, PeakShare, format_bytes, parse_budget, parse_byte_count
from monet.errors import ConfigError


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


def test_budgets_print_for_people() -> None:
    assert str(parse_budget("6GiB")) == "6.442 GB"
    assert str(parse_budget("12.5%")) == "12.5% of eager's peak"
