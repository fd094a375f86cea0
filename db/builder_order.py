"""The order of builders: releases by version, commits by ancestry and then by date.

A name says nothing of age: ``main`` may be older than ``v0.17``, and a hash is
no number. What git knows of a commit is kept beside the cells that used it
(`SourceCommit`), so that reports need no repository.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from packaging.version import InvalidVersion, Version
from sqlalchemy import Engine, select

from db.differences import in_chunks
from db.engine import reading
from db.models import SourceCommit

# How many digits of a commit's hash its descendants keep.
SHORT = 12
EARLIEST, LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Builder:
    """A builder as its order needs it.

    version: of a release. commit: what git knows, of a ref or a working copy;
    dirty: a working copy with changes that no commit has. released: when a
    release was tagged, where a commit's repository says so.
    """

    name: str
    version: Version | None = None
    commit: SourceCommit | None = None
    dirty: bool = False
    released: datetime | None = None

    @property
    def date(self) -> datetime | None:
        return as_utc(self.commit.date) if self.commit else self.released


def builders_of(engine: Engine, rows: Sequence[Mapping[str, Any]]) -> list[Builder]:
    """The builders of some cells' rows ("builder", "source_commit", "source_dirty"), one a row."""
    hashes = sorted({row["source_commit"] for row in rows if row["source_commit"]})
    with reading(engine) as session:
        found = in_chunks(session, select(SourceCommit), SourceCommit.commit, hashes)
        commits = {commit.commit: commit for (commit,) in found}
        session.expunge_all()
    dates = {
        version: datetime.fromisoformat(tag["date"])
        for commit in commits.values()
        for version, tag in commit.releases.items()
    }
    return [builder_of(row, commits, dates) for row in rows]


def builder_of(row: Mapping[str, Any], commits: Mapping[str, SourceCommit], dates: Mapping[str, datetime]) -> Builder:
    name = row["builder"]
    if not row["source_commit"]:
        try:
            return Builder(name, Version(name), released=dates.get(str(Version(name))))
        except InvalidVersion:
            return Builder(name)
    return Builder(name, commit=commits.get(row["source_commit"]), dirty=bool(row["source_dirty"]))


def before(one: Builder, two: Builder) -> bool | None:
    """Whether one builder is an ancestor of the other or an earlier release; None where neither is known."""
    if one.version and two.version:
        return None if one.version == two.version else one.version < two.version
    if one.commit and two.commit:
        if one.commit.commit == two.commit.commit:
            return None if one.dirty == two.dirty else two.dirty
        if one.commit.commit[:SHORT] in two.commit.ancestors:
            return True
        return False if two.commit.commit[:SHORT] in one.commit.ancestors else None
    if one.version and two.commit:
        return in_release(two.commit, one.version)
    if one.commit and two.version:
        found = in_release(one.commit, two.version)
        return None if found is None else not found
    return None


def in_release(commit: SourceCommit, version: Version) -> bool | None:
    """Whether a release came before a commit: True where the commit stands on it, False where it holds the commit."""
    return {"before": True, "after": False}.get(commit.releases.get(str(version), {}).get("side"))


def known(one: Builder, two: Builder) -> bool:
    """Whether anything says which of two builders is the older: ancestry, versions, or two dates."""
    return before(one, two) is not None or None not in (one.date, two.date)


def ordered(builders: Sequence[Builder]) -> list[int]:
    """The places of some builders from the oldest to the newest.

    Ancestry and versions always hold; where they leave a choice the earlier
    date comes first. Without any date a release comes first and a working copy
    of no known commit last, by name.
    """
    count = len(builders)
    later: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for i in range(count):
        for j in range(i + 1, count):
            known_before = before(builders[i], builders[j])
            if known_before is not None:
                first, second = (i, j) if known_before else (j, i)
                later[first].append(second)
                waits[second] += 1

    def key(place: int) -> tuple:
        one = builders[place]
        return one.date or (EARLIEST if one.version else LATEST), one.name, place

    free = [key(place) for place in range(count) if not waits[place]]
    heapq.heapify(free)
    order = []
    while free:
        place = heapq.heappop(free)[-1]
        order.append(place)
        for second in later[place]:
            waits[second] -= 1
            if not waits[second]:
                heapq.heappush(free, key(second))
    # What git says cannot go in a circle; a repository whose tags were moved might.
    return order + [place for place in range(count) if place not in set(order)]


def as_utc(moment: datetime) -> datetime:
    """A moment as read from SQLite, which keeps no zone; all are stored in UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
