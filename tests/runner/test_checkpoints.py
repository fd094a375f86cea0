"""A checkpoint folder read without torch."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from runner.checkpoints import Checkpoint, Inspector, keep_layers, stamp_of, tensor_dtypes
from runner.failures import CheckpointFailed, ConfigFailed


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(
        json.dumps({"model_type": "gemma2", "num_hidden_layers": 3, "torch_dtype": "float32"})
    )
    (path / "tokenizer.json").write_text("{}")
    save_file({"a": np.ones((2, 2), np.float32), "n": np.ones(2, np.int64)}, path / "model.safetensors")
    return path


@pytest.fixture
def inspector(tmp_path):
    return Inspector(tmp_path / "store")


def test_what_is_read(inspector, folder):
    found = inspector.inspect(folder)
    assert (found.model_type, found.layers, found.dtypes, found.config_dtype) == ("gemma2", 3, {"fp32": 1}, "fp32")
    assert found.same_dtype("fp32") and found.same_dtype("stored") and not found.same_dtype("bf16")


def test_the_hash_is_of_every_byte_and_the_text_hash_of_all_but_the_weights(tmp_path, folder):
    def read() -> Checkpoint:
        return Inspector(tmp_path / "store").inspect(folder)

    first = read()
    assert read().hash == first.hash
    save_file({"a": np.full((2, 2), 2, np.float32)}, folder / "model.safetensors")
    weights = read()
    assert weights.hash != first.hash and weights.text_hash == first.text_hash
    (folder / "tokenizer.json").write_text("{ }")
    assert read().text_hash != first.text_hash


def test_a_config_that_disagrees_with_the_files_is_not_the_same_dtype(inspector, folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    found = inspector.inspect(folder)
    assert not found.same_dtype("fp32") and not found.same_dtype("bf16")


def test_a_missing_folder_says_where_and_what_is_needed(inspector, tmp_path):
    with pytest.raises(CheckpointFailed) as caught:
        inspector.inspect(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in caught.value.message and "model.path" in caught.value.hint


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(inspector, folder, name):
    (folder / name).unlink()
    with pytest.raises(CheckpointFailed, match=name.split(".")[1]):
        inspector.inspect(folder)


def test_a_broken_config_is_named(inspector, folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointFailed, match="not JSON"):
        inspector.inspect(folder)


@pytest.mark.parametrize("cut", [4, 30, -3])
def test_a_safetensors_file_cut_short_is_refused(folder, cut):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointFailed, match="not a whole safetensors file"):
        tensor_dtypes(path)


def test_layers(inspector, folder):
    found = inspector.inspect(folder)
    assert keep_layers("all", found) is None
    assert keep_layers("3", found) is None
    assert keep_layers("2", found) == 2
    with pytest.raises(ConfigFailed, match="3 layers"):
        keep_layers("4", found)


def test_bytes_that_change_under_an_old_time_are_noticed(tmp_path, folder):
    path = folder / "model.safetensors"
    before, stat = Inspector(tmp_path / "store").inspect(folder), path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = Inspector(tmp_path / "store").inspect(folder)
    assert after.hash != before.hash and stamp_of(folder) == after.stamp != before.stamp


def test_subfolders_count_and_documents_do_not(tmp_path, folder):
    before = Inspector(tmp_path / "store").inspect(folder)
    (folder / "README.md").write_text("words")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x").write_text("x")
    assert Inspector(tmp_path / "store").inspect(folder).hash == before.hash
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "default.jinja").write_text("{{ x }}")
    assert Inspector(tmp_path / "store").inspect(folder).text_hash != before.text_hash


@pytest.mark.parametrize(
    "config", ["[]", '{"text_config": "x"}', '{"torch_dtype": {}}', '{"num_hidden_layers": "7"}', "[" * 100000]
)
def test_an_odd_config_is_the_checkpoints_failure(inspector, folder, config):
    (folder / "config.json").write_text(config)
    with pytest.raises(CheckpointFailed):
        inspector.inspect(folder)


@pytest.mark.parametrize(
    "header", ["[]", '{"a": {}}', '{"a": {"dtype": "F32", "data_offsets": []}}', '{"a": {"dtype": []}}']
)
def test_an_odd_header_is_refused(folder, header):
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    with pytest.raises(CheckpointFailed):
        tensor_dtypes(folder / "model.safetensors")


def test_a_shard_that_the_index_names_must_be_there(inspector, folder):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointFailed, match="lacks model-2"):
        inspector.inspect(folder)


@pytest.mark.parametrize("kept", ["[]", "{", '{"/x": 5}', '{"/x": [1, 2]}'])
def test_odd_kept_hashes_are_no_hashes(tmp_path, folder, kept):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "file_hashes.json").write_text(kept)
    assert Inspector(tmp_path / "store").inspect(folder).layers == 3
