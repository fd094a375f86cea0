"""Where a cell's checkpoint comes from, and how what is no folder yet becomes one.

A folder is taken as it is. A hub's repository is downloaded, a GGUF file and
pickled weights are converted, and a checkpoint with random weights is made:
each an artifact of the store, known by what went into it, and found on
`store.remote` before it is made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner import cells, checkpoints, code_digest, families, hashing, hub, paths, releases, schema
from runner.environments import Resolution
from runner.failures import CheckpointFailed
from runner.processes import in_thread
from runner.sharing import Sharing
from runner.store import Artifact, Store

KIND = "model"
# Raise it when something else is made of the same.
VERSION = 3
# Downloads and conversions side by side.
AT_A_TIME = 4
# Whose tokenizer a made checkpoint gets: any will do, and this one ships.
TOKENIZER = paths.PROJECT / "checkpoints" / "tiny_llama"


class NotHere(CheckpointFailed):
    """A checkpoint that a run would download or make first."""


@dataclass(frozen=True)
class Origin:
    """A checkpoint's folder, and where it is from in words (None: it is a folder of the user's).

    key: of the artifact, where it was made; loading: what became of each key of the file that it was made of; code: the
    line that tells of code that its number does not stand for.
    """

    path: Path
    said: str | None = None
    key: str | None = None
    loading: Sequence[dict] = ()
    code: str | None = None


@dataclass(frozen=True)
class Recipe:
    """A checkpoint to make: what it is made of (`key` hashes it), the worker's arguments, and what it is in words.

    extra: requirements beyond those of every environment.
    """

    made_of: dict[str, Any]
    arguments: dict[str, Any]
    said: str
    model_type: str = ""
    extra: tuple[str, ...] = ()

    def key(self, packages: str) -> str:
        return hashing.of_value(KIND, VERSION, self.made_of, packages)


# Makes an artifact from a recipe, its key and the packages to make it with.
Maker = Callable[[Recipe, str, Resolution], Awaitable[Artifact]]


@dataclass
class Models:
    """Finds or makes checkpoints. make: None where nothing may be made or downloaded, only looked up."""

    store: Store
    sharing: Sharing
    inspector: checkpoints.Inspector
    resolve: Callable[[schema.Environment], Awaitable[Resolution]]
    make: Maker | None
    say: Callable[[str], None] = lambda text: None
    checked: set[str] = field(default_factory=set)
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))

    async def origin(self, config: schema.Factors, constants: bool = False) -> Origin:
        """The cell's checkpoint. constants: one that has its constants is enough. Errors: `CheckpointFailed`."""
        model = config.model
        if constants and (published := self.published(config)):
            return await self.made(self.random(published, model.seed, shrink=True, said=f"the config of {model.name}"))
        if model.family:
            family = families.read(model.family)["config"]
            set_by_hand = "".join(f", {key}={value}" for key, value in sorted(model.config.items()))
            said = f"random {families.label(model.family)}{set_by_hand}"
            recipe = self.random(merged(family, model.config), model.seed, False, said)
            own = sorted(set(model.config) - set(family))  # to be told apart from a family's own by whoever makes it
            return await self.made(replace(recipe, arguments=recipe.arguments | {"given": own}))
        if model.hub:
            origin = await self.downloaded(model)
            path = origin.path / Path(model.gguf).name if model.gguf else origin.path
        else:
            path = cells.model_path(config)
            origin = Origin(path)
        recipe = await in_thread(self.converted, path, origin)  # it may have gigabytes to hash
        return await self.made(recipe) if recipe else origin

    def published(self, config: schema.Factors) -> dict | None:
        """The config from which a checkpoint for constants is made: the one written down, or a config.json without
        weights beside it; None where there are weights to compare."""
        if config.model.config and not config.model.family:
            return config.model.config
        if config.model.path is None:
            return None
        path = cells.model_path(config)
        folder = path.parent if path.name == "config.json" else path
        alone = (folder / "config.json").is_file() and not weights_of(folder)
        return checkpoints.read_config(folder) if alone else None

    def random(self, config: dict, seed: int, shrink: bool, said: str) -> Recipe:
        """A checkpoint with random weights, by a config. shrink: the config is a real one's."""
        tokenizer = self.inspector.inspect(TOKENIZER)
        inner = config.get("text_config") or config
        return Recipe(
            {"config": config, "seed": seed, "shrink": shrink, "tokenizer": tokenizer.text_hash},
            {"kind": "random", "config": config, "seed": seed, "shrink": shrink, "tokenizer": str(TOKENIZER)},
            f"{said}{', narrowed' if shrink else ''}, seed {seed}",
            str(inner.get("model_type") or config.get("model_type") or ""),
        )

    def converted(self, path: Path, origin: Origin) -> Recipe | None:
        """How a checkpoint that is a GGUF file, or has pickled weights alone, becomes a folder of safetensors."""
        path = path.absolute()  # a worker is in a folder of its own
        if path.suffix.lower() == ".gguf":
            if not path.is_file():
                what = "is a folder" if path.is_dir() else "does not exist"
                raise CheckpointFailed(f"model.path: {path} {what}", hint="name a .gguf file, or a checkpoint's folder")
            digest = self.inspector.file_hash(path)
            self.inspector.save()
            said = origin.said or f"GGUF {path.name}, sha256 {digest[:12]}"
            extra = tuple(releases.known()["gguf"])
            return Recipe({"gguf": digest}, {"kind": "gguf", "source": str(path)}, said, extra=extra)
        if path.is_dir() and weights_of(path) == "pickles":
            files = [(file.name, self.inspector.file_hash(file)) for file in checkpoints.content_files(path)]
            said = f"{origin.said or path.name}, pickles read weights-only"
            return Recipe({"pickles": files}, {"kind": "pickles", "source": str(path)}, said)
        return None

    async def downloaded(self, model: schema.Model) -> Origin:
        """A repository of the hub in the store. Errors: `CheckpointFailed`."""
        assert model.hub is not None
        commit = await in_thread(hub.commit_of, self.store, model.hub, model.revision)
        said = f"hub {model.hub} at {commit}" + (f", {model.gguf}" if model.gguf else "")

        async def fetch() -> Artifact:
            self.say(f"downloading {said}")
            return await in_thread(hub.fetch, self.store, model.hub, commit, model.gguf, say=self.say)

        key = hub.key_of(model.hub, commit, model.gguf)
        return Origin((await self.artifact(key, said, fetch)).path, said)

    async def made(self, recipe: Recipe) -> Origin:
        """A checkpoint that is made, by a worker."""
        # Not with the cell's packages: the same recipe is the same checkpoint, whatever it is compared with.
        environment = schema.Environment(genai=releases.versions()[0], extra=list(recipe.extra))
        resolution = await self.resolve(environment)
        if code := code_digest.differing(KIND):
            recipe = replace(recipe, made_of=recipe.made_of | {"code": code})
        key = recipe.key(resolution.hash)
        make = self.make

        async def produce() -> Artifact:
            assert make is not None
            return await make(recipe, key, resolution)

        made = await self.artifact(key, recipe.said, produce)
        told = code_digest.told(KIND, KIND, code) if code else None
        return Origin(made.path, recipe.said, key, made.meta.get("loading_rows", ()), told)

    async def artifact(self, key: str, said: str, produce: Callable[[], Awaitable[Artifact]]) -> Artifact:
        """What is in the store under `key`, or on the remote, or else what `produce` makes of it, which goes there."""
        if found := await self.find(key):
            if self.make is not None:
                self.sharing.push(found, KIND, key)
            return found
        if self.make is None:
            raise NotHere(f"{said} is not here yet", hint="a run downloads or makes it first", transient=True)
        async with self.slots, self.store.locked(f"{KIND}-{key}"):
            if found := await self.find(key):  # another process was faster
                return found
            if pulled := await self.sharing.pull(KIND, key, said):
                return pulled
            made = await produce()
        self.sharing.push(made, KIND, key)
        return made

    async def find(self, key: str) -> Artifact | None:
        """The artifact, if every file is as it was when it was finished; a damaged one is removed."""
        artifact = self.store.find(KIND, key)
        if artifact and key not in self.checked:
            if not await in_thread(self.intact, artifact):
                self.store.remove(artifact)
                return None
            self.checked.add(key)
        return artifact

    def intact(self, artifact: Artifact) -> bool:
        """Whether every byte is as the manifest says; hashes of files that have not changed are known."""
        files = artifact.manifest["files"].items()
        return all(self.inspector.file_hash(artifact.path / name) == entry["sha256"] for name, entry in files)


def merged(config: dict, given: dict) -> dict:
    """A config with some fields set, those of nested parts too."""
    nested = {key: merged(config[key], value) for key, value in given.items() if both(config.get(key), value)}
    return config | given | nested


def both(one: Any, two: Any) -> bool:
    return isinstance(one, dict) and isinstance(two, dict)


def weights_of(folder: Path) -> str | None:
    """In what form a folder holds weights: "safetensors", "pickles" (as pickled_model.weight_files has it), or None."""
    if any(folder.glob("*.safetensors")):
        return "safetensors"
    trainers = ("training_args", "optimizer", "scheduler", "rng_state")
    found = [file.name for end in ("bin", "pth") for file in folder.glob(f"*.{end}")]
    found = [name for name in found if not name.startswith(trainers)]
    named = any(name.startswith("pytorch_model") and name.endswith(".bin") for name in found)
    indexed = bool(found) and (folder / "pytorch_model.bin.index.json").is_file()
    return "pickles" if named or indexed or len(found) == 1 else None
