"""Releases by version, commits by ancestry and then by date; never by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from db.builder_order import SHORT, Builder, before, known, ordered
from db.models import SourceCommit

START = datetime(2026, 1, 1, tzinfo=UTC)


def commit(name: str, day: int, ancestors: tuple[str, ...] = (), **releases: tuple[int, str | None]) -> Builder:
    """A ref whose commit's hash is its name; releases: v0_17=(day of its tag, side)."""
    tags = {
        version.removeprefix("v").replace("_", "."): {"date": (START + timedelta(days=at)).isoformat(), "side": side}
        for version, (at, side) in releases.items()
    }
    short = [ancestor.ljust(40, "0")[:SHORT] for ancestor in ancestors]
    found = SourceCommit(commit=name.ljust(40, "0"), date=START + timedelta(days=day), releases=tags, ancestors=short)
    return Builder(name, commit=found)


def release(version: str, day: int | None = None) -> Builder:
    return Builder(version, Version(version), released=None if day is None else START + timedelta(days=day))


def names(*builders: Builder) -> list[str]:
    return [builders[place].name for place in ordered(builders)]


def test_releases_are_ordered_by_version_whatever_their_names():
    assert names(release("0.9.2"), release("0.14.1"), release("0.10.0")) == ["0.9.2", "0.10.0", "0.14.1"]


def test_an_ancestor_comes_first_though_its_date_and_its_name_are_later():
    old, new = commit("zz", day=9), commit("aa", day=3, ancestors=("zz",))
    assert names(new, old) == ["zz", "aa"]


def test_without_ancestry_the_date_decides():
    one, two = commit("main", day=1), commit("feature", day=5)
    assert names(two, one) == ["main", "feature"] and before(one, two) is None and known(one, two)


def test_a_commit_stands_among_the_releases():
    # 0.17 is its ancestor; 0.18 was cut on another branch, after it.
    ref = commit("main", day=50, v0_17=(20, "before"), v0_18=(60, None))
    assert names(release("0.18", 60), ref, release("0.17", 20)) == ["0.17", "main", "0.18"]
    inside = commit("pick", day=70, v0_18=(60, "after"))
    assert names(release("0.18", 60), inside) == ["pick", "0.18"]


def test_what_nothing_is_known_of_comes_last_and_its_order_is_not_claimed():
    copy = Builder("copy", dirty=True)
    assert names(copy, release("0.18.0"), commit("main", 1)) == ["0.18.0", "main", "copy"]
    assert not known(copy, release("0.18.0"))


def test_a_dirty_copy_comes_after_its_commit():
    clean = commit("main", day=1)
    dirty = Builder("copy", commit=clean.commit, dirty=True)
    assert names(dirty, clean) == ["main", "copy"]


@given(st.permutations(range(6)), st.lists(st.integers(0, 30), min_size=6, max_size=6))
def test_a_chain_of_commits_keeps_its_order_whatever_the_dates(places, days):
    chain = [commit(f"c{n}", days[n], tuple(f"c{m}" for m in range(n))) for n in range(6)]
    assert names(*(chain[n] for n in places)) == [f"c{n}" for n in range(6)]
