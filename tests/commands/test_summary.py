"""The summary as data, and the page that describes it."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields

from repository import ROOT

from monet.lab.experiments.measured_steps import MEASURED_FIELDS
from monet.pipeline.summary import OrderSummary, Summary

PAGE = (ROOT / "docs" / "summary-format.md").read_text()


def _table(heading: str | None) -> dict[str, list[str]]:
    """The first table under ``heading`` (None: of the page), its first column → the others."""
    text = PAGE if heading is None else PAGE.partition(f"\n## {heading}\n")[2]
    lines = re.findall(r"^\| `(\w+)` \|(.*)\|$", text.partition("\n## ")[0], re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in lines}


def test_the_page_has_every_field_in_order_and_no_other() -> None:
    assert list(_table(None)) == [field.name for field in fields(Summary)]
    assert list(_table("order")) == [field.name for field in fields(OrderSummary)]
    assert list(_table("measured")) == list(MEASURED_FIELDS)


def test_the_page_says_which_fields_every_summary_has() -> None:
    always = {field.name for field in fields(Summary) if field.default is MISSING}
    assert {name for name, (_, when, _) in _table(None).items() if when == "always"} == always


def test_the_page_says_which_fields_may_be_null() -> None:
    nullable = {field.name for field in fields(Summary) if field.default is MISSING and "None" in str(field.type)}
    assert {name for name, (kind, _, _) in _table(None).items() if "or null" in kind} == nullable


def test_as_json_leaves_out_what_there_is_not() -> None:
    summary = Summary(
        status="heuristic", budget_bytes=10, peak_bytes=9, fixed_bytes=1, baseline_s=1.0, baseline_peak_bytes=9,
        objective_s=1.0, overhead=0.0, bound_s=None, gap=None, bound_scope="none", build_s=0.0, solve_s=0.0,
        recomputed=0, columns=0, order=OrderSummary("captured", 8, 7),
    )  # fmt: skip
    content = summary.as_json()
    assert content["bound_s"] is None and content["gap"] is None and content["columns"] == 0
    assert content["order"] == {"method": "captured", "peak_bytes": 8, "bound_bytes": 7}
    assert "rows" not in content and "measured" not in content
