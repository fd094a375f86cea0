"""A machine that is taken away: what is complete is on the remote, rows say what happened, the next start goes on."""

from __future__ import annotations

import signal
import time

import pytest
from lab import Lab, artifacts, children_at_work, results, start, wait_for

pytestmark = pytest.mark.slow
ASKED = ("builder=0.14.1", "patch=none,rope_fix", "model=tiny_gemma3,tiny_gemma2", "jobs=1")


def on_remote(folder, kind: str) -> set[str]:
    return {path.parent.name for path in folder.glob(f"{kind}/*/manifest.json")}


@pytest.fixture
def reclaimed(lab: Lab, rope, tmp_path):
    """A sweep that got SIGTERM once its first export was complete: its log, and how long it took to end."""
    remote = tmp_path / "remote"
    process = start(lab, *ASKED, f"store.remote={remote.as_uri()}")
    wait_for(lambda: artifacts(lab, "export") and children_at_work(lab, "reference"), process)
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    return remote, out + err, time.monotonic() - asked, process.returncode


def test_a_reclaim(lab: Lab, reclaimed, tmp_path):
    remote, log, seconds, code = reclaimed
    assert seconds < 20 and code == 130, log
    statuses = {row["status"] for row in results(lab)}
    assert "preempted" in statuses and statuses <= {"preempted", "ok"}
    banked = on_remote(remote, "export")
    assert banked == set(artifacts(lab, "export"))  # what was complete is there
    # Another machine: an empty store, the same remote and database.
    other = f"store.root={tmp_path / 'other'}"
    done = lab.run(*ASKED, f"store.remote={remote.as_uri()}", other)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"export {next(iter(banked))[:12]}: from store.remote" in done.stderr
    rows = results(lab, "--sweep", "latest")
    assert len(rows) == 20 and {row["status"] for row in rows} == {"ok"}
    assert len(on_remote(remote, "export")) == 4 and len(on_remote(remote, "compare")) == 4


def test_nothing_is_computed_where_all_is_on_the_remote(lab: Lab, rope, tmp_path):
    remote = f"store.remote={(tmp_path / 'remote').as_uri()}"
    asked = ("builder=0.14.1", "patch=rope_fix", remote)
    assert lab.run(*asked).returncode == 0
    done = lab.run(*asked, f"store.root={tmp_path / 'other'}", f"db.url={tmp_path / 'other.db'}")
    assert done.returncode == 0, done.stderr
    assert "worker starts" not in done.stderr and "from store.remote" in done.stderr


@pytest.fixture
def stalled(lab: Lab, rope) -> dict:
    """The row of a cell of which one rank was stopped: the other waits for it, as in a deadlock of collectives."""
    process = start(lab, "model=tiny_gemma4", "backend=tp_cpu", "max_new_tokens=500", "prompts=five_unstopped",
                    "limits.stall_seconds=4", "noise.variants=[]")  # fmt: skip
    ranks = wait_for(lambda: len(found := children_at_work(lab, "candidate")) >= 2 and found, process)
    max(ranks, key=lambda rank: rank.pid).suspend()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, out + err
    (cell,) = results(lab)
    return cell | {"shown": lab.call("db", "show", str(cell["cell"])).stdout}


def test_a_deadlock_is_stalled_and_the_row_has_the_stacks_of_all_its_processes(stalled):
    assert stalled["status"] == "stalled"
    assert "used no CPU for longer than allowed" in stalled["error"]
    shown = stalled["shown"]
    assert "stack_dump" in shown and "stopped" in shown  # the rank that hangs
    assert "torch/distributed" in shown  # and what the other waits in
