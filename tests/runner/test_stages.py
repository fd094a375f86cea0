"""Before a stage's work begins."""

from __future__ import annotations

import pytest

from runner.failures import ExportFailed
from runner.stages import MUCH_BYTES, Work, refuse_without_room


def work(size: int) -> Work:
    return Work("export", "key", {}, {}, 1, "llama", disk_bytes=size)


def test_what_cannot_fit_the_disk_is_refused_before_it_is_begun(tmp_path):
    with pytest.raises(ExportFailed, match=r"export will write about 1e\+09 GB, and .* GB are free in") as caught:
        refuse_without_room(work(10**18), tmp_path)
    assert caught.value.error_type == "DiskFull" and not caught.value.final


def test_what_fits_or_is_little_is_not(tmp_path):
    refuse_without_room(work(0), tmp_path)
    refuse_without_room(work(MUCH_BYTES), tmp_path)
    refuse_without_room(work(MUCH_BYTES - 1), tmp_path / "absent")
