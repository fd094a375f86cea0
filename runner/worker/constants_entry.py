"""Entries of constants.json: how one is written, how numbers are judged, and how layers that agree become one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

SAME, ROUNDED, DIFFERS, DROPPED, ADDED, UNREAD = "same", "rounded", "differs", "dropped", "added", "unread"
FAULTS = (DIFFERS, DROPPED, ADDED)
# kind -> what a reader calls it.
KINDS = {
    "layers": "number of layers",
    "rope": "rotary embedding",
    "rope_layout": "rotated dimensions",
    "norm_kind": "kind of norm",
    "norm_weight": "norm weight",
    "norm_bias": "norm bias",
    "epsilon": "epsilon",
    "embedding_scale": "embedding scale",
    "attention_scale": "attention scale",
    "soft_cap": "soft cap",
    "window": "sliding window",
    "clip": "clip",
    "sinks": "attention sinks",
    "logit_scale": "logit scale",
    "logit_soft_cap": "logit soft cap",
    "bias": "bias",
    "multiplier": "multiplier",
    "vector": "vector",
    "weight": "weight",
    "activation": "activation",
    "operators": "operators",
}
# Kinds of many values, whose entries do not show by how much they differ.
ARRAYS = ("rope", "norm_weight", "norm_bias", "bias", "sinks", "vector", "weight")
# Of matrices that differ so many are told one by one in a row's warnings, those that differ most.
MOST_MATRICES = 8
# A few steps of fp32.
FEW_STEPS = 1e-6


def entry(
    kind: str, what: str, layer: int | Iterable[int] | None, reference: object, export: object, verdict: str,
    says: str = "", diff: float | None = None, positions: int | None = None,
) -> dict:  # fmt: skip
    """One constant. layer: None outside the layers; reference, export: short texts or numbers; None: there is none."""
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is not one of {', '.join(KINDS)}")
    return {
        "kind": kind,
        "what": what,
        "layers": layer if layer is None else [layer] if isinstance(layer, int) else sorted(layer),
        "reference": text(reference),
        "export": text(export),
        "max_abs_diff": diff if diff is None or np.isfinite(diff) else None,
        "positions": positions,
        "verdict": verdict,
        "says": says,
    }


def unread(kind: str, what: str, layer, reference: object, why: str) -> dict:
    return entry(kind, what, layer, reference, None, UNREAD, why)


def text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else number(float(value))


def number(value: float) -> str:
    """In eight digits, as fp32 has them, without what is not needed."""
    return f"{value:.8g}"


def judged_number(reference: float, export: float, dtype: np.dtype) -> tuple[str, float]:
    """The verdict on a number that the export holds in `dtype`, and the difference from the reference in it."""
    expected = float(np.asarray(reference).astype(dtype))
    diff = abs(float(export) - expected)
    verdict = SAME if not diff else ROUNDED if diff <= FEW_STEPS * abs(expected) else DIFFERS
    return verdict, diff


def judged_array(reference: np.ndarray, export: np.ndarray) -> tuple[str, float]:
    """The same of fp32 values, each in the export's dtype."""
    expected, held = reference.astype(export.dtype).astype(np.float32), export.astype(np.float32)
    difference = np.abs(held - expected)
    diff = float(difference.max(initial=0.0))
    if not diff:
        return SAME, diff
    return (ROUNDED if (difference <= FEW_STEPS * np.abs(expected)).all() else DIFFERS), diff


def numbers(
    kind: str, what: str, layer, reference: float | None, export: float | None, dtype: np.dtype, lost: str = "",
) -> dict:  # fmt: skip
    """An entry for a number that either side may lack. lost: why an export that lacks it does."""
    if export is None:
        return entry(kind, what, layer, reference, None, DROPPED, f"{KINDS[kind]} of {text(reference)} dropped{lost}")
    if reference is None:
        return entry(kind, what, layer, None, export, ADDED, f"{KINDS[kind]} of {text(export)} added")
    verdict, diff = judged_number(reference, export, dtype)
    said = rounding(verdict, dtype)
    if verdict == DIFFERS:
        said = f"{KINDS[kind]} {text(export)} instead of {text(reference)}"
    return entry(kind, what, layer, reference, export, verdict, said, diff)


def rounding(verdict: str, dtype: np.dtype) -> str:
    """That values were compared as another dtype than fp32 holds them."""
    return f"in {np.dtype(dtype).name}" if verdict == SAME and np.dtype(dtype) != np.float32 else ""


def merged(entries: Iterable[dict]) -> list[dict]:
    """The entries of layers that agree as one, in the order of `KINDS`, with the largest of their differences."""
    found: dict[tuple, dict] = {}
    for item in entries:
        key = tuple(str(item[name]) for name in item if name not in ("layers", "max_abs_diff"))
        key += (item["layers"] is None,)
        first = found.setdefault(key, item)
        if first is not item and item["layers"] is not None:
            first["layers"] = sorted({*first["layers"], *item["layers"]})
            diffs = [one["max_abs_diff"] for one in (first, item) if one["max_abs_diff"] is not None]
            first["max_abs_diff"] = max(diffs, default=None)
    order = list(KINDS)
    return sorted(found.values(), key=lambda item: order.index(item["kind"]))


def spans(layers: list[int]) -> str:
    """Layers as a reader counts them: "0-4, 6"."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def findings(found: Iterable[dict]) -> list[dict]:
    """A warning for each constant that is wrong; what is said alike of several is one."""
    alike: dict[tuple, list[dict]] = {}
    for item in found:
        if item["verdict"] in FAULTS:
            alone = item["what"] if item["says"].startswith(item["what"]) else ""
            alike.setdefault((item["kind"], item["says"], alone), []).append(item)
    told = [items[0] if len(items) == 1 else joined(items) for items in alike.values()]
    matrices = sorted((item for item in told if item["kind"] == "weight"), key=largest_first)
    rest = matrices[MOST_MATRICES:] if len(matrices) > MOST_MATRICES + 1 else []
    said = [finding(item) for item in told if not any(item is other for other in rest)]
    if rest:
        evidence = f"{len(rest)} more differences of weights: `python -m db constants CELL` lists them"
        said.append({"prompt": None, "check": "constant", "evidence": evidence})
    return said


def largest_first(item: dict) -> float:
    diff = item["max_abs_diff"]
    return -diff if diff is not None else float("-inf")


def joined(items: list[dict]) -> dict:
    """Several constants as one, by their names, and in no layer: each may have its own."""
    diffs = [item["max_abs_diff"] for item in items if item["max_abs_diff"] is not None]
    what = ", ".join(dict.fromkeys(item["what"] for item in items))
    return items[0] | {"what": what, "layers": None, "max_abs_diff": max(diffs, default=None)}


def finding(item: dict) -> dict:
    """What a row's warnings say of a constant that is wrong."""
    what, says, layers, diff = item["what"], item["says"], item["layers"], item["max_abs_diff"]
    where = f" in layer{'s' if len(layers) > 1 else ''} {spans(layers)}" if layers else ""
    if says.startswith(what) and item["kind"].startswith("rope"):  # its `what` is of layers already
        evidence = f"{what} ({spans(layers)}){says.removeprefix(what)}"
    elif says.startswith(what):
        evidence = says + where
    else:
        evidence = f"{what}{where}: {says}"
    if diff and item["kind"] in ARRAYS:
        evidence += f", off by up to {diff:.2g}"
    return {"prompt": None, "check": "constant", "evidence": evidence}
