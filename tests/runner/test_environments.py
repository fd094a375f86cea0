"""What is asked of uv, and what of its answers is refused."""

from __future__ import annotations

import asyncio

import pytest

from runner import environments
from runner.failures import EnvFailed
from runner.store import Store


def test_pins_are_parsed():
    text = "# made by uv\nTorch==2.13.0+cpu  # via x\nfoo_bar==1.0 ; python_version > '3'\n--find-links x\n\n"
    assert environments.parse_pins(text) == {"torch": "2.13.0+cpu", "foo-bar": "1.0"}


@pytest.mark.parametrize(
    "packages",
    [{"torch": "2.13.0", "nvidia-cublas": "13"}, {"torch": "2.13.0+cu130"}, {"triton": "3"}, {"torch": "2+rocm6"}],
)
def test_a_gpu_build_is_refused(packages):
    with pytest.raises(EnvFailed, match="GPU build") as caught:
        environments.refuse_gpu(packages)
    assert "CPU" in caught.value.hint


def test_a_cpu_build_is_not_refused():
    environments.refuse_gpu({"torch": "2.13.0+cpu", "tritonclient": "2", "numpy": "2"})


def test_equal_sets_are_one_environment():
    one = environments.as_resolution({"b": "1", "a": "2"})
    two = environments.as_resolution({"a": "2", "b": "1"})
    assert one == two and one.text() == "a==2\nb==1\n"
    assert environments.as_resolution({"a": "2", "b": "1+cpu"}).hash != one.hash


def test_a_named_folder_of_wheels_comes_before_the_backend(monkeypatch):
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    assert environments.wheel_source() == ["--torch-backend", "cpu"]
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    assert environments.wheel_source() == ["--find-links", "/a", "--find-links", "/b"]
    monkeypatch.setenv("UV_FIND_LINKS", "/c")
    assert environments.wheel_source() == ["--find-links", "/c"]


def test_a_bad_requirement_is_named(tmp_path):
    with pytest.raises(EnvFailed, match="'torch=2'"):
        asyncio.run(environments.resolve(Store(tmp_path), ["torch=2"], None, None, False))


def test_a_set_that_has_no_answer_says_so_and_stores_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("UV_OFFLINE", "1")
    wanted = ["no-such-package-at-all==1.0"]
    with pytest.raises(EnvFailed, match="no-such-package-at-all") as caught:
        asyncio.run(environments.resolve(Store(tmp_path), wanted, None, None, False))
    assert caught.value.hint
    assert not list(tmp_path.glob("resolutions/*"))
