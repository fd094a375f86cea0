"""The rules by which the frequencies of rotary embeddings are made, as transformers 5 has them (`modeling_rope_utils`).

All in fp32, in the order in which transformers computes, so that a cache made
by the same rule is met to rounding. NumPy only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

# What transformers takes where a config does not say.
DEFAULTS = {"yarn": {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}}


def plain(theta: float, pairs: int, factor: float = 1.0) -> np.ndarray:
    """theta ** (-j / pairs) / factor of pairs j, fp32 [pairs]."""
    places = np.arange(0, 2 * pairs, 2, dtype=np.float32) / np.float32(2 * pairs)
    return np.float32(1) / (np.float32(theta) ** places) / np.float32(factor)


def frequencies(kind: str, said: Mapping, pairs: int) -> np.ndarray | None:
    """The frequencies fp32 [pairs] of a kind of scaling; None where `said` lacks what the rule needs.

    kind: "" (none), "linear", "dynamic", "yarn", "llama3", "longrope" (its
    short factors) or "longrope, long". said: a config's parameters of the
    rotation, with "max_position_embeddings".
    """
    rule = RULES.get(kind)
    try:
        with np.errstate(all="ignore"):
            found = rule(said, pairs) if rule and said.get("rope_theta") else None
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    return found if found is not None and found.shape == (pairs,) and np.isfinite(found).all() else None


def linear(said: Mapping, pairs: int) -> np.ndarray:
    return plain(said["rope_theta"], pairs) / np.float32(said["factor"])


def dynamic(said: Mapping, pairs: int) -> np.ndarray:
    """Of a sequence `factor` times as long as the model's own length."""
    factor, dim = said["factor"], 2 * pairs
    return plain(said["rope_theta"] * (factor * factor - (factor - 1)) ** (dim / (dim - 2)), pairs)


def yarn(said: Mapping, pairs: int) -> np.ndarray:
    """YaRN (Peng et al. 2023, arXiv:2309.00071)."""
    theta, length, dim = said["rope_theta"], said["original_max_position_embeddings"], 2 * pairs
    factor = said.get("factor") or said["max_position_embeddings"] / length
    bounds = [
        dim * math.log(length / (2 * math.pi * rotations)) / (2 * math.log(theta))
        for rotations in (said.get("beta_fast") or 32, said.get("beta_slow") or 1)
    ]
    low, high = (math.floor(bounds[0]), math.ceil(bounds[1])) if said.get("truncate", True) else bounds
    low, high = max(low, 0), min(high, dim - 1)
    high += 0.001 * (low == high)
    ramp = np.clip((np.arange(pairs, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    kept = 1 - ramp
    whole = np.float32(theta) ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))
    return np.float32(1) / (np.float32(factor) * whole) * (1 - kept) + np.float32(1) / whole * kept


def llama3(said: Mapping, pairs: int) -> np.ndarray:
    """Long waves divided by the factor, short ones kept, and some between."""
    base, factor = plain(said["rope_theta"], pairs), np.float32(said["factor"])
    low, high = said.get("low_freq_factor", 1.0), said.get("high_freq_factor", 4.0)
    length = said["original_max_position_embeddings"]
    waves = np.float32(2 * math.pi) / base
    share = (np.float32(length) / waves - np.float32(low)) / np.float32(high - low)
    between = (1 - share) * base / factor + share * base
    return np.where(waves > length / low, base / factor, np.where(waves < length / high, base, between))


def longrope(said: Mapping, pairs: int, which: str = "short_factor") -> np.ndarray:
    return plain(said["rope_theta"], pairs) / np.asarray(said[which], np.float32)


RULES = {
    "": lambda said, pairs: plain(said["rope_theta"], pairs),
    "linear": linear,
    "dynamic": dynamic,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
    "longrope, long": lambda said, pairs: longrope(said, pairs, "long_factor"),
}


def alternatives(kind: str, said: Mapping, pairs: int) -> list[tuple[str, np.ndarray]]:
    """What an export may have made of a config instead: predicates ("have lost the yarn scaling") and frequencies."""
    own = kind.partition(",")[0]
    found = [(f"have lost the {own} scaling", frequencies("", said, pairs))] if kind else []
    for name, value, told in changed(own, said):
        found.append((f"have the {own} scaling with {told}", frequencies(kind, {**said, name: value}, pairs)))
    for other in RULES:
        if other and other != kind:
            instead = f" instead of {kind} scaling" if kind else ", and the reference has none"
            by = f" by {said['factor']:g}" if other in ("linear", "llama3", "yarn") and said.get("factor") else ""
            found.append((f"have {other} scaling{by}{instead}", frequencies(other, said, pairs)))
    return [(text, values) for text, values in found if values is not None]


def changed(kind: str, said: Mapping) -> list[tuple[str, object, str]]:
    """Single parameters of a kind of scaling that an export may read otherwise: name, value, words."""
    found: list[tuple[str, object, str]] = []
    if kind == "yarn":
        truncates = said.get("truncate", True)
        how = "correction bounds that are not rounded" if truncates else "rounded correction bounds"
        instead = f"{truncates}{'' if 'truncate' in said else ', the default'}"
        found.append(("truncate", not truncates, f"{how} (truncate {not truncates} instead of {instead})"))
        for name in ("beta_fast", "beta_slow"):
            default = DEFAULTS["yarn"][name]
            if (mine := said.get(name) or default) != default:
                found.append((name, default, f"{name} {default:g} instead of {mine:g}"))
    length, name = said.get("original_max_position_embeddings"), "original_max_position_embeddings"
    whole = said.get("max_position_embeddings")
    if kind in ("yarn", "llama3") and length and whole and length != whole:
        found.append((name, whole, f"an original length of {whole} instead of {length}"))
        if said.get("factor") and said["factor"] != whole / length:
            found.append(("factor", whole / length, f"factor {whole / length:g} instead of {said['factor']:g}"))
    return found


def defaults_taken(kind: str, said: Mapping) -> str:
    """Which parameters a config leaves out, and what transformers takes: "beta_fast 32, beta_slow 1 by default"."""
    absent = [f"{name} {value:g}" for name, value in DEFAULTS.get(kind, {}).items() if said.get(name) is None]
    absent = [text for text in absent if not text.startswith("truncate")]
    return f"{', '.join(absent)} by default" if absent else ""
