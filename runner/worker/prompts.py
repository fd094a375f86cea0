"""Stage prompts: token ids, made once and given to both sides, and what is odd about them."""

from __future__ import annotations

import hashlib
import json
import os

import answer_format
import audit
import boundaries
import chat_templates
import remote_code
from task import StageError
from transformers import AutoConfig


def run(arguments: dict, out: str) -> dict:
    """Tokenise the prompts with the checkpoint's tokenizer.

    arguments: checkpoint (folder), template ("chat" or "none"), prompts (list of
    {"name", "text"}), boundaries (a text to fill the model's boundary lengths
    with, or None). Writes ``prompts.json``: {"prompts": [{"name", "user_text",
    "text" (after the template), "ids"}], "template_source", "template_hash",
    "findings" (see `audit`)}.
    """
    folder = arguments["checkpoint"]
    remote_code.refuse_unknown(folder)
    tokenizer = remote_code.tokenizer(folder)
    config = AutoConfig.from_pretrained(folder).get_text_config()
    template, source = (None, None) if arguments["template"] == "none" else chat_template(tokenizer, folder)
    prompts = [encode(tokenizer, prompt, template) for prompt in arguments["prompts"]]
    if arguments["boundaries"] is not None:
        made = boundaries.prompts(tokenizer, config, arguments["boundaries"])
        if taken := {prompt["name"] for prompt in prompts} & {prompt["name"] for prompt in made}:
            raise StageError(f"prompts: {min(taken)!r} is the name of a boundary prompt", kind="NameTaken")
        prompts += made
    found = audit.findings(tokenizer, prompts, getattr(config, "vocab_size", None))
    content = {
        "prompts": prompts,
        "template_source": source,
        "template_hash": hashlib.sha256(template.encode()).hexdigest() if template else None,
        "findings": found,
    }
    with open(os.path.join(out, "prompts.json"), "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False, indent=1)
    return {
        "tokens": [len(prompt["ids"]) for prompt in prompts],
        "findings": found,
        "suspect": sorted({f["prompt"] for f in found if f["check"] in audit.SUSPECT}),
        "format": answer_format.known(tokenizer, template, prompts),
    }


def encode(tokenizer, prompt: dict, template: str | None) -> dict:
    """A prompt's text after the template, and its ids."""
    text = prompt["text"]
    if template is not None:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], chat_template=template, add_generation_prompt=True, tokenize=False
        )
    # A template writes the special tokens itself.
    ids = tokenizer(text, add_special_tokens=template is None)["input_ids"]
    if not ids:
        raise StageError(f"prompt {prompt['name']!r} has no tokens", kind="EmptyPrompt")
    return {"name": prompt["name"], "user_text": prompt["text"], "text": text, "ids": [int(i) for i in ids]}


def chat_template(tokenizer, folder: str) -> tuple[str, str]:
    """The chat template and where it stands. Errors: `StageError` saying where was looked.

    transformers reads the separate files itself; a checkpoint that has one in
    its folder means it, even if its tokenizer's config has another.
    """
    found = chat_templates.separate(folder)
    template, source = found or (chat_templates.template_of(tokenizer.chat_template), chat_templates.CONFIG)
    if template and template.strip():
        return template, source
    looked = ", ".join([*chat_templates.SEPARATE, "chat_template in tokenizer_config.json"])
    what = f"{source} has an empty one, or none named default; " if found or tokenizer.chat_template else ""
    raise StageError(
        f"no chat template in {folder}: {what}looked for {looked}",
        kind="MissingChatTemplate",
        hint="put the model's chat_template.jinja beside its tokenizer, or set prompts.template=none",
    )
