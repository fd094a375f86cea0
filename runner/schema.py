"""The typed schema of a cell's config and of the run's settings.

What a config file in ``conf/`` may hold is said here and nowhere else. The
dataclasses are plain: OmegaConf checks types while composing, `runner.cells`
checks values afterwards, and everything behind the front door sees these
objects only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

from omegaconf import MISSING

DTYPES = ("stored", "fp32", "bf16", "fp16")
STAGES = ("all", "export", "candidate")
ACTIONS = ("run", "plan", "constants", "sharding")
RERUNS = ("none", "failed", "all")
PRECISIONS = ("fp32", "fp16", "bf16", "int4", "int8")
TEMPLATES = ("chat", "none")
COMPUTE_DTYPES = ("float32", "float64", "bfloat16", "float16")
AUDITS = ("warn", "strict")
ATTENTIONS = ("eager", "sdpa")
NOISE_VARIANTS = ("dtype", "attention", "threads", "passes")


@dataclass
class Environment:
    """What one interpreter must have; `runner.releases` adds what every one has.

    genai: version of onnxruntime-genai. transformers: version, or None for the
    line that the release works with. as_of: a date (YYYY-MM-DD): the packages
    of that day instead of the pinned ones. extra: further PEP 508 requirements.
    """

    genai: str = MISSING
    transformers: Optional[str] = None
    as_of: Optional[str] = None
    extra: List[str] = field(default_factory=list)


@dataclass
class Model:
    """A checkpoint, from where one of `MODEL_SOURCES` says.

    path: a folder in transformers' layout, or a .gguf file; a relative one is
        the project's.
    hub, revision: a repository of the Hugging Face hub, and a branch, tag or
        commit of it; gguf: the one file of it to take.
    family, seed: small, with random weights, by ``conf/family/FAMILY.yaml``.
    config: fields of the published config.json. With ``action=constants`` a
        small checkpoint that has its constants is made from them, and nothing
        is downloaded.
    """

    name: str = MISSING
    path: Optional[str] = None
    hub: Optional[str] = None
    revision: str = "main"
    gguf: Optional[str] = None
    family: Optional[str] = None
    seed: int = 0
    config: Dict[str, Any] = field(default_factory=dict)


MODEL_SOURCES = ("path", "hub", "family")


@dataclass
class Builder:
    """Where the export code comes from and what it runs in.

    kind: "release" takes the sources from the published wheel of `version`;
        "git" from `ref` (a branch, tag or commit) of `repo` (None: GENAI_REPO,
        or the public one); "path" from the working copy at `path`.
    version: of the release whose packages it runs in.
    transformers, as_of, extra: as in `Environment`.
    """

    name: str = MISSING
    kind: str = "release"
    version: str = MISSING
    repo: Optional[str] = None
    ref: Optional[str] = None
    path: Optional[str] = None
    transformers: Optional[str] = None
    as_of: Optional[str] = None
    extra: List[str] = field(default_factory=list)


@dataclass
class Edit:
    """One anchored edit of one file of the builder's sources.

    file: path below the sources' ``models`` folder.
    find: literal text, part of a line or several lines. Newlines around it do
        not count, nor does its indentation: further lines are taken relative
        to the first, so that one text serves wherever it is nested.
    put: what stands there afterwards, indented as the place is.
    count: how often `find` must occur; each is replaced.
    present: regular expression (``re.MULTILINE``, line ends seen as ``\\n``)
        that is found in the file only if it has the change already. It is asked
        before `find`, and must be found once the edit is made.
    absent: the same the other way about, for an edit that takes a change out;
        one of the two is needed.
    """

    file: str = MISSING
    find: str = MISSING
    put: str = MISSING
    count: int = 1
    present: Optional[str] = None
    absent: Optional[str] = None


@dataclass
class Variant:
    """The edits that make a change in the builders that `builders` (PEP 440) admits.

    A change lists its variants oldest builder first; where two admit a
    version, the later one counts.
    """

    builders: str = MISSING
    edits: List[Edit] = MISSING


@dataclass
class Change:
    """A single suspected cause, removed: what a proof applies alone."""

    what: str = MISSING
    variants: List[Variant] = MISSING


@dataclass
class Changes:
    """What a file in ``conf/patch/`` holds, unless it names a diff."""

    changes: Dict[str, Change] = field(default_factory=dict)


@dataclass(frozen=True)
class Diff:
    """A unified diff to get: a file, a pull request's, or between two refs.

    paths: below the models folder; empty for all of it.
    """

    file: Optional[str] = None
    number: Optional[int] = None
    old: Optional[str] = None
    new: Optional[str] = None
    paths: tuple[str, ...] = ()

    def name(self) -> str:
        if self.file is not None:
            return Path(self.file).stem
        return f"pr-{self.number}" if self.number is not None else f"{self.old}..{self.new}"


# What every patch of a composed config has, so that patch.number= is a key beside patch=none,pr too. `uses` says
# which of the diffs a chosen file wants: {"pr": True}.
PATCH_KEYS: Dict[str, Any] = {
    "changes": {}, "reverse": False, "uses": {}, "file": None, "number": None, "from": None, "to": None, "paths": [],
}  # fmt: skip


@dataclass
class Patch:
    """A patch set: single changes by name, applied in this order, then diffs.

    reverse: take each out instead, to see whether a fault comes back.
    """

    changes: Dict[str, Change] = field(default_factory=dict)
    diffs: List[Diff] = field(default_factory=list)
    reverse: bool = False


@dataclass
class Backend:
    """What computes the candidate. Each backend has keys of its own: see `BACKENDS`."""

    name: str = MISSING


@dataclass
class Genai(Backend):
    """ONNX Runtime GenAI runs the builder's export."""

    execution_provider: str = "cpu"
    extra_options: Dict[str, str] = field(default_factory=dict)


@dataclass
class Transformers(Backend):
    """transformers once more, of `runtime`'s packages: another attention, dtype or version. As it is the reference.

    compute_dtype: of `COMPUTE_DTYPES`; None for the one that `precision` names.
    """

    attention: str = "eager"
    compute_dtype: Optional[str] = None


@dataclass
class TpCpu(Backend):
    """transformers divided among `tp` processes, as `runner.sharding` plans it.

    gqa, vocabulary: see `runner.sharding.plan`. copy_buffers: false for a
    loader that moves parameters only, as neuronx-distributed's does.
    attention, compute_dtype: as in `Transformers`.
    """

    tp: int = 2
    gqa: str = "replicate-layer"
    vocabulary: str = "sharded"
    copy_buffers: bool = True
    attention: str = "eager"
    compute_dtype: Optional[str] = None


@dataclass
class Neuron(Backend):
    """transformers on Neuron devices, compiled and divided among `tp` of them by neuronx-distributed.

    gqa, vocabulary: see `runner.sharding.plan`. copy_buffers: false for what
    the package's loader moves by itself, which is parameters only.
    model_builder: "v1", "v2", "parallel_model_trace". buckets: the lengths that
    prompts are padded to, ascending; max_len: of keys and values.
    compiler_args: of neuronx-cc, None for the package's own. logical_nc_config:
    cores that count as one. max_parallel_compilations: None for all at once.
    """

    tp: int = 8
    gqa: str = "replicate-layer"
    vocabulary: str = "sharded"
    copy_buffers: bool = True
    model_builder: str = "v1"
    buckets: List[int] = field(default_factory=lambda: [128, 512])
    max_len: int = 1024
    batch: int = 1
    attention: str = "eager"
    compiler_args: Optional[str] = None
    logical_nc_config: int = 1
    max_parallel_compilations: Optional[int] = None


BACKENDS = {"genai": Genai, "transformers": Transformers, "tp_cpu": TpCpu, "neuron": Neuron}


@dataclass
class Runtime:
    """The packages that the export runs on; None for those of its builder's release."""

    name: str = MISSING
    environment: Optional[Environment] = None


@dataclass
class Reference:
    """The packages and settings of the transformers side. cached: it is not computed, but found."""

    name: str = MISSING
    cached: bool = False
    compute_dtype: str = "float32"
    attention: str = "eager"
    environment: Environment = field(default_factory=Environment)


@dataclass
class Prompt:
    """One user message; `expect` is text that a sensible answer contains, `reject` lists texts that none contains."""

    name: str = MISSING
    text: str = MISSING
    expect: Optional[str] = None
    reject: List[str] = field(default_factory=list)


@dataclass
class Prompts:
    """A prompt set.

    template: "chat" applies the checkpoint's chat template, "none" does not.
    boundaries: a text that fills prompts of the model's boundary lengths
        (sliding window, longrope), which come after `prompts`.
    stop_at_end: false to go on past the end token, up to max_new_tokens.
    """

    template: str = "chat"
    prompts: List[Prompt] = MISSING
    boundaries: Optional[str] = None
    stop_at_end: bool = True


@dataclass
class Store:
    """Folders of artifacts and sources, and of environments; None for the defaults.

    remote: any fsspec URL, where what is downloaded or made is put, and looked
    for before.
    """

    root: Optional[str] = None
    environments: Optional[str] = None
    remote: Optional[str] = None


@dataclass
class Database:
    """An SQLAlchemy URL, or a path of an SQLite file; None for the default."""

    url: Optional[str] = None


@dataclass
class Env:
    """How environments are made.

    refresh: resolve requirement sets anew. python: an interpreter that exists,
        used as it is instead of resolving and installing. extras: requirements
        laid over it, without touching it.
    """

    refresh: bool = False
    python: Optional[str] = None
    extras: List[str] = field(default_factory=list)


@dataclass
class Limits:
    """What ends a stage: seconds after which it is a `timeout`, or, without any of its processes using any CPU,
    `stalled`; memory of all of them together, None for no limit."""

    timeout_seconds: float = MISSING
    stall_seconds: float = MISSING
    memory_gb: Optional[float] = None


@dataclass
class Noise:
    """What of the reference is varied to measure its noise: some of `NOISE_VARIANTS`; none for no noise floor."""

    variants: List[str] = field(default_factory=list)


@dataclass
class Verdict:
    """Multiples of the noise floor: up to `within` is noise, above `broken` is broken, between them is elevated.

    precision_within, precision_broken: the same of an export in another
        precision than fp32, whose floor is its own rounding.
    """

    within: float = MISSING
    broken: float = MISSING
    precision_within: float = MISSING
    precision_broken: float = MISSING

    def of(self, precision: str) -> dict[str, float]:
        """What an export in `precision` is judged by."""
        if precision == "fp32":
            return {"within": self.within, "broken": self.broken}
        return {"within": self.precision_within, "broken": self.precision_broken}


@dataclass
class Sharding:
    """What ``action=sharding`` plans for.

    tp: a TP degree, or a list of them. gqa, vocabulary, tracer: see
    `runner.sharding`. core_gb: of a core; host_gb: free on the host, None for
    what is free here. batch, tokens: of the cache that must fit beside the
    weights.
    """

    tp: Any = 8
    gqa: str = "replicate-layer"
    vocabulary: str = "sharded"
    tracer: str = "one rank"
    core_gb: float = 16.0
    host_gb: Optional[float] = None
    batch: int = 1
    tokens: int = 8192


@dataclass
class Factors:
    """What a cell is: one value for each factor."""

    model: Model = field(default_factory=Model)
    builder: Builder = field(default_factory=Builder)
    # As the files in conf/patch/ have it; `runner.cells` makes a `Patch` of it.
    patch: Dict[str, Any] = field(default_factory=lambda: dict(PATCH_KEYS))
    # As the files in conf/backend/ have it; `runner.cells` makes one of `BACKENDS` of it.
    backend: Dict[str, Any] = field(default_factory=dict)
    runtime: Runtime = field(default_factory=Runtime)
    reference: Reference = field(default_factory=Reference)
    prompts: Prompts = field(default_factory=Prompts)
    dtype: str = MISSING
    layers: str = MISSING
    precision: str = MISSING
    max_new_tokens: int = MISSING
    threads: int = MISSING


@dataclass
class Settings:
    """Where and how to run, which is no part of what a cell is.

    suspects: a list of names of patch files. Where it is not empty it makes
        the sweep's patch axis: none, each alone, all but each, all.
    exclude: a list of rules, each a mapping {factor: value or list of values};
        a value may be a pattern (``0.12.*``). A cell that matches every factor
        of a rule is left out.
    """

    # Lists; `runner.compose` and `runner.cells` check them, to say what is allowed.
    suspects: Any = field(default_factory=list)
    exclude: Any = field(default_factory=list)
    action: str = MISSING
    stages: str = MISSING
    rerun: str = MISSING
    allow_failed: bool = MISSING
    jobs: Optional[int] = None
    store: Store = field(default_factory=Store)
    db: Database = field(default_factory=Database)
    env: Env = field(default_factory=Env)
    limits: Limits = field(default_factory=Limits)
    audit: str = MISSING
    load_audit: str = MISSING
    noise: Noise = field(default_factory=Noise)
    verdict: Verdict = field(default_factory=Verdict)
    sharding: Sharding = field(default_factory=Sharding)


@dataclass
class Config(Factors, Settings):
    """Everything that ``conf/config.yaml`` composes to, save Hydra's own node."""
