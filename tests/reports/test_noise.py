"""The noise table, from rows made by hand."""

from __future__ import annotations

from reports import noise


def value(variant: str, prompt: str | None, largest: float | None, left_out: str | None = None) -> dict:
    versus = {"dtype": "float32 / float64", "attention": "eager / sdpa", "precision": "float32 / float16"}.get(variant)
    return {
        "variant": variant, "versus": None if left_out else versus, "prompt": prompt, "first": largest,
        "largest": largest, "left_out": left_out,
    }  # fmt: skip


def row(*values: dict, **given) -> dict:
    base = dict.fromkeys(noise.NAMES, "x") | {
        "model": "m",
        "dtype": "stored",
        "files_dtype": "bf16",
        "span": [9.0, 12.0],
    }
    return base | {"values": list(values)} | given


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_a_floor_with_a_column_a_variant():
    one = row(value("dtype", "p", 2e-6), value("dtype", "q", 3e-6), value("attention", "p", 5e-6))
    two = row(value("dtype", "p", 1e-6), model="n")
    header, _, first, second, *rest = noise.markdown({"rows": [one, two]}).split("\n")
    assert cells(header) == ["model", "dtype", "Other dtype", "Other attention", "Noise floor", "Logits span"]
    assert cells(first) == ["m", "stored (bf16)", "2.0e-06 – 3.0e-06", "5.0e-06", "5.0e-06", "9 – 12.0"]
    assert cells(second)[2:5] == ["1.0e-06", "left out", "1.0e-06"]
    assert "Other dtype: float32 / float64." in "\n".join(rest)


def test_one_floor_alone_is_shown_by_prompt():
    text = noise.markdown({"rows": [row(value("dtype", "p", 2e-6), value("threads", "p", 0.0))]})
    line = next(line for line in text.split("\n") if cells(line)[0] == "p")
    assert cells(line) == ["p", "2.0e-06", "0", "2.0e-06"]


def test_a_precision_has_a_column_where_an_export_has_one():
    plain = row(value("dtype", "p", 2e-6), precision="fp32")
    fp16 = row(value("dtype", "p", 2e-6), value("precision", "p", 3e-3), precision="fp16")
    lines = noise.markdown({"rows": [plain, fp16]}).split("\n")
    assert cells(lines[0])[2:6] == ["precision", "Other dtype", "Own precision", "Noise floor"]
    assert [cells(line)[4:6] for line in lines[2:4]] == [["", "2.0e-06"], ["0.003", "0.003"]]
    assert "- Own precision: float32 / float16." in lines
    assert "Own precision" not in noise.markdown({"rows": [plain, plain]})


def test_without_its_precision_there_is_no_floor():
    left = row(value("dtype", "p", 2e-6), value("precision", None, None, "fp16 is too small"), precision="fp16")
    other = row(value("dtype", "p", 2e-6), value("precision", "p", 3e-3))
    text = noise.markdown({"rows": [left, other]})
    assert cells(text.split("\n")[2])[3:6] == ["2.0e-06", "left out", ""]
    assert "Own precision is left out: fp16 is too small." in text
    # Of one prompt it may be missing alone.
    part = row(
        value("dtype", "p", 2e-6),
        value("dtype", "q", 2e-6),
        value("precision", "p", 3e-3),
        value("precision", "q", None),
    )
    (shown,) = [line for line in noise.markdown({"rows": [part]}).split("\n") if line.startswith("| q")]
    assert cells(shown) == ["q", "2.0e-06", "", ""]


def test_what_is_no_noise_is_said_with_its_reason():
    left = value("attention", None, None, "sdpa leaves the cap out")
    text = noise.markdown({"rows": [row(value("dtype", "p", 2e-6), left), row(value("dtype", "p", 2e-6), left)]})
    assert (
        "m: Other attention is left out: sdpa leaves the cap out (so it is of 1 more checkpoint of this model)." in text
    )


def test_no_floor_says_what_to_do():
    assert "noise.variants" in noise.markdown({"rows": []})
