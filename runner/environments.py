"""Environments: a requirement set resolved once to exact versions, then installed once.

uv does both. A resolution is stored under the hash of what was asked and
reused until `refresh`; an environment is named by the hash of its resolution,
so that equal sets are one environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import uv
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from runner import hashing, processes
from runner.failures import DISK_FULL_HINT, EnvFailed, says_disk_full
from runner.schema import Env
from runner.store import Store

STAMP = "ready.json"
UV_HINT = (
    "check the requirements and the network; UV_FIND_LINKS names a folder of wheels, UV_OFFLINE=1 uses uv's cache only"
)
# What an existing interpreter is asked: as `platform_tag` and `Resolution.packages` have it.
FACTS = """
import importlib.metadata, json, platform, sys, sysconfig
found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
tag = f"{sys.implementation.name}-{platform.python_version()}-{sys.platform}-{platform.machine()}"
paths = list(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))
print(json.dumps({"packages": found, "platform": tag, "paths": paths}))
"""
GPU_PACKAGE = re.compile(r"^(nvidia-|cuda-|triton$|pytorch-triton)")
GPU_VERSION = re.compile(r"\+(cu\d+|rocm|xpu)")


@dataclass(frozen=True)
class Resolution:
    """Exact packages for one interpreter.

    packages: {canonical name: version}, sorted; hash: of the packages and the
    platform, which is Python's version, the system and the processor.
    """

    packages: dict[str, str]
    hash: str
    platform: str
    base: Path | None = None  # an interpreter that exists, taken as it is
    extras: dict[str, str] = field(default_factory=dict)  # laid over `base`

    def text(self) -> str:
        return "".join(f"{name}=={version}\n" for name, version in self.packages.items())


def platform_tag() -> str:
    return f"{sys.implementation.name}-{platform.python_version()}-{sys.platform}-{platform.machine()}"


def wheel_source() -> list[str]:
    """uv's arguments that bring torch's CPU build: a local folder if one is named, else uv's backend."""
    links = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    if links:
        return [part for link in re.split(r"[\s,]+", links.strip()) for part in ("--find-links", link)]
    return ["--torch-backend", "cpu"]


def what_uv_said(text: str) -> str:
    """uv's error in a line, without the progress before it and the hints after it."""
    lines = [line.strip(" \t×╰─▶│├") for line in text.strip().splitlines() if line.strip()]
    start = next((n for n, line in enumerate(lines) if line.startswith("error")), 0)
    end = next((n for n, line in enumerate(lines) if n > start and line.startswith("hint:")), None)
    said = " ".join(lines[start:end]).removeprefix("error: ") or "uv failed and said nothing"
    return said if len(said) <= 600 else f"{said[:200]} … {said[-400:]}"


async def uv_run(*arguments: str) -> str:
    """Run uv and return its standard output. Errors: `EnvFailed` with what uv said."""
    code, out, err = await processes.output(uv.find_uv_bin(), *arguments)
    if code:
        said = what_uv_said(err)
        full = says_disk_full(said)
        raise EnvFailed(
            said,
            hint=DISK_FULL_HINT if full else UV_HINT,
            error_type="DiskFull" if full else "uv",
            transient=True,
        )
    return out


async def resolve(
    store: Store, requirements: list[str], constraints: Path | None, as_of: str | None, refresh: bool
) -> Resolution:
    """Resolve a requirement set to a `Resolution`, from the store where it was done before.

    as_of: a date, to see the index as it was that day. Errors: `EnvFailed`.
    """
    for requirement in requirements:
        try:
            Requirement(requirement)
        except InvalidRequirement as error:
            reason = str(error).splitlines()[0]
            raise EnvFailed(f"requirement {requirement!r} is not valid: {reason}") from error
    asked = {
        "requirements": sorted(requirements),
        "constraints": constraints.read_text(encoding="utf-8") if constraints else "",
        "as_of": as_of,
        "platform": platform_tag(),
        "torch": wheel_source()[0],
    }
    key = hashing.of_value(asked)
    path = store.root / "resolutions" / f"{key}.json"
    if not refresh:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or not whole
            return as_resolution(json.loads(path.read_text(encoding="utf-8"))["packages"])
    async with store.locked(f"resolution-{key}"):
        with store.draft("resolve") as draft:
            (draft / "requirements.in").write_text("\n".join(requirements) + "\n")
            arguments = ["pip", "compile", "--no-header", "--no-annotate", "--python", sys.executable]
            arguments += ["--upgrade"] if refresh else []
            arguments += ["--exclude-newer", as_of] if as_of else []
            if constraints and not refresh:
                arguments += ["--constraints", str(constraints)]
            lines = await uv_run(*arguments, *wheel_source(), str(draft / "requirements.in"))
            resolution = as_resolution(parse_pins(lines))
            refuse_gpu(resolution.packages)
            part = draft / "resolution.json"
            part.write_text(json.dumps({"asked": asked, "packages": resolution.packages}, indent=1))
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, path)
    return resolution


async def existing(store: Store, settings: Env) -> Resolution:
    """An interpreter that is there, with `settings.extras` laid over it, as a resolution.

    Its packages are recorded. Nothing of it is changed: the extras go into an
    environment of their own, whose path leads on to the interpreter's packages.
    """
    python = Path(settings.python or "").expanduser().absolute()
    if not python.is_file() or not os.access(python, os.X_OK):
        raise EnvFailed(f"env.python: {python} is no interpreter", hint="name its executable: .../bin/python")
    facts = await interpreter_facts(python)
    needed = {"torch", "transformers"}  # a backend's own packages are its own to ask for
    brought = {canonicalize_name(Requirement(extra).name) for extra in settings.extras}
    if lacking := sorted(needed - set(facts["packages"]) - brought):
        raise EnvFailed(f"env.python: {python} has no {', '.join(lacking)}", hint="lay them over it with env.extras")
    extras: dict[str, str] = {}
    if settings.extras:
        with store.draft("resolve") as draft:
            (draft / "base.txt").write_text("".join(f"{n}=={v}\n" for n, v in facts["packages"].items()))
            (draft / "extras.in").write_text("\n".join(settings.extras) + "\n")
            arguments = ["pip", "compile", "--no-header", "--no-annotate", "--python", str(python)]
            # As constraints, so that a vendor's package that no index has is in nobody's way.
            arguments += ["--constraints", str(draft / "base.txt")]
            wanted = await uv_run(*arguments, *wheel_source(), str(draft / "extras.in"))
        found = parse_pins(wanted)
        extras = {name: version for name, version in found.items() if facts["packages"].get(name) != version}
    packages = dict(sorted((facts["packages"] | extras).items()))
    identity = hashing.of_value(packages, facts["platform"], str(python))
    return Resolution(packages, identity, facts["platform"], python, extras)


async def interpreter_facts(python: Path) -> dict:
    """Packages, platform and package folders of an interpreter. Errors: `EnvFailed`."""
    try:
        code, out, err = await processes.output(str(python), "-I", "-c", FACTS)
        facts = json.loads(out) if code == 0 else None
    except (OSError, ValueError) as error:
        raise EnvFailed(f"{python} is no Python interpreter: {error}") from error
    if facts is None:
        said = err.strip().splitlines()
        raise EnvFailed(f"{python} does not run: {said[-1] if said else 'it said nothing'}")
    return facts | {"packages": {canonicalize_name(n): v for n, v in sorted(facts["packages"].items())}}


def parse_pins(text: str) -> dict[str, str]:
    """``name==version`` lines to {canonical name: version}; comments, options and markers dropped."""
    pins = {}
    for line in text.splitlines():
        line = line.split("#")[0].split(";")[0].strip()
        if line and not line.startswith("-"):
            name, _, version = line.partition("==")
            pins[canonicalize_name(name.strip())] = version.strip()
    return pins


def as_resolution(packages: dict[str, str]) -> Resolution:
    packages = dict(sorted(packages.items()))
    return Resolution(packages, hashing.of_value(packages, platform_tag()), platform_tag())


def refuse_gpu(packages: dict[str, str]) -> None:
    """Refuse a resolution that would bring a GPU build of torch (3 GB, and other numbers)."""
    found = [
        f"{name}=={version}"
        for name, version in packages.items()
        if GPU_PACKAGE.match(name) or (name == "torch" and GPU_VERSION.search(version))
    ]
    if found:
        raise EnvFailed(
            f"the resolution holds a GPU build: {', '.join(found[:4])}"
            + (f" and {len(found) - 4} more" if len(found) > 4 else ""),
            hint="unset UV_FIND_LINKS and PIP_FIND_LINKS to use uv's CPU backend,"
            " or let them name a folder with torch's CPU wheel",
            error_type="GpuBuild",
        )


async def install(store: Store, root: Path, resolution: Resolution) -> Path:
    """Make the environment if it is not there; return its interpreter."""
    if resolution.base and not resolution.extras:
        return resolution.base
    folder = root / resolution.hash[:32]
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if (folder / STAMP).exists() and python.exists():
        return python
    # The folder may be shared by stores, so the lock is beside it and not in the store.
    async with Store(root).locked(f"environment-{resolution.hash[:32]}"):
        if (folder / STAMP).exists() and python.exists():
            return python
        shutil.rmtree(folder, ignore_errors=True)
        root.mkdir(parents=True, exist_ok=True)
        with store.draft("install") as draft:
            await uv_run("venv", "--python", str(resolution.base or sys.executable), str(folder))
            lock = draft / "requirements.txt"
            if resolution.base:
                lock.write_text("".join(f"{n}=={v}\n" for n, v in resolution.extras.items()))
                await uv_run("pip", "install", "--no-deps", "--python", str(python), *wheel_source(), "-r", str(lock))
                await lead_on(python, resolution.base)
            else:
                lock.write_text(resolution.text())
                await uv_run("pip", "sync", "--python", str(python), *wheel_source(), str(lock))
        stamp = {"packages": resolution.packages, "platform": resolution.platform}
        (folder / (STAMP + ".part")).write_text(json.dumps(stamp, indent=1))
        os.replace(folder / (STAMP + ".part"), folder / STAMP)
    return python


async def damaged(root: Path, python: Path, resolution: Resolution) -> list[str]:
    """The packages that an environment lacks. Where there are some it no longer counts, and is made anew."""
    if resolution.base:
        return []
    there = (await interpreter_facts(python))["packages"]
    lacking = sorted(name for name, version in resolution.packages.items() if there.get(name) != version)
    if lacking:
        (root / resolution.hash[:32] / STAMP).unlink(missing_ok=True)
    return lacking


async def lead_on(python: Path, base: Path) -> None:
    """Let an environment see the packages of an interpreter, behind its own."""
    own = await interpreter_facts(python)
    there = await interpreter_facts(base)
    (Path(own["paths"][0]) / "base.pth").write_text("".join(f"{path}\n" for path in there["paths"]))
