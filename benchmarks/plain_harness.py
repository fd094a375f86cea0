"""The plain harness: what a careful person writes by hand to compare exports with transformers.

A process a build, the builder's own command line, and a process a comparison,
which recomputes the reference. One thread everywhere. Given, not made here:
patched source folders, cast checkpoints and an interpreter with the packages.

    python plain_harness.py CELLS.json

CELLS.json is ``{"python", "prompts": [text], "max_new_tokens", "cells": [{"name", "builder" (path of builder.py),
"checkpoint" (folder)}]}``; prints one JSON line a cell. The comparison's functions serve `bare_work.py` too.
"""

import json
import os
import subprocess
import sys
import tempfile
import time


def reference(checkpoint, prompts, max_new_tokens):
    """(prompt ids, greedy tokens, logits [steps, vocab]) of each prompt, in transformers, fp32, eager."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    # Generation config is left out: not even generate(do_sample=False) ignores its repetition penalty.
    eos = model.generation_config.eos_token_id
    eos = eos if isinstance(eos, list) else [eos]
    found = []
    for prompt in prompts:
        chat = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        inputs, cache, tokens, logits = torch.tensor([ids]), None, [], []
        with torch.inference_mode():
            while len(tokens) < max_new_tokens and (not tokens or tokens[-1] not in eos):
                output = model(input_ids=inputs, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                logits.append(output.logits[0, -1].numpy())
                tokens.append(int(logits[-1].argmax()))
                inputs = torch.tensor([[tokens[-1]]])
        found.append((ids, tokens, logits))
    return found


def candidate(export, references):
    """(greedy tokens, logits [steps, vocab]) for each of the reference's prompts, in the export."""
    import numpy as np
    import onnxruntime_genai as og

    config = og.Config(export)
    threads = {"intra_op_num_threads": 1, "inter_op_num_threads": 1}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
    model = og.Model(config)
    found = []
    for ids, wanted, _ in references:
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=1024)  # the runtime wants more than the sliding window's 512
        generator = og.Generator(model, params)
        generator.append_tokens(np.array([ids], dtype=np.int32))
        tokens, logits = [], []
        while True:
            logits.append(generator.get_logits().reshape(-1).copy())
            tokens.append(int(logits[-1].argmax()))
            if len(tokens) == len(wanted):
                break
            generator.append_tokens(np.array([[tokens[-1]]], dtype=np.int32))
        found.append((tokens, logits))
    return found


def compare(references, candidates):
    """What is printed: the first token's max abs logits diff of each prompt, and how many agree to the end."""
    pairs = list(zip(references, candidates, strict=True))
    return {
        "first_diffs": [float(abs(ours[2][0] - theirs[1][0]).max()) for ours, theirs in pairs],
        "identical": sum(ours[1] == theirs[0] for ours, theirs in pairs),
    }


def main(path):
    with open(path, encoding="utf-8") as file:
        asked = json.load(file)
    for cell in asked["cells"]:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            export, cache = os.path.join(folder, "export"), os.path.join(folder, "cache")
            build = [cell["builder"], "-i", cell["checkpoint"], "-o", export, "-p", "fp32", "-e", "cpu", "-c", cache]
            subprocess.run([asked["python"], *build], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            arguments = [export, cell["checkpoint"], json.dumps(asked["prompts"]), str(asked["max_new_tokens"])]
            comparison = [asked["python"], __file__, *arguments]
            done = subprocess.run(comparison, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        print(json.dumps({"name": cell["name"], "seconds": seconds, **json.loads(done.stdout)}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:  # the comparison's process
        export, checkpoint, prompts, max_new_tokens = sys.argv[1:]
        references = reference(checkpoint, json.loads(prompts), int(max_new_tokens))
        print(json.dumps(compare(references, candidate(export, references))))
