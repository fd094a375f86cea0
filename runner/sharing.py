"""What machines share by `store.remote`: artifacts pulled on a miss, and pushed the moment they are complete.

What goes wrong there is told and done without: a sweep has what it needs in its
own store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from runner import schema
from runner.processes import in_thread
from runner.remote import Remote, RemoteFailed
from runner.store import Artifact, Store

# Transfers side by side.
AT_A_TIME = 4


@dataclass
class Sharing:
    """remote: None where nothing is shared. `say` is told what comes, what goes, and what fails, each once."""

    store: Store
    remote: Remote | None
    say: Callable[[str], None] = lambda text: None
    pushes: dict[str, asyncio.Task] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    asks: bool = True  # False once the remote could not be reached: each further question would wait as long
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))

    @classmethod
    def of(cls, store: Store, settings: schema.Settings, say: Callable[[str], None]) -> Sharing:
        remote = settings.store.remote
        return cls(store, Remote(remote) if remote else None, say)

    async def pull(self, kind: str, key: str, said: str = "") -> Artifact | None:
        """What the remote has under `key`, now in the store; None where it has none, or cannot be reached."""
        if self.remote is None or not self.asks:
            return None
        try:
            pulled = await in_thread(self.remote.pull, self.store, kind, key)
        except RemoteFailed as failure:
            self.asks = not failure.error_type  # without one, this artifact alone is not what it should be
            self.tell("not had from store.remote", failure)
            return None
        if said or pulled:
            self.say(f"{said or f'{kind} {key[:12]}'}: {'from' if pulled else 'not on'} store.remote")
        if pulled:
            self.pushes[f"{kind}/{key}"] = settled()  # it is there already
        return pulled

    def push(self, artifact: Artifact, kind: str, key: str) -> None:
        """Begin to put an artifact on the remote, unless that was begun. A push that broke off goes on where it was."""
        # A download of which nobody could say whether all is there is nobody else's.
        known = f"{kind}/{key}" in self.pushes or artifact.meta.get("listed") is False
        if self.remote is None or not self.asks or known:
            return
        self.pushes[f"{kind}/{key}"] = asyncio.create_task(self.put(artifact, kind, key))

    async def put(self, artifact: Artifact, kind: str, key: str) -> None:
        assert self.remote is not None
        async with self.slots:
            if not self.asks:
                return
            try:
                await in_thread(self.remote.push, artifact, kind, key)
            except RemoteFailed as failure:
                self.asks = self.asks and not failure.error_type
                self.tell("not put on store.remote", failure)

    async def settle(self, seconds: float | None = None) -> None:
        """Wait for what is on its way, `seconds` at most; what is not there by then goes on at the next start."""
        under_way = [task for task in self.pushes.values() if not task.done()]
        if not under_way:
            return
        self.say(f"putting {len(under_way)} artifact{'s' * (len(under_way) != 1)} on store.remote")
        _, late = await asyncio.wait(under_way, timeout=seconds)
        if late:
            self.say(f"{len(late)} not there yet: the next start goes on with them")

    def tell(self, what: str, failure: RemoteFailed) -> None:
        """Say what failed, once a kind: the messages have the artifacts' keys in them."""
        kind = f"{what} {failure.error_type}"
        if kind not in self.told:
            self.told.add(kind)
            without = "" if self.asks else "; this sweep goes on without it"
            self.say(f"{what}: {failure.line()} ({failure.hint}){without}")


def settled() -> asyncio.Future:
    """A push with nothing to do."""
    future = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future
