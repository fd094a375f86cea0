"""Secrets do not get into what is stored or shown."""

from __future__ import annotations

import os
import re

HIDDEN = "***"
PATTERNS = (
    re.compile(r"(?<=://)[^/\s:@]+:[^\s@]+(?=@)"),  # user:password@ in a URL; it may hold slashes
    re.compile(r"(?i)(?<=[?&]sig=)[^\s&\"']+|(?<=signature=)[^\s&\"']+|(?<=credential=)[^\s&\"']+"),  # signed URLs
    re.compile(r"(?<=://)[^/\s:@]{8,}(?=@)"),  # token@ in a URL
    re.compile(r"\b(?:hf|ghp|gho|ghs|github_pat|glpat|xox[abp]|sk)[_-][A-Za-z0-9_-]{8,}"),
    re.compile(r"\bAKIA[0-9A-Z]{16}\b|\bnpm_[A-Za-z0-9]{16,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}"),  # a JSON web token
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/-]{8,}=*|(?<=authorization: basic )[A-Za-z0-9+/]{6,}=*"),
    re.compile(r"(?i)(?<=api[_-]key[=:])\s*[^\s&,;\"']{4,}|(?<=access[_-]key[=:])\s*[^\s&,;\"']{4,}"),
    re.compile(r"(?i)(?<=token=)[^\s&,;\"']{4,}|(?<=password=)[^\s&,;\"']+|(?<=secret=)[^\s&,;\"']+"),
)
SECRET_NAME = re.compile(r"(?i)(token|password|passwd|secret|api_?key|access_?key)")


def scrub(text: str) -> str:
    """`text` without what looks like a secret, or is the value of a variable that is named like one."""
    for name, value in os.environ.items():
        if len(value) >= 8 and SECRET_NAME.search(name) and not os.path.exists(value):
            text = text.replace(value, HIDDEN)
    for pattern in PATTERNS:
        text = pattern.sub(HIDDEN, text)
    return text
