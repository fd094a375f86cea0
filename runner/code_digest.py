"""Whether the code that makes a stage's output is the code that its number stands for.

A stage's number (`cell_stages.VERSIONS`) is part of its key. ``worker_digests.json`` says with which code each number
goes: a digest of the syntax tree of the stage's worker module and of all that it imports of the worker. Where the code
that is there has another digest, or a module has none (a backend of one's own), the digest of the code enters the key:
such results are kept apart, and are not found with other code's numbers.

    python -m runner.code_digest             # which modules differ; exit code 1 where any does
    python -m runner.code_digest --renew     # write the digests of stages whose number was raised, and of new modules
    python -m runner.code_digest --renew --output-unchanged     # and of those whose output a change left as it was
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from runner import hashing, paths

COMMITTED = Path(__file__).with_name("worker_digests.json")
UNCHANGED = "output unchanged"
# Digests of a module that are remembered: of the last edits.
MOST_KEPT = 20
ADVICE = f"""Where a stage's output changes for the same inputs, raise its number (VERSIONS in runner/cell_stages.py; of
model: VERSION in runner/models.py), and run: python -m runner.code_digest --renew
Where it does not: python -m runner.code_digest --renew --output-unchanged MODULE...
and say "{UNCHANGED}" in the commit."""


@dataclass(frozen=True)
class Entry:
    """Of a stage's worker module: the stage, its number, the digest of the code that goes with it. note: why the digest
    could be renewed under the same number."""

    stage: str
    version: int
    digest: str
    note: str = ""

    def line(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if value != ""})


def differing(module: str) -> str | None:
    """The digest of a stage's code, where it is not the committed one; the module is the worker's."""
    known, digest = committed(COMMITTED).get(module), of_module(module, paths.WORKER)
    return None if known and known.digest == digest else digest


def told(stage: str, module: str, digest: str) -> str:
    """The line that says so."""
    released = module in committed(COMMITTED)
    why = "differs from the released one" if released else "is none of the released"
    return f"stage {stage}: its code ({module}.py, {digest[:12]}) {why}: its results are kept apart"


@cache
def committed(path: Path) -> dict[str, Entry]:
    """The digests that go with the stages' numbers, by module; none where there is no such file."""
    try:
        return {module: Entry(**entry) for module, entry in json.loads(path.read_text(encoding="utf-8")).items()}
    except FileNotFoundError:
        return {}


@cache
def files_of(worker: Path) -> tuple[dict[str, bytes], str]:
    """The worker's modules by name, and a hash of all of them and of how they are read here."""
    files = {path.stem: path.read_bytes() for path in sorted(worker.glob("*.py"))}
    reading = [path.read_bytes() for path in (Path(__file__), Path(__file__).with_name("syntax.py"))]
    each = [hashlib.sha256(content).hexdigest() for content in (*files.values(), *reading)]
    return files, hashing.of_value(list(files), each)


@cache
def of_module(module: str, worker: Path) -> str:
    """The digest of a worker's module with all of the worker's that it imports, and they import.

    Trees take a second and bytes a millisecond, so that what the same files came to is kept beside the results.
    """
    files, whole = files_of(worker)
    if module not in files:
        return "absent"  # the stage will say so
    kept = paths.state_root() / "code" / f"{module}-{whole}"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if len(found := kept.read_text(encoding="ascii")) == 64:
            return found
    digest = computed(module, files)
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_name(f"{kept.name}.{os.getpid()}.part")
        part.write_text(digest, encoding="ascii")
        part.replace(kept)
        for old in sorted(kept.parent.glob(f"{module}-*"), key=lambda path: path.stat().st_mtime)[:-MOST_KEPT]:
            old.unlink(missing_ok=True)
    return digest


def computed(module: str, files: dict[str, bytes]) -> str:
    """The digest of `module`, from the bytes of the worker's files by module."""
    from runner import syntax  # parsing is seldom needed

    modules, open_, names = {}, [module], frozenset(files)
    try:
        while open_:
            name = open_.pop()
            modules[name] = syntax.module_of(files[name].decode(), names)
            open_ += [own for own in modules[name].own if own not in modules and own not in open_]
    except (SyntaxError, UnicodeDecodeError):  # the stage will say so
        return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    return syntax.digest_of(module, modules)


def current() -> dict[str, Entry]:
    """Each stage's modules with the stage's number and the digest of the code that is there."""
    from runner import backends, models
    from runner.cell_stages import VERSIONS

    stages = {name: name for name in VERSIONS} | {models.KIND: models.KIND}
    for name in backends.NAMES:
        made = backends.stages(name)
        stages |= {
            module: stage for module, stage in ((made.EXPORT, "export"), (made.CANDIDATE, "candidate")) if module
        }
    numbers = {**VERSIONS, models.KIND: models.VERSION}
    return {
        module: Entry(stage, numbers[stage], of_module(module, paths.WORKER))
        for module, stage in sorted(stages.items())
    }


def wrong(known: dict[str, Entry], there: dict[str, Entry]) -> dict[str, str]:
    """What is wrong with each module's committed entry, in words."""
    found = {module: "it is no stage's module any more" for module in known.keys() - there.keys()}
    for module, entry in there.items():
        was = known.get(module)
        if was is None:
            found[module] = "it has no digest yet"
        elif was.version != entry.version:
            found[module] = f"the number of {entry.stage} was {was.version} and is {entry.version}"
        elif was.digest != entry.digest:
            found[module] = (
                f"its code, or what it imports, has changed, and number {entry.version} of {entry.stage} not"
            )
    return dict(sorted(found.items()))


def report(found: dict[str, str]) -> str:
    """What `wrong` found, and what to do."""
    if not found:
        return "every stage's modules are the code of its number"
    return "\n".join([*(f"{module}: {why}" for module, why in found.items()), "", ADVICE])


def renewed(known: dict[str, Entry], there: dict[str, Entry], unchanged: frozenset[str]) -> dict[str, Entry]:
    """The entries to commit. unchanged: modules whose code changed and whose output did not."""
    result = {}
    for module, entry in there.items():
        was = known.get(module)
        if was is None or was.version != entry.version:
            result[module] = entry
        elif was.digest == entry.digest or module not in unchanged:
            result[module] = was
        else:
            result[module] = Entry(entry.stage, entry.version, entry.digest, UNCHANGED)
    return result


def write(entries: dict[str, Entry], path: Path) -> None:
    """One line a module, sorted, so that two changes seldom meet."""
    lines = [f"  {json.dumps(module)}: {entry.line()}" for module, entry in sorted(entries.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runner.code_digest", description=__doc__.splitlines()[0])
    parser.add_argument("--renew", action="store_true", help=f"write {COMMITTED.name}")
    parser.add_argument(
        "--output-unchanged", nargs="*", metavar="MODULE",
        help="with --renew: the output of these is the same as before; of all that differ, where none is named",
    )  # fmt: skip
    asked = parser.parse_args(arguments)
    known, there = committed(COMMITTED), current()
    if asked.output_unchanged is not None and not asked.renew:
        parser.error("--output-unchanged goes with --renew")
    if unknown := set(asked.output_unchanged or ()) - there.keys():
        parser.error(f"no stage has a module {', '.join(sorted(unknown))}; there are {', '.join(there)}")
    if asked.renew:
        unchanged = frozenset() if asked.output_unchanged is None else frozenset(asked.output_unchanged or there)
        write(known := renewed(known, there, unchanged), COMMITTED)
        committed.cache_clear()
    found = wrong(known, there)
    print(report(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
