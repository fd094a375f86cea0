"""Checkpoints of the Hugging Face hub as artifacts of the store.

A branch or tag becomes a commit, and the commit's config, tokenizer and
weights an artifact: from huggingface's own cache where they are in it,
downloaded into it otherwise. Code of a repository is never fetched, and
pickled weights only where it has no others. The token is the environment's.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from types import ModuleType
from urllib.parse import quote

from db.scrub import scrub
from runner import hashing
from runner.failures import CheckpointFailed, says_disk_full
from runner.store import MANIFEST, Artifact, Store, is_inside

KIND = "model"
# Raise it when other files of a repository are taken.
VERSION = 1
COMMIT = re.compile(r"[0-9a-f]{40}")
# One name, or two with a slash: what the hub allows.
NAME = r"(?!.*(--|\.\.))[A-Za-z0-9_]([A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
REPOSITORY = re.compile(rf"({NAME}/)?{NAME}(?<!\.git)")
# What git allows in a branch's or tag's name, and none that leads out of a folder.
REVISION = re.compile(r"(?!.*(\.\.|//|@\{))[^\s~^:?*\[\\\x00-\x1f/.-][^\s~^:?*\[\\\x00-\x1f]{0,127}(?<![/.])")
# Of a repository's root. The names are those that transformers' tokenizers have; none of them is code or a pickle.
TEXTS = ("*.json", "*.jinja", "*.tiktoken", "merges.txt", "vocab.txt", "vocab.bpe")
TEXTS += ("tokenizer.model", "spiece.model", "sentencepiece*.model")
TEMPLATES = "additional_chat_templates/*.jinja"
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "*.model", "vocab.*", "*.tiktoken")
PICKLES = "pytorch_model*.bin"
# The same weights in another layout, beside those that transformers reads.
SECOND = "consolidated*"
SHARD = re.compile(r"(.+-)(\d{5})(-of-)(\d{5})(\.(?:safetensors|bin))")
SHA256 = re.compile(r"[0-9a-f]{64}")
# Seconds that the hub has for an answer about a repository.
PATIENCE = 20
NO_NETWORK_HINT = (
    "run it once with a network, or give model.path=DIR; action=constants needs no download where the model's file"
    " has a config"
)


class Unreachable(Exception):
    """The hub gave no answer; the message says why."""


def key_of(repo: str, commit: str, gguf: str | None = None) -> str:
    """The key of the artifact, of kind `KIND`, that `fetch` makes."""
    return hashing.of_value("hub", VERSION, repo, commit, gguf)


def commit_of(store: Store, repo: str, revision: str = "main") -> str:
    """The commit that a branch, tag or commit of a repository stands for.

    The hub is asked unless `revision` is a whole commit; without a network it
    is what the hub said last, to this store or to huggingface's cache. Errors:
    `CheckpointFailed`.
    """
    check(repo, revision)
    if COMMIT.fullmatch(revision):
        return revision
    name = quote(revision, safe="")
    kept = store.root / "hub" / repo.replace("/", "--") / (name if len(name) <= 200 else hashing.of_value(name))
    try:
        commit = ask(repo, revision).sha
    except Unreachable as error:
        commit = commit_in(kept) or commit_in(cache_folder(repo) / "refs" / revision)
        if commit is None:
            raise not_cached(repo, revision, str(error)) from error
        return commit
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_name(f"{uuid.uuid4().hex}.part")
    part.write_text(commit, encoding="utf-8")
    os.replace(part, kept)
    return commit


def fetch(
    store: Store,
    repo: str,
    revision: str = "main",
    gguf: str | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> Artifact:
    """The checkpoint of a repository at a revision, or one GGUF file of it under its own name.

    What the store has is returned without a request, where `revision` is a
    commit. Blocks; whoever calls it holds ``store.locked("model-KEY")`` with
    the key of `key_of`. The artifact's meta: `listed`, whether its files are
    known to be all that the hub has of what is wanted. Errors:
    `CheckpointFailed`; `OSError` where the store cannot be written.
    """
    check(repo, revision, gguf)
    commit = commit_of(store, repo, revision)
    key = key_of(repo, commit, gguf)
    found = store.find(KIND, key)
    if found:
        return found
    try:
        there = {file.rfilename: file.size for file in ask(repo, commit, sizes=True).siblings or ()}
    except Unreachable as error:
        listed, names = False, names_in_cache(repo, commit, gguf, str(error))
        say(f"{repo} at {commit[:12]}: from huggingface's cache; whether all of it is there could not be asked")
    else:
        listed, names = True, chosen(repo, there, gguf)
        download(repo, commit, {name: there[name] for name in names}, say)
    folder = cache_folder(repo) / "snapshots" / commit
    with store.draft("hub") as draft:
        out = draft / "out"
        for name in names:
            refuse_damaged(folder / name)
            link(folder / name, out / (PurePosixPath(name).name if gguf else name))
        inputs = {"hub": repo, "commit": commit, "gguf": gguf}
        return store.finish(KIND, key, out, inputs, {"listed": listed})


def check(repo: str, revision: str, gguf: str | None = None) -> None:
    """Refuse what names no repository, revision or file. Errors: `CheckpointFailed`."""
    if not REPOSITORY.fullmatch(repo):
        raise CheckpointFailed(
            f"{repo!r} is no repository of the hub",
            hint="allowed: OWNER/NAME, each of letters, digits, '-', '_' and '.', not at its ends, and no '--' or '..';"
            " a folder of your own is model.path=DIR",
        )
    if not REVISION.fullmatch(revision):
        raise CheckpointFailed(
            f"{revision!r} is no revision of {repo}", hint="allowed: a branch, a tag, or a commit's 40 hex digits"
        )
    if gguf is not None and (not gguf.endswith(".gguf") or not is_inside(gguf)):
        raise CheckpointFailed(f"{gguf!r} is no GGUF file of {repo}", hint="allowed: a .gguf file by its path there")


def client() -> ModuleType:
    """huggingface_hub, imported when it is first needed, and quiet: the terminal is the progress display's."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors
    from huggingface_hub.utils import disable_progress_bars, logging

    if "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:
        disable_progress_bars()
    if "HF_HUB_VERBOSITY" not in os.environ:
        logging.set_verbosity_error()
    return huggingface_hub


def token() -> str | bool:
    """The environment's token; False, which keeps huggingface_hub from looking for one in a file, without it."""
    found = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or ""
    return found.strip() or False


def ask(repo: str, revision: str, sizes: bool = False):
    """What the hub knows of a revision. Errors: `CheckpointFailed`; `Unreachable` where it does not answer."""
    hub = client()
    with answers(repo, revision):
        info = hub.HfApi(token=token()).model_info(repo, revision=revision, timeout=PATIENCE, files_metadata=sizes)
    if not COMMIT.fullmatch(info.sha or ""):
        raise Unreachable("the hub's answer names no commit")
    return info


@contextlib.contextmanager
def answers(repo: str, revision: str) -> Iterator[None]:
    """Make `CheckpointFailed` of what the hub refuses, and `Unreachable` of all else that goes wrong."""
    errors = client().errors
    try:
        yield
    except errors.GatedRepoError as error:
        raise CheckpointFailed(
            f"{repo} is gated, and the hub does not give it to this account: {text_of(error)}",
            hint=f"accept its terms at https://huggingface.co/{repo}, and set HF_TOKEN to a token that may read it",
            error_type="GatedRepoError",
            transient=True,
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointFailed(
            f"the hub has no repository {repo}, or does not show it to this account",
            hint="check the name; a private one wants a token that may read it in HF_TOKEN",
            error_type="RepositoryNotFoundError",
            transient=True,
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointFailed(
            f"{repo} has no revision {revision!r}",
            hint="give model.revision a branch, a tag or a whole commit of it",
            error_type="RevisionNotFoundError",
            transient=True,
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status >= 500 or status in (408, 429):
            raise Unreachable(text_of(error)) from error
        raise CheckpointFailed(
            f"the hub does not give {repo} at {revision!r}: {text_of(error)}",
            hint="check that HF_TOKEN is a valid token that may read it"
            if status in (401, 403)
            else "check the name, and HF_ENDPOINT where it is set",
            error_type=type(error).__name__,
            transient=True,
        ) from error
    # errors.HTTPError: the base of what the HTTP client raises, whichever huggingface_hub is built on.
    # ValueError, LookupError, TypeError: an answer that is none, such as a login page's. RuntimeError: of hf_xet.
    except (errors.HTTPError, OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        hidden = isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__  # what it was looked up for
        raise Unreachable(text_of(hidden or error)) from error


def text_of(error: BaseException) -> str:
    """An error in one line, without secrets."""
    text = scrub(" ".join(str(error).split()))[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def not_cached(repo: str, revision: str, why: str) -> CheckpointFailed:
    return CheckpointFailed(
        f"{repo} at {revision!r} is not cached, and {endpoint()} cannot be reached: {why}",
        hint=NO_NETWORK_HINT,
        error_type="Unreachable",
        transient=True,
    )


def endpoint() -> str:
    """The hub's address, for a reader: HF_ENDPOINT's where that is set."""
    return scrub(client().constants.ENDPOINT)


def cache_folder(repo: str) -> Path:
    """The repository's folder in huggingface's cache."""
    return Path(client().constants.HF_HUB_CACHE).expanduser() / f"models--{repo.replace('/', '--')}"


def commit_in(path: Path) -> str | None:
    """The commit in a file, None where there is none."""
    try:
        commit = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


def chosen(repo: str, there: Iterable[str], gguf: str | None) -> list[str]:
    """Of a repository's files those that are wanted. Errors: `CheckpointFailed` saying what there is."""
    names = sorted(name for name in there if is_inside(name))
    ggufs = [name for name in names if name.endswith(".gguf")]
    if gguf:
        if gguf not in ggufs:
            raise CheckpointFailed(
                f"{repo} has no {gguf}", hint=f"its .gguf files: {', '.join(ggufs[:30]) or 'none'}", transient=True
            )
        return [gguf]
    root = [name for name in names if "/" not in name and name != MANIFEST]
    tensors = matching(root, ["*.safetensors"])
    first = [name for name in tensors if not fnmatch.fnmatchcase(name, SECOND)]
    weights = first or tensors or matching(root, [PICKLES])
    if not weights:
        choose = f"model.gguf=FILE takes one of its GGUF files: {', '.join(ggufs[:30])}" if ggufs else ""
        raise CheckpointFailed(
            f"{repo} has no weights in *.safetensors or {PICKLES} at its root", hint=choose, transient=True
        )
    texts = [name for name in matching(root, TEXTS) if not (first and fnmatch.fnmatchcase(name, f"{SECOND}.json"))]
    return sorted([*texts, *weights, *matching(names, [TEMPLATES])])


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def download(repo: str, commit: str, files: dict[str, int | None], say: Callable[[str], None]) -> None:
    """Bring files, given with their sizes, into huggingface's cache. Errors: `CheckpointFailed`."""
    folder = cache_folder(repo) / "snapshots" / commit
    missing = [name for name, size in files.items() if not is_there(folder / name, size)]
    if not missing:
        return
    size = sum(files[name] or 0 for name in missing)
    say(f"{repo} at {commit[:12]}: downloading {len(missing)} files, {size / 1e9:.2f} GB")
    try:
        with answers(repo, commit):
            # Exactly these, whatever characters their names have.
            patterns = [glob.escape(name) for name in missing]
            client().snapshot_download(repo, revision=commit, allow_patterns=patterns, token=token())
    except Unreachable as error:
        if says_disk_full(str(error)):
            hint = "huggingface's cache has no room: make some, or set HF_HOME to a folder on a larger disk"
            kind = "DiskFull"
        else:
            hint = "run again: files that have arrived are kept; HF_HOME says where, and must be writable"
            kind = "Unreachable"
        raise CheckpointFailed(
            f"the download of {repo} at {commit[:12]} broke off: {error}", hint=hint, error_type=kind, transient=True
        ) from error
    lost = [name for name in missing if not is_there(folder / name, files[name])]
    if lost:
        raise CheckpointFailed(
            f"{repo} at {commit[:12]}: {', '.join(lost[:5])} did not arrive whole in {folder}",
            hint="remove what is there of them, and run again",
            transient=True,
        )


def is_there(path: Path, size: int | None) -> bool:
    return path.is_file() and (size is None or path.stat().st_size == size)


def names_in_cache(repo: str, commit: str, gguf: str | None, why: str) -> list[str]:
    """What is wanted of what huggingface's cache has of a commit, where the hub cannot tell what there should be.

    Errors: `CheckpointFailed` where it is not there, or cannot be all.
    """
    folder = cache_folder(repo) / "snapshots" / commit
    there = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    try:
        names = chosen(repo, there, gguf)
    except CheckpointFailed as error:
        raise not_cached(repo, f"{commit[:12]}, {gguf}" if gguf else commit[:12], why) from error
    lacking = [] if gguf else lacks(folder, names)
    if lacking:
        raise CheckpointFailed(
            f"{repo} at {commit[:12]} is cached in part, without {', '.join(lacking[:5])},"
            f" and {endpoint()} cannot be reached: {why}",
            hint=NO_NETWORK_HINT,
            error_type="Unreachable",
            transient=True,
        )
    return names


def lacks(folder: Path, names: list[str]) -> list[str]:
    """What a checkpoint cannot do without, and these files have not."""
    wanted = {"config.json"}
    for name in names:
        if name.endswith(".index.json"):
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                shards = json.loads((folder / name).read_text(encoding="utf-8"))["weight_map"].values()
                wanted |= {shard for shard in shards if Path(shard).suffix in {Path(other).suffix for other in names}}
        if shard := SHARD.fullmatch(name):
            start, _, of, count, end = shard.groups()
            # Some count from 0.
            first = 0 if f"{start}00000{of}{count}{end}" in names else 1
            wanted |= {f"{start}{number:05}{of}{count}{end}" for number in range(first, first + int(count))}
    if not matching(names, TOKENIZERS):
        wanted.add("its tokenizer")
    return sorted(wanted - set(names))


def refuse_damaged(path: Path) -> None:
    """Refuse a file of huggingface's cache that is not what the hub says it is. Errors: `CheckpointFailed`."""
    # A large file there is a link to one that is named by its sha256; where links are not to be had, none is.
    name = Path(os.readlink(path)).name if path.is_symlink() else ""
    if SHA256.fullmatch(name) and hashing.of_file(path) != name:
        raise CheckpointFailed(
            f"{path.name} in huggingface's cache is damaged: its sha256 is not {name[:12]}…",
            hint=f"remove {path} and the file that it links to, and run again",
            transient=True,
        )


def link(source: Path, target: Path) -> None:
    """Make a file of huggingface's cache one of the store too, without a copy where that can be."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source = source.resolve()
    # A second link would change the time stamp by which those who use the first notice a change.
    if source.stat().st_nlink == 1:
        with contextlib.suppress(OSError):  # another disk, or another's file
            os.link(source, target)
            return
    shutil.copyfile(source, target)
