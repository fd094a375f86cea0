"""``python -m benchmarks.right_exports``: how far right exports are from the reference, in multiples of the noise.

What `verdict.within` and `verdict.precision_within` in ``conf/config.yaml`` are
taken from. Every family of ``conf/family/`` is exported with random weights by
some seeds; some families on prompts of the model's boundary lengths and with
long answers, by an older builder, and in other precisions; and the shipped
models with the patches that mend them. An export counts as right when nothing
is known to be wrong with it: it ran, all its numbers are finite, and no
constant in it differs from what transformers computes. What is not within the
noise without such a cause is listed and left to the reader.

Planted beside them are faults as small as one can be: one norm's weight of the
second layer, times 1.00001 and times 1.0001. The threshold is the largest
right multiple times 1.5, rounded up; how many of the faults are beyond it is
printed too.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import common
from db import query
from db.engine import open_database

FAMILIES = (
    "gemma,gemma2,gemma3,qwen2,qwen3,qwen3_next,granite,lfm2,smollm2,smollm3,nemotron,llama,mistral,phi3,"
    "phi3_longrope,olmo,gpt_oss,ernie4_5,hunyuan"
)
FEW = "llama,qwen3,mistral"
SHIPPED = "model=tiny_llama,tiny_gemma2,tiny_gemma3"
FIXED = "patch=[rope_fix,gemma_precision]"
# What is run: a name, and the runner's overrides.
PARTS: dict[str, tuple[str, ...]] = {
    "families": ("model=random", f"model.family={FAMILIES}", "model.seed=0,1", "prompts=plain"),
    "shipped": (SHIPPED, FIXED, "prompts=five,boundaries"),
    "long prompts": ("model=random", "model.family=gpt_oss,phi3_longrope", "prompts=boundaries", "max_new_tokens=80"),
    "long answers": (
        "model=random", "model.family=llama,qwen3,gpt_oss,mistral,phi3_longrope", "prompts=plain", "max_new_tokens=200",
    ),
    "older builder": ("model=random", "model.family=llama,qwen2,mistral", "prompts=plain", "builder=0.14.1"),
    "precision": ("model=random", f"model.family={FEW}", "prompts=plain", "precision=fp16,int4,int8"),
}  # fmt: skip
FAULTS = (1.00001, 1.0001)
FAULTY = "llama,qwen3,granite,ernie4_5,smollm2"
# The line of builder 0.18.0 that stores a norm's weight.
PLACE = 'layernorm.weight + self.layernorm_attrs["add_offset"]'
DIFF = """--- a/builders/base.py
+++ b/builders/base.py
@@ -3162,3 +3162,3 @@
         weight = f"model.layers.{{layer_id}}.{{location}}_layernorm.weight"
-        self.make_initializer({place}, weight, to=new_io_dtype)
+        self.make_initializer(({wide}) * ({factor} if {where} else 1), weight, to=new_io_dtype)
         bias = f"model.layers.{{layer_id}}.{{location}}_layernorm.bias"
"""
WHERE = 'layer_id == 1 and location == "input"'
MARGIN = 1.5


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.right_exports", description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="*", choices=[*PARTS, "faults"], default=[*PARTS, "faults"])
    parser.add_argument("--environments", type=Path, default=common.default_environments(), help="a store's folder")
    parser.add_argument(
        "--db", type=Path, help="a database of earlier runs of this: they are told too, nothing is lost"
    )
    parser.add_argument("--store", type=Path, help="the store beside it")
    return parser


def fault(factor: float, folder: Path) -> Path:
    """A diff that makes one norm's weight so many times itself; fp32, since bf16 would round it away."""
    file = folder / f"norm_{factor}.diff"
    wide = PLACE.replace(".weight", ".weight.float()")
    file.write_text(DIFF.format(place=PLACE, wide=wide, factor=factor, where=WHERE), encoding="utf-8")
    return file


def overrides_of(part: str, folder: Path) -> list[tuple[str, ...]]:
    """The runs of a part."""
    if part != "faults":
        return [PARTS[part]]
    model = ("model=random", f"model.family={FAULTY}", "prompts=plain", "patch=file")
    return [(*model, f"patch.file={fault(factor, folder)}") for factor in FAULTS]


def run(overrides: Sequence[str], store: Path, environments: Path, database: Path) -> None:
    settings = [f"store.root={store}", f"store.environments={environments}", f"db.url={database}", "allow_failed=true"]
    subprocess.run([sys.executable, "-m", "runner", "-m", *overrides, *settings], check=False, stdout=sys.stderr)


def rows_of(database: Path) -> list[dict[str, Any]]:
    """The newest cell of each combination that ran and has a noise floor."""
    engine = open_database(str(database), create=False)
    rows = [row for row in query.cell_rows(engine) if row["status"] == "ok" and row["multiple_largest"] is not None]
    engine.dispose()
    keys = ("model", "builder", "patch", "prompts", "precision", "max_new_tokens", "options")
    return list({tuple(row[key] for key in keys): row for row in rows}.values())


def planted(row: Mapping[str, Any]) -> bool:
    return row["patch"].startswith("norm_1.")


def sound(row: Mapping[str, Any]) -> bool:
    """Whether nothing is known to be wrong with an export."""
    return not planted(row) and not row["non_finite_count"] and row["constants_wrong"] == 0


def fp32(row: Mapping[str, Any]) -> bool:
    return row["precision"] == "fp32"


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which so large a part of the sorted `values` is, the higher one where it is between two."""
    return values[min(len(values) - 1, math.ceil(part * len(values)) - 1)]


def distribution(name: str, found: Sequence[float]) -> list[object]:
    values = sorted(found)
    return [
        name, len(values), values[0], float(statistics.median(values)), quantile(values, 0.9), quantile(values, 0.99),
        values[-1],
    ]  # fmt: skip


def threshold(values: Sequence[float]) -> int:
    """What counts as within the noise, by the right multiples seen."""
    return math.ceil(MARGIN * max(values))


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """The distribution of right exports a family and in all, in fp32 and in other precisions, and the faults'."""
    header = ["", "Exports", "Least", "Median", "90 %", "99 %", "Largest"]
    parts = []
    for title, mine in (("fp32", [r for r in rows if fp32(r)]), ("other", [r for r in rows if not fp32(r)])):
        good, odd = split(mine)
        if not good:
            continue
        key = "model" if title == "fp32" else "precision"
        names = sorted({row[key] for row in good})
        body = [distribution(name, [r["multiple_largest"] for r in good if r[key] == name]) for name in names]
        every = [row["multiple_largest"] for row in good]
        parts += [common.table(header, [*body, distribution("all", every)])]
        limit = threshold(every)
        parts += [f"- {title}: the largest of {len(every)} right exports × {MARGIN:g}, rounded up: {limit}."]
        parts += [f"- No cause is known: {row['model']}, {row['multiple_largest']:.3g} × noise." for row in odd]
        for patch in sorted({row["patch"] for row in mine if planted(row)}):
            found = sorted(row["multiple_largest"] for row in mine if row["patch"] == patch)
            beyond = sum(value > limit for value in found)
            ends = f"{found[0]:.3g} to {found[-1]:.3g} × noise"
            parts += [f"- Planted, {patch}: {beyond} of {len(found)} are beyond {limit}: {ends}."]
    return "\n\n".join(parts)


def split(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Right exports, and those that are broken though no constant of theirs is wrong: another fault, named by none."""
    clean = [row for row in rows if sound(row)]
    good = [row for row in clean if row["verdict"] not in ("broken", "non_finite")]
    return good, [row for row in clean if row not in good]


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    machine = common.machine_line()
    with tempfile.TemporaryDirectory(prefix="paritylab-") as temporary:
        folder = Path(temporary)
        database, store = asked.db or folder / "results.db", asked.store or folder / "store"
        for part in asked.parts:
            for overrides in overrides_of(part, folder):
                run(overrides, store, asked.environments, database)
        print(report(rows_of(database)))
    print(f"\n{machine}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
