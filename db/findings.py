"""What counts as a finding: what a result says of an export, and would say again.

This is the one definition. Reports, proofs, pairs, the history and claims take
findings only; what is none is "not known", with `why_unknown`. A failure is a
finding when it is final (another run would only repeat it) and came from a
stage that works on the export: with a full disk, a killed worker, too little
memory or a time limit nothing is known of it, and a reference, prompts, a
checkpoint or a comparison that failed are not the export's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import and_, case, func, or_

from db.models import AXES, Result

# The status that rows of cells without a result have.
PENDING = "pending"
# Ends that can say something of an export.
OF_EXPORT = ("ok", "export_failed", "load_failed", "run_failed")
# The stages whose failure is the export's own, whatever backend made or ran it.
EXPORT_STAGES = ("export", "candidate")
# Ends by which nobody tried: the cell was left out or broken off, and says that itself.
NOT_RUN = ("skipped", "preempted")

# `is_finding` in SQL, over `Result`. A result without a failed stage is one whose status says all.
FINDING = or_(
    Result.status == "ok",
    and_(
        Result.final,
        Result.status.in_(OF_EXPORT),
        or_(Result.failed_stage.is_(None), Result.failed_stage.in_(EXPORT_STAGES)),
    ),
)
# How many findings a group of results has.
FINDINGS_COUNT = func.sum(case((FINDING, 1), else_=0))


def is_finding(row: Mapping[str, Any]) -> bool:
    """Whether a cell's row ("status", "final", "failed_stage") says something of its export.

    What was compared is one even where the cell is not final: then only the comparison of its constants is tried again.
    """
    if row["status"] == "ok":
        return True
    return bool(row["final"]) and row["status"] in OF_EXPORT and row["failed_stage"] in (None, *EXPORT_STAGES)


def why_unknown(row: Mapping[str, Any]) -> str:
    """Why a cell's row ("error" beside the above) is no finding, in a phrase; "" where it is one."""
    status, stage = row["status"], row["failed_stage"]
    if is_finding(row):
        return ""
    if status == PENDING:
        return "it has no result yet"
    said = f"{status}: {row['error']}" if row["error"] else status
    if status in NOT_RUN:
        return said
    if row["final"]:
        return f"{said} ({f'in the {stage} stage: ' if stage else ''}not the export's)"
    return f"{said} (another run may end otherwise)" if status in OF_EXPORT else said


def unknown(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of some cells' rows those of which nothing is known: for each combination of all factors without a finding its
    newest cell."""
    newest: dict[tuple, Mapping[str, Any]] = {}
    known = set()
    for row in sorted(rows, key=lambda row: row["cell"]):
        key = tuple(row[axis] or "" for axis in AXES)
        newest[key] = row
        if is_finding(row):
            known.add(key)
    return [row for key, row in newest.items() if key not in known]
