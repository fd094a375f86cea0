"""Secrets go, everything else stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.scrub import scrub


@pytest.mark.parametrize(
    "text",
    [
        "clone https://user:hunter2-secret@example.org/x failed",
        "clone https://hunter2-secret@example.org/x failed",
        "token hf_hunter2secretABC was refused",
        "ghp_hunter2secretABCDEF",
        "Authorization: Bearer hunter2-secret.abc",
        "https://example.org/?token=hunter2-secret&x=1",
        "password=hunter2",
        "store.remote=s3://AKIAX:wJ/hunter2XU/b@bucket/x",
        "store.remote=abfs://box@place/x?sig=hunter2%2Fb",
        "https://bucket/x?X-Amz-Signature=hunter2b&y=1",
    ],
)
def test_secrets_go(text):
    assert "hunter2" not in scrub(text) and "***" in scrub(text)


def test_the_value_of_a_secret_variable_goes(monkeypatch):
    monkeypatch.setenv("MY_API_TOKEN", "plainlooking")
    assert scrub("x plainlooking y") == "x *** y"


@pytest.mark.parametrize(
    "text", ["KeyError: 'rope_type'", "user@example.org", "https://example.org/a:b", "tokens: 5", "model.path=/a/b"]
)
def test_the_rest_stays(text):
    assert scrub(text) == text


@given(st.text(alphabet="abc xyz\n/.", max_size=40))
def test_plain_text_stays(text):
    assert scrub(text) == text
