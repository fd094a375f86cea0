"""Checkpoints of the hub, fetched by the real client from a hub on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from hub_server import Hub, commit_named, repository
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

from runner import checkpoints, hub, paths
from runner.failures import CheckpointFailed
from runner.store import Store

REPO = "team/small"
FIRST = commit_named("first")
WEIGHTS = b"weights" * 1000
FILES = {
    "config.json": b"{}",
    "generation_config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b'{"tokens": []}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
}
ASIDE = {
    "README.md": b"read me",
    "modeling_small.py": b"print('run')",
    "vocab.py": b"print('run')",
    "pytorch_model.bin": b"pickle",
    "onnx/model.safetensors": b"other",
    "original/params.json": b"{}",
    "manifest.json": b"{}",
}
TOKEN = "hf_SecretOfTheEnvironment"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def server(tmp_path: Path, monkeypatch):
    """The hub, with the client's constants as they would be if the environment had named it."""
    served = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", served.url)
    template = served.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "huggingface" / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "huggingface" / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    served.repositories[REPO] = repository(FILES)
    yield served
    with contextlib.suppress(OSError):
        served.stop()
    assert served.unknown == []


def names(artifact) -> set[str]:
    return set(artifact.manifest["files"])


def test_a_branch_becomes_a_commit_and_its_files_an_artifact(server, store):
    server.repositories[REPO].commits[FIRST] |= ASIDE
    artifact = hub.fetch(store, REPO)
    assert names(artifact) == set(FILES)
    assert artifact.manifest["inputs"] == {"hub": REPO, "commit": FIRST, "gguf": None}
    assert artifact.meta == {"listed": True} and store.whole(artifact)
    assert artifact == store.find("model", hub.key_of(REPO, FIRST))
    assert server.downloaded() == set(FILES)
    assert list(store.tmp.iterdir()) == []


def test_weights_are_on_the_disk_once(server, store):
    artifact = hub.fetch(store, REPO)
    cached = hub.cache_folder(REPO) / "snapshots" / FIRST / "model.safetensors"
    assert cached.samefile(artifact.path / "model.safetensors")


def test_where_links_are_not_to_be_had_it_is_a_copy(server, store, monkeypatch):
    def refuse(*_arguments):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    assert store.whole(hub.fetch(store, REPO))


def test_what_the_store_has_needs_no_request(server, store):
    first = hub.fetch(store, REPO)
    server.requests.clear()
    assert hub.fetch(store, REPO, FIRST) == first and server.requests == []
    assert hub.fetch(store, REPO, "main") == first
    assert server.paths() == [f"/api/models/{REPO}/revision/main"]


def test_a_tag_or_a_pull_request_is_a_revision(server, store):
    long = "ü" * 100
    server.repositories[REPO].refs |= {"v1.0": FIRST, "refs/pr/7": FIRST, long: FIRST}
    assert {hub.commit_of(store, REPO, revision) for revision in ("v1.0", "refs/pr/7", long, FIRST)} == {FIRST}


def move(server: Hub, weights: bytes) -> str:
    """A second commit, which `main` moves to."""
    commit = commit_named("second")
    repo = server.repositories[REPO]
    repo.commits[commit] = FILES | {"model.safetensors": weights}
    repo.refs["main"] = commit
    return commit


def test_a_branch_that_moved_is_another_checkpoint(server, store):
    first = hub.fetch(store, REPO)
    second = move(server, b"other weights")
    artifact = hub.fetch(store, REPO)
    assert (artifact.path / "model.safetensors").read_bytes() == b"other weights"
    assert artifact.manifest["inputs"]["commit"] == second and artifact.path != first.path


def test_another_revision_with_the_same_weights_leaves_the_first_as_it_was(server, store):
    """Whoever uses the first would take a new time stamp for a change."""
    first = hub.fetch(store, REPO)
    stamp = checkpoints.stamp_of(first.path)
    move(server, WEIGHTS)
    hub.fetch(store, REPO)
    assert checkpoints.stamp_of(first.path) == stamp


def offline(server: Hub, monkeypatch, how: str) -> None:
    if how == "stopped":
        server.stop()
    elif how == "down":
        server.answer = (503, b"down")
    elif how == "login page":
        server.answer = (200, b"<html>Welcome to the airport</html>")
    else:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


HOW = pytest.mark.parametrize("how", ["stopped", "down", "login page", "HF_HUB_OFFLINE"])


@HOW
def test_without_a_network_what_was_fetched_is_there(server, store, monkeypatch, how):
    artifact = hub.fetch(store, REPO)
    offline(server, monkeypatch, how)
    assert hub.commit_of(store, REPO) == FIRST
    assert hub.fetch(store, REPO) == artifact


@HOW
def test_without_a_network_what_was_not_fetched_says_so(server, store, monkeypatch, how):
    offline(server, monkeypatch, how)
    for revision in ("main", FIRST):
        with pytest.raises(CheckpointFailed, match=f"{REPO} at .* is not cached, and {server.url}") as caught:
            hub.fetch(store, REPO, revision)
        assert "model.path=DIR" in caught.value.hint and caught.value.transient


def test_the_environment_that_forbids_the_network_is_named(server, store, monkeypatch):
    offline(server, monkeypatch, "HF_HUB_OFFLINE")
    with pytest.raises(CheckpointFailed, match="HF_HUB_OFFLINE"):
        hub.fetch(store, REPO)


def download_elsewhere(**arguments) -> None:
    """As the user may have done before, by the hub's own tool."""
    huggingface_hub.snapshot_download(REPO, token=False, **arguments)


def test_what_the_user_downloaded_is_not_downloaded_again(server, store):
    download_elsewhere()
    server.requests.clear()
    said = []
    assert names(hub.fetch(store, REPO, say=said.append)) == set(FILES)
    assert server.downloaded() == set() and said == []


def test_what_the_user_downloaded_works_without_a_network(server, store, monkeypatch):
    server.repositories[REPO].commits[FIRST] |= ASIDE
    download_elsewhere()
    offline(server, monkeypatch, "stopped")
    said = []
    artifact = hub.fetch(store, REPO, say=said.append)
    assert names(artifact) == set(FILES) and artifact.meta == {"listed": False}
    assert len(said) == 1 and "could not be asked" in said[0]


SHARDED = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": b"one",
    "model-00002-of-00002.safetensors": b"two",
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    ).encode(),
}


@pytest.mark.parametrize(
    ("absent", "says"),
    [
        (["config.json"], "config.json"),
        (["tokenizer.json"], "its tokenizer"),
        (["model-00002-of-00002.safetensors"], "model-00002-of-00002.safetensors"),
        (["model-00002-of-00002.safetensors", "model.safetensors.index.json"], "model-00002-of-00002.safetensors"),
    ],
)
def test_half_a_checkpoint_in_the_cache_is_none_without_a_network(server, store, monkeypatch, absent, says):
    server.repositories[REPO] = repository(SHARDED)
    download_elsewhere(ignore_patterns=absent)
    offline(server, monkeypatch, "stopped")
    with pytest.raises(CheckpointFailed, match=f"in part, without {says}, and"):
        hub.fetch(store, REPO)
    assert store.find("model", hub.key_of(REPO, FIRST)) is None


def test_half_a_checkpoint_in_the_cache_is_completed(server, store):
    server.repositories[REPO] = repository(SHARDED)
    download_elsewhere(ignore_patterns=["model-00002*"])
    server.requests.clear()
    said = []
    assert names(hub.fetch(store, REPO, say=said.append)) == set(SHARDED)
    assert server.downloaded() == {"model-00002-of-00002.safetensors"}
    assert len(said) == 1 and "downloading 1 files" in said[0]


@pytest.mark.parametrize("first", [0, 1])
def test_shards_are_counted_from_either_end(tmp_path, first):
    shards = [f"model-{number:05}-of-00003.safetensors" for number in range(first, first + 3)]
    rest = ["config.json", "tokenizer.model"]
    assert hub.lacks(tmp_path, [*shards, *rest]) == []
    assert hub.lacks(tmp_path, [*shards[:2], *rest]) == [shards[2]]


def test_pickles_are_fetched_only_where_there_is_nothing_else(server, store):
    pickles = {"pytorch_model-00001-of-00001.bin": b"pickle", "training_args.bin": b"x", "optimizer.pt": b"x"}
    texts = {name: content for name, content in FILES.items() if name != "model.safetensors"}
    server.repositories[REPO] = repository(texts | pickles)
    assert names(hub.fetch(store, REPO)) == {*texts, "pytorch_model-00001-of-00001.bin"}


def test_the_same_weights_in_another_layout_are_left_there(server, store):
    second = {"consolidated.safetensors": b"same", "consolidated.safetensors.index.json": b"{}"}
    server.repositories[REPO].commits[FIRST] |= second
    assert names(hub.fetch(store, REPO)) == set(FILES)
    assert hub.chosen(REPO, ["config.json", *second], None) == ["config.json", *sorted(second)]


GGUFS = {"small-q4.gguf": b"GGUF four", "fp16/small.gguf": b"GGUF sixteen", "README.md": b"", "config.json": b"{}"}


@pytest.mark.parametrize(("gguf", "name"), [("small-q4.gguf", "small-q4.gguf"), ("fp16/small.gguf", "small.gguf")])
def test_one_gguf_file_is_fetched_alone_under_its_own_name(server, store, monkeypatch, gguf, name):
    server.repositories[REPO] = repository(GGUFS)
    artifact = hub.fetch(store, REPO, gguf=gguf)
    assert names(artifact) == {name} and (artifact.path / name).read_bytes() == GGUFS[gguf]
    assert artifact.manifest["inputs"]["gguf"] == gguf and server.downloaded() == {gguf}
    offline(server, monkeypatch, "stopped")
    assert names(hub.fetch(Store(store.root / "other"), REPO, FIRST, gguf)) == {name}


def test_a_gguf_file_that_is_not_there_names_those_that_are(server, store):
    server.repositories[REPO] = repository(GGUFS)
    with pytest.raises(CheckpointFailed, match=r"no other\.gguf") as caught:
        hub.fetch(store, REPO, gguf="other.gguf")
    assert "fp16/small.gguf, small-q4.gguf" in caught.value.hint
    with pytest.raises(CheckpointFailed, match="no weights") as caught:
        hub.fetch(store, REPO)
    assert "model.gguf=FILE" in caught.value.hint and "small-q4.gguf" in caught.value.hint


def test_a_gated_repository_says_what_to_do(server, store, monkeypatch):
    server.repositories[REPO] = repository(FILES, readers={TOKEN}, gated=True)
    for token in (None, "hf_AnothersToken"):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(CheckpointFailed, match="gated") as caught:
            hub.fetch(store, REPO)
        assert "terms" in caught.value.hint and "HF_TOKEN" in caught.value.hint
        assert "hf_AnothersToken" not in caught.value.message
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert names(hub.fetch(store, REPO)) == set(FILES)


@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_the_environments_token_goes_to_the_hub_and_nowhere_else(server, store, monkeypatch, variable):
    server.repositories[REPO] = repository(FILES, readers={TOKEN})
    monkeypatch.setenv(variable, f"{TOKEN}\n")
    hub.fetch(store, REPO)
    to_hub = {authorization for _, path, authorization in server.requests if not path.startswith("/large/")}
    to_others = {authorization for _, path, authorization in server.requests if path.startswith("/large/")}
    assert to_hub == {f"Bearer {TOKEN}"} and to_others == {None}
    everything = [path.read_bytes() for path in store.root.parent.rglob("*") if path.is_file()]
    assert everything and not any(TOKEN.encode() in content for content in everything)


def test_a_token_in_a_file_is_not_used(server, store):
    path = Path(constants.HF_TOKEN_PATH)
    path.parent.mkdir(parents=True)
    path.write_text("hf_TokenInAFile")
    hub.fetch(store, REPO)
    assert {authorization for _, _, authorization in server.requests} == {None}


def test_a_repository_that_is_not_there(server, store):
    with pytest.raises(CheckpointFailed, match="no repository team/none") as caught:
        hub.fetch(store, "team/none")
    assert "HF_TOKEN" in caught.value.hint


@pytest.mark.parametrize("revision", ["mian", commit_named("none")])
def test_a_revision_that_is_not_there_is_named(server, store, revision):
    with pytest.raises(CheckpointFailed, match=f"no revision '{revision}'"):
        hub.fetch(store, REPO, revision)


@pytest.mark.parametrize(
    "repo",
    ["", "a/b/c", "../x", "a/..", "a b/c", "team/-x", "team/x.", "a--b/c", "x.git", "https://x/y", "a/b\n", "ä/b"],
)
def test_what_names_no_repository_is_refused(store, repo):
    with pytest.raises(CheckpointFailed, match="no repository") as caught:
        hub.fetch(store, repo)
    assert "OWNER/NAME" in caught.value.hint


@pytest.mark.parametrize("revision", ["", "..", "a/../b", "/etc", "a b", "-x", "a\n", "a/", "a?b", "x" * 200])
def test_what_names_no_revision_is_refused(store, revision):
    with pytest.raises(CheckpointFailed, match="no revision"):
        hub.commit_of(store, REPO, revision)


@pytest.mark.parametrize("gguf", ["x.bin", "../x.gguf", "/x.gguf", "a//x.gguf", "./x.gguf"])
def test_what_names_no_gguf_file_is_refused(store, gguf):
    with pytest.raises(CheckpointFailed, match="no GGUF file"):
        hub.fetch(store, REPO, FIRST, gguf)


@given(st.from_regex(hub.REPOSITORY, fullmatch=True))
def test_what_is_allowed_is_what_the_hub_allows(repo):
    huggingface_hub.utils.validate_repo_id(repo)


PARTS = st.sampled_from(["a", "vocab", "tokenizer", "model", "pytorch_model", "config", "..", "", "sentencepiece"])
ENDS = st.sampled_from(
    ["py", "json", "safetensors", "bin", "pkl", "pt", "model", "jinja", "gguf", "txt", "PY", "py.json"]
)
SOME = st.builds(lambda parts, end: "/".join(parts) + "." + end, st.lists(PARTS, min_size=1, max_size=3), ENDS)


@given(st.lists(SOME))
def test_neither_code_nor_what_leads_elsewhere_is_ever_chosen(there):
    with contextlib.suppress(CheckpointFailed):
        for name in hub.chosen(REPO, there, None):
            assert not name.lower().endswith((".py", ".pkl", ".pt", ".gguf"))
            assert ".." not in name.split("/")
            assert not name.endswith(".bin") or not any("/" not in n and n.endswith(".safetensors") for n in there)


def test_a_download_that_breaks_off_goes_on_where_it_was(server, store):
    server.repositories[REPO].broken = {"model.safetensors"}
    with pytest.raises(CheckpointFailed, match="broke off") as caught:
        hub.fetch(store, REPO)
    assert caught.value.transient and "run again" in caught.value.hint
    assert store.find("model", hub.key_of(REPO, FIRST)) is None
    server.repositories[REPO].broken = set()
    server.requests.clear()
    assert names(hub.fetch(store, REPO)) == set(FILES)
    assert "model.safetensors" in server.downloaded() and "config.json" not in server.downloaded()


@pytest.mark.parametrize("content", [b"WEIGHTS" * 1000, b"short"])
def test_a_file_of_the_cache_that_was_damaged_is_refused(server, store, content):
    download_elsewhere()
    (hub.cache_folder(REPO) / "snapshots" / FIRST / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointFailed, match=r"model\.safetensors") as caught:
        hub.fetch(store, REPO)
    assert "remove" in caught.value.hint and store.find("model", hub.key_of(REPO, FIRST)) is None


def test_a_refused_token_is_not_shown(server, store, monkeypatch):
    server.answer = (401, f"no such token: {TOKEN}".encode())
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(CheckpointFailed) as caught:
        hub.fetch(store, REPO)
    assert TOKEN not in caught.value.message and "HF_TOKEN" in caught.value.hint


def test_names_with_odd_characters_are_fetched_as_they_are(server, store):
    odd = {"added [1] ü.json": b"[1]", "added *.json": b"*", "additional_chat_templates/tool use.jinja": b"x"}
    server.repositories[REPO].commits[FIRST] |= odd | {"additional_chat_templates/run.py": b"x"}
    assert names(hub.fetch(store, REPO)) == {*FILES, *odd}


def test_the_environment_says_where_the_hub_is_and_nothing_is_printed(server, store, tmp_path):
    """As a run does it: nothing but variables, and a terminal that is the progress display's."""
    server.repositories[REPO] = repository(FILES, readers={TOKEN})
    home = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    code = (
        "import sys, pathlib; from runner.hub import Store, fetch; fetch(Store(pathlib.Path(sys.argv[1])), sys.argv[2])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.root), REPO],
        cwd=paths.PROJECT,
        env=kept | home | {"HF_HUB_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert names(store.find("model", hub.key_of(REPO, FIRST))) == set(FILES)


def test_a_run_that_needs_no_hub_and_no_remote_imports_neither():
    code = (
        "import sys, runner.front, runner.sweep, runner.hub, runner.remote;"
        "print([name for name in ('fsspec', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=paths.PROJECT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
