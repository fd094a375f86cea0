"""An export's own way in ONNX Runtime GenAI: its tokenizer, chat template, search options, loop and end tokens."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import onnxruntime_genai as og
import own_way
from generation_settings import ids as end_ids
from own_way import NOT_KNOWN, NOT_RUN, Generation

FOLDERS = re.compile(r"(?<![\w.])/[^\s'\"]*/")
MOST_ERROR = 200  # characters


def run(model, config: dict, prompts: list[dict], templated: bool, max_new_tokens: int, capacity) -> Generation:
    """Generate from the prompt that `own_way.chosen` names.

    config: genai_config.json. templated: whether the prompts were put through
    the chat template. capacity(length): a KV capacity that the runtime takes.
    Whatever goes wrong is recorded: it must not fail the cell.
    """
    place = own_way.chosen(prompts)
    if place is None:
        return Generation(NOT_RUN, "the prompts are made of ids, not of text")
    prompt = prompts[place]
    if (beams := config.get("search", {}).get("num_beams") or 1) > 1:
        return Generation(NOT_RUN, f"genai_config.json asks for {beams} beams, which are not followed", prompt["name"])
    try:
        tokenizer = og.Tokenizer(model)
    except Exception as error:
        return Generation(NOT_RUN, f"the runtime has no tokenizer for this checkpoint ({line(error)})", prompt["name"])
    try:
        return generate(model, tokenizer, config, prompt, templated, max_new_tokens, capacity)
    except Exception as error:
        return Generation(NOT_KNOWN, f"{type(error).__name__}: {line(error)}", prompt["name"])


def generate(
    model, tokenizer, config: dict, prompt: dict, templated: bool, max_new_tokens: int, capacity
) -> Generation:
    """`run` for one prompt, its errors not caught."""
    text, rendered_by, template_error = rendered(tokenizer, prompt, templated)
    ids = [int(i) for i in tokenizer.encode(text)]
    context = config["model"]["context_length"]
    limit = own_way.limit_of(max_new_tokens, len(ids), context)
    if limit < 1:
        return Generation(NOT_RUN, f"the prompt fills the context of {context} tokens", prompt["name"], ids)
    length = capacity(len(ids) + limit)
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=length, do_sample=False)  # all else as genai_config.json has it
    generator = og.Generator(model, params)
    generator.append_tokens(np.array([ids], dtype=np.int32))
    tokens: list[int] = []
    while not generator.is_done() and len(tokens) < limit:
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    ends = end_ids(config["model"].get("eos_token_id"))
    stopped = (bool(tokens) and tokens[-1] in ends) or (generator.is_done() and len(ids) + len(tokens) < length)
    one = Generation(
        prompt=prompt["name"], ids=ids, tokens=tokens, stopped=stopped, limit=limit, end_tokens=ends,
        rendered_by=rendered_by, template_error=template_error, sampled=bool(config.get("search", {}).get("do_sample")),
    )  # fmt: skip
    return replace(one, text=tokenizer.decode(np.array(one.body, dtype=np.int32)) if one.body else "")


def rendered(tokenizer, prompt: dict, templated: bool) -> tuple[str, str, str]:
    """The prompt's text as the runtime renders it, whose template did, and why not its own where it could not."""
    if not templated:
        return prompt["text"], "no template", ""
    if not hasattr(tokenizer, "apply_chat_template"):
        return prompt["text"], "transformers: this version of the runtime has no apply_chat_template", ""
    messages = json.dumps([{"role": "user", "content": prompt["user_text"]}], ensure_ascii=False)
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True), "the runtime", ""
    except Exception as error:
        return prompt["text"], "transformers", line(error)


def line(error: Exception) -> str:
    """The first line of an error that says something, without the folders in which files stand."""
    said = next((text.strip() for text in str(error).splitlines() if text.strip()), type(error).__name__)
    return FOLDERS.sub("", said)[:MOST_ERROR]
