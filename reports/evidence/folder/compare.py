"""An export in ONNX Runtime GenAI beside the reference, in multiples of the noise.

python compare.py CELL [EXPORT_FOLDER]    after reference.py and noise.py; made/export-CELL where no folder is named

Below a line stands what the database has, where that is another.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import given
import numpy as np
import onnxruntime_genai as og

NEUTRAL = {
    "do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "min_length": 0, "no_repeat_ngram_size": 0,
    "diversity_penalty": 0.0,
}  # fmt: skip


def with_threads(export: Path, threads: int, to: Path) -> Path:
    """The export in the folder `to`, by links, with as many threads in its session's options as the reference has."""
    for file in export.resolve().iterdir():
        if file.name != "genai_config.json":
            (to / file.name).symlink_to(file)
    config = json.loads((export / "genai_config.json").read_text(encoding="utf-8"))
    options = config["model"]["decoder"].setdefault("session_options", {})
    options |= {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    (to / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    return to


class Export:
    """An export that is loaded. config: the "model" part of its genai_config.json."""

    def __init__(self, folder: Path, threads: int):
        self.config = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]
        with tempfile.TemporaryDirectory() as aside:
            self.model = og.Model(str(with_threads(folder, threads, Path(aside))))
            try:
                self.tokenizer = og.Tokenizer(self.model)
            except Exception as error:  # a kind that the runtime does not know: the numbers stand without it
                self.tokenizer, self.why = None, str(error)

    def generator(self, length: int, **options):
        """For so many tokens; its cache is above the sliding window, or the runtime refuses."""
        window = (self.config["decoder"].get("sliding_window") or {}).get("window_size") or 0
        params = og.GeneratorParams(self.model)
        params.set_search_options(
            max_length=min(max(length, window + 1), self.config["context_length"]), batch_size=1, **options
        )
        return og.Generator(self.model, params)

    def greedy(self, ids: list[int], ends: set[int], limit: int) -> tuple[list[int], np.ndarray]:
        """Tokens, the end token included, and the raw logits of each step [steps, vocab] fp32."""
        generator, new, tokens, rows = self.generator(len(ids) + limit, **NEUTRAL), ids, [], []
        while len(tokens) < limit and not (tokens and tokens[-1] in ends):
            generator.append_tokens(np.array([new], dtype=np.int32))
            rows.append(np.array(generator.get_logits(), dtype=np.float32).reshape(-1))
            tokens.append(int(rows[-1].argmax()))
            new = tokens[-1:]
        return tokens, np.stack(rows)

    def forced(self, ids: list[int], tokens: list[int]) -> np.ndarray:
        """Logits [len(tokens), vocab] fp32 of one pass over a prompt and the reference's continuation."""
        generator = self.generator(len(ids) + len(tokens), **NEUTRAL)
        generator.append_tokens(np.array([[*ids, *tokens[:-1]]], dtype=np.int32))
        return np.array(np.asarray(generator.get_output("logits"))[0, -len(tokens) :], dtype=np.float32)

    def own_way(self, prompt: dict, limit: int) -> str:
        """What a user sees: the runtime's own tokenizer, chat template, search options, loop and end tokens, with
        sampling turned off."""
        if self.tokenizer is None:
            return f"the runtime has no tokenizer for this checkpoint ({self.why})"
        ids = [int(token) for token in self.tokenizer.encode(self.rendered(prompt))]
        length = min(len(ids) + limit, self.config["context_length"])
        generator, tokens = self.generator(length, do_sample=False), []
        generator.append_tokens(np.array([ids], dtype=np.int32))
        while not generator.is_done() and len(tokens) < limit:
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
        text = self.tokenizer.decode(np.array(tokens, dtype=np.int32))
        other = "" if ids == prompt["ids"] else f"; its own tokenizer and template give {len(ids)} other prompt ids"
        return given.own_line(text, len(tokens), len(ids) + len(tokens) < length) + other

    def rendered(self, prompt: dict) -> str:
        if prompt.get("user_text") and hasattr(self.tokenizer, "apply_chat_template"):
            messages = json.dumps([{"role": "user", "content": prompt["user_text"]}], ensure_ascii=False)
            try:
                return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
            except Exception:  # it has no template of its own
                pass
        return prompt["text"]


def largest(one: np.ndarray, two: np.ndarray) -> list[float]:
    """The largest absolute difference of each step, over the vocabulary that both have."""
    width = min(one.shape[1], two.shape[1])
    return [float(np.abs(a[:width] - b[:width]).max()) for a, b in zip(one, two, strict=True)]


def measured(cell: int, folder: Path | None = None) -> dict[str, dict]:
    """Every prompt's numbers, as `given.line` takes them, and under "" those of the run: {"own_way", "theirs"}."""
    wanted = given.prompt_set(cell)
    export = Export(folder or given.MADE / f"export-{cell}", wanted["threads"])
    ours = np.load(given.MADE / f"reference-{wanted['number']}.npz")
    file = given.MADE / f"noise-{wanted['number']}.json"
    noise = json.loads(file.read_text(encoding="utf-8")) if file.exists() else wanted["noise"]
    floors = {row["prompt"]: given.finite(row["floor"]) for row in noise}
    ends, found = set(ours["ends"].tolist()), {}
    for n, prompt in enumerate(wanted["prompts"]):
        right, logits = ours[f"tokens{n}"].tolist(), ours[f"logits{n}"]
        tokens, theirs = export.greedy(prompt["ids"], ends, wanted["max_new_tokens"])
        short = min(len(tokens), len(right))
        matched = next((i for i in range(short) if tokens[i] != right[i]), short)
        count = min(matched + 1, short)
        free = largest(logits[:count], theirs[:count])
        forced = largest(logits, export.forced(prompt["ids"], right)) if wanted["forced"] else []
        body = tokens[:-1] if tokens[-1] in ends else tokens
        text = export.tokenizer.decode(np.array(body, dtype=np.int32)) if export.tokenizer and body else ""
        found[prompt["name"]] = {
            "first": free[0], "largest": given.worst(free), "forced": given.worst(forced),
            "floor": floors.get(prompt["name"]), "matched": matched,
            "compared": max(len(tokens), len(right)), "identical": tokens == right, "text": text,
        }  # fmt: skip
    own = export.own_way(wanted["prompts"][0], given.own_limit(wanted["max_new_tokens"]))
    return {**found, "": {"own_way": own, "theirs": str(ours["own_way"])}}


def main(cell: int, folder: Path | None) -> None:
    result, found = given.result(cell), measured(cell, folder)
    about, thresholds = found.pop(""), result["thresholds"]
    stored = {prompt["prompt"]: given.of_database(prompt) for prompt in result["prompts"]}
    for name, numbers in found.items():
        now = given.line(name, numbers, thresholds)
        before = given.line(name, stored[name], thresholds) if name in stored else now
        print(given.beside(now, before))
    name = given.prompt_set(cell)["prompts"][0]["name"]
    print(f"the runtime's own loop, {name}: {about['own_way']}")
    print(f"transformers' generate(), {name}: {about['theirs']}")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
