"""Rows as a table, CSV, JSON or markdown on standard output."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

JOINERS = "\u200c\u200d"
# What markdown takes for markup wherever it stands. An underscore inside a word is none.
MARKUP = re.compile(r"[\\`*<>|\[\]~$]|(?<!\w)_|_(?!\w)")
MOST_RUNS = 8
FORMATS = ("table", "csv", "json", "md")


class UnknownFormat(ValueError):
    """A format that is none of `FORMATS`."""


def show(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], format: str) -> None:
    """Print the rows. CSV and JSON keep numbers whole; the tables shorten them."""
    writers = {"table": show_table, "csv": show_csv, "json": show_json, "md": show_markdown}
    if format not in writers:
        raise UnknownFormat(f"--format {format!r} is not one of {', '.join(FORMATS)}")
    if not rows:
        print("no rows", file=sys.stderr)
        if format in ("table", "md"):
            return
    writers[format](rows, columns)


def show_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """What varies as a table, as wide as it needs; what all rows share in a line below it."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    used = [c for c in columns if any(row.get(c) not in (None, "") for row in rows)]
    shared = [c for c in used if len(rows) > 1 and len({short(row.get(c)) for row in rows}) == 1]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [c for c in used if c not in shared] or used
    for column in shown:
        table.add_column(Text(column), no_wrap=True)
    for row in rows:
        table.add_row(*(Text(short(row.get(column))) for column in shown))
    needed = Console(width=100_000).measure(table).maximum
    Console(highlight=False, width=max(1, needed), soft_wrap=True).print(table)
    if shared and shown != used:
        print("all rows: " + ", ".join(f"{c} {short(rows[0].get(c))}" for c in shared))


def show_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row.get(column) for column in columns] for row in rows)


def show_json(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """A list of objects; a number that JSON has no word for is a string (NaN, Infinity)."""
    plain = [{column: json_value(row.get(column)) for column in columns} for row in rows]
    json.dump(plain, sys.stdout, ensure_ascii=False, indent=1, default=str)
    sys.stdout.write("\n")


def json_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def show_markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    print(markdown_table(columns, [[row.get(column) for column in columns] for row in rows]))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]], markup: bool = False) -> str:
    """A markdown table, padded so that it reads well as plain text too.

    Whatever stands in a cell (model output, an error message) cannot break it.
    markup: the cells are markdown already, and safe.
    """
    cells = [[str(value) if markup else markdown_text(value) for value in row] for row in [header, *rows]]
    widths = [max(3, *(cell_len(row[n]) for row in cells)) for n in range(len(header))]
    lines = ["| " + " | ".join(set_cell_size(c, w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def show_pairs(pairs: Mapping[str, Any]) -> None:
    """One ``name: value`` a line, for values that are there; long text is indented below its name."""
    for name, value in pairs.items():
        if value is None or value == "":
            continue
        text = str(value) if isinstance(value, str) else short(value)
        lines = [printable(line) for line in text.strip().splitlines()] or [""]
        if len(lines) > 1:
            print(f"{name}:", *(f"    {line}" for line in lines), sep="\n")
        else:
            print(f"{name}: {lines[0]}")


def identical(row: Mapping[str, Any]) -> str:
    """How many texts are the same, and how many tokens were compared, as every table has it: "5 of 5, 5–11 tokens".

    A match over few tokens shows less; one on a reference that is itself
    nonsense is called that. The tokens are those of the longer text of each
    prompt; results of older versions have no number of them.
    """
    nonsense = f" ({row['nonsense_count']} on nonsense)" if row.get("nonsense_count") else ""
    least, most = row.get("compared_tokens_least"), row.get("compared_tokens_largest")
    told = f"{least}" if least == most else f"{least}–{most}"
    tokens = f", {told} token{'s' * (most != 1)}" if most else ""
    return f"{row['identical_count']} of {row['prompts_count']}{nonsense}{tokens}"


def gigabytes(size: float) -> str:
    """Bytes as a reader takes them in: 1.23 GB."""
    return f"{size / 1e9:.3g} GB"


def short(value: Any) -> str:
    """A value in a few characters, on one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    return " ".join(printable(str(value)).split())


def printable(text: str) -> str:
    """Text without what could move a terminal's cursor, turn its direction, or hide in it: control and format
    characters become blanks, save the joiners that Persian and emoji are written with."""
    return "".join(c if c.isprintable() or c in JOINERS else " " for c in text)


def runs(numbers: Iterable[int] | None) -> str:
    """Whole numbers in a few characters: 3, 5 – 8, 12."""
    found: list[list[int]] = []
    for n in sorted(set(numbers or ())):
        if found and n == found[-1][1] + 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    told = [str(a) if a == b else f"{a} – {b}" if b > a + 1 else f"{a}, {b}" for a, b in found[:MOST_RUNS]]
    return ", ".join(told) + (" …" if len(found) > MOST_RUNS else "")


def shape(sizes: Sequence[int] | None) -> str:
    """A tensor's shape: 64 × 128, and scalar for one without axes."""
    return "" if sizes is None else " × ".join(map(str, sizes)) or "scalar"


def markdown_text(value: Any) -> str:
    """A value as markdown shows it, character for character: whatever it is, it is no markup and no HTML."""
    return MARKUP.sub(r"\\\g<0>", short(value)).replace("&", "&amp;")


def markdown_code(value: Any) -> str:
    """A value as a code span, in more backticks than any that stand in it."""
    text = short(value)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}" if text else ""
