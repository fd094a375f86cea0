"""Stage candidate of backend=transformers: the checkpoint once more, greedy, with the logits of every step."""

from __future__ import annotations

import json

import boundaries
import continuation
import loading
import own_way
import own_way_reference
import true_fp64
from reference import dtype_of, forced, greedy, layers_of, load
from transformers import AutoTokenizer


def run(arguments: dict, out: str) -> dict:
    """Continue each prompt greedily, then force the reference's tokens, and save both to `out`.

    arguments: checkpoint (folder), reference (folder, or None: nothing is
    forced), prompts (path of prompts.json), end_tokens (list of int, or None:
    the checkpoint's), max_new_tokens, stop_at_end, compute_dtype, attention.
    Where transformers is another than the reference's, so is its code, and its
    way of loading, which is audited.
    """
    folder = arguments["checkpoint"]
    model, report = load(folder, arguments["compute_dtype"], arguments["attention"])
    audited = loading.audit(model, loading.Stored(folder), "transformers", missing=sorted(report["missing_keys"]))
    with open(arguments["prompts"], encoding="utf-8") as file:
        prompts = json.load(file)["prompts"]
    references = continuation.references(arguments["reference"], prompts)
    continue_all(model, arguments, prompts, references, out)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    own = own_way_reference.run(model, tokenizer, prompts, arguments["max_new_tokens"])
    config = model.config.get_text_config()
    told = true_fp64.with_finding(loading.save(audited, out), model, "the candidate is not one of float64")
    own = own_way.beside(own, arguments["reference"], out)
    return {**own, "loaded_dtype": dtype_of(model), **layers_of(config), **told}


def continue_all(model, arguments: dict, prompts: list[dict], references: list[dict], out: str | None) -> None:
    """Continue each prompt, and force the reference's tokens; saved where there is an `out`. arguments: as `run`'s."""
    ends = continuation.ends(arguments)
    tokenizer = AutoTokenizer.from_pretrained(arguments["checkpoint"]) if out else None
    for index, (prompt, reference) in enumerate(zip(prompts, references, strict=True)):
        stops = ends if arguments["stop_at_end"] else set()
        tokens, logits = greedy(model, prompt["ids"], stops, arguments["max_new_tokens"])
        fed = forced(model, prompt["ids"], reference["tokens"]) if reference else None
        if out:
            crosses = boundaries.crosses(model.config.get_text_config(), len(prompt["ids"]), len(tokens))
            continuation.save(out, index, prompt["name"], tokens, logits, tokenizer, ends, fed, crosses)
