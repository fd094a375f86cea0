"""Rows of a loader audit: folded, joined over ranks, put into words."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from loading_rows import entry, fault_line, finding, folded, layers_in_words, merged, spread, starred


def test_names_are_starred_by_layer_and_expert():
    assert starred("model.layers.12.mlp.experts.3.up.weight") == "model.layers.*.mlp.experts.*.up.weight"
    assert starred("h.0.ln_1.weight") == "h.*.ln_1.weight" and starred("model.norm2.weight") == "model.norm2.weight"


def test_layers_and_numbers_are_put_into_words():
    assert layers_in_words([0, 1, 2, 5, 7, 8]) == "layers 0 – 2, 5, 7 – 8"
    assert layers_in_words([3]) == "layer 3" and layers_in_words(None) == ""
    assert spread([0.656, 0.359]) == "0.359 – 0.656" and spread([1.0, 1.0]) == "1"
    assert spread([float("nan"), 2.0]) == "2 – nan"


layers = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["a", "b"]), st.floats(-9, 9)), max_size=20)


@given(layers)
def test_folding_keeps_every_tensor_and_every_number_within_its_range(told):
    entries = [
        entry(f"layers.{layer}.{name}", "buffer", "defaulted", "keeps {} where", (value,), shape=[1])
        for layer, name, value in told
    ]
    rows = folded(entries, "x")
    assert sum(row["count"] for row in rows) == len(told)
    assert [row["name"] for row in rows] == list(dict.fromkeys(f"layers.*.{name}" for _, name, _ in told))
    for row in rows:
        mine = [(layer, value) for layer, name, value in told if row["name"].endswith(name)]
        assert row["layers"] == sorted({layer for layer, _ in mine})
        ends = row["says"].removeprefix("keeps ").removesuffix(" where").split(" – ")
        assert float(ends[0]) == float(f"{min(value for _, value in mine):.3g}")
        assert float(ends[-1]) == float(f"{max(value for _, value in mine):.3g}")


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["loaded", "differs"])), max_size=6), max_size=3))
def test_merged_ranks_keep_each_row_once_and_say_whose_it_is(told):
    audits = [
        folded([entry(f"w{number}", "parameter", outcome, shape=[1]) for number, outcome in dict(rows).items()], "x")
        for rows in told
    ]
    joined = merged(audits)
    for row in joined:
        ranks, _, rest = row["says"].partition(": ")
        having = [n for n, rows in enumerate(audits) if (row["name"], row["outcome"]) in
                  {(each["name"], each["outcome"]) for each in rows}]  # fmt: skip
        if len(having) < len(audits):
            assert ranks == f"rank{'' if len(having) == 1 else 's'} {', '.join(map(str, having))}"
            assert rest == row["outcome"]
        else:
            assert row["says"] == ""
    assert len(joined) == len({(row["name"], row["outcome"]) for rows in audits for row in rows})
    if len({json.dumps(rows) for rows in audits}) == 1:
        assert joined == audits[0]


def test_faults_are_told_by_what_is_wrong_and_dropped_keys_apart():
    rows = folded(
        [
            entry("a.0.w", "parameter", "defaulted", "not in the checkpoint", held=[2]),
            entry("a.1.s", "buffer", "defaulted", "keeps {} where the checkpoint has {}", (1, 0.5), shape=[1]),
            entry("a.2.s", "buffer", "defaulted", "keeps {} where the checkpoint has {}", (1, 0.25), shape=[1]),
            entry("norm", "parameter", "differs", "max abs diff {}", (0.314159,), shape=[2]),
            entry("left", "", "dropped", shape=[2]),
            entry("old", "", "dropped", "the class ignores it", shape=[2]),
            entry("fine", "parameter", "loaded", shape=[2]),
        ],
        "x",
    )
    line = (
        "1 parameter has no value in the checkpoint: a.*.w (layer 0); "
        "2 buffers keep their default while the checkpoint has a value: "
        "a.*.s (layers 1 – 2: keeps 1 where the checkpoint has 0.25 – 0.5); "
        "1 parameter has another value than the checkpoint: norm (max abs diff 0.314)"
    )
    assert fault_line(rows) == line
    dropped = "1 key of the checkpoint is dropped: left"
    assert finding(rows) == [{"prompt": None, "check": "loading", "evidence": text} for text in (line, dropped)]
    assert fault_line(rows[-2:]) == "" and finding(rows[-2:]) == []
