"""Stage prompts: token ids, made once and given to both sides."""

from __future__ import annotations

import json
import os

from task import StageError
from transformers import AutoTokenizer


def run(arguments: dict, out: str) -> dict:
    """Tokenise the prompts with the checkpoint's tokenizer.

    arguments: checkpoint (folder), template ("chat" or "none"), prompts (list of
    {"name", "text"}). Writes ``prompts.json``: a list of {"name", "text" (after
    the template), "ids" (list of int)}.
    """
    tokenizer = AutoTokenizer.from_pretrained(arguments["checkpoint"])
    if arguments["template"] == "chat" and not tokenizer.chat_template:
        raise StageError(
            f"no chat template in {arguments['checkpoint']}: neither tokenizer_config.json"
            " nor chat_template.jinja has one",
            kind="MissingChatTemplate",
            hint="put the model's chat_template.jinja beside its tokenizer, or set prompts.template=none",
        )
    prompts = []
    for prompt in arguments["prompts"]:
        text = prompt["text"]
        if arguments["template"] == "chat":
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
            )
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            ids = tokenizer(text)["input_ids"]
        if not ids:
            raise StageError(f"prompt {prompt['name']!r} has no tokens", kind="EmptyPrompt")
        prompts.append({"name": prompt["name"], "text": text, "ids": [int(i) for i in ids]})
    with open(os.path.join(out, "prompts.json"), "w", encoding="utf-8") as file:
        json.dump(prompts, file, ensure_ascii=False, indent=1)
    return {"tokens": [len(prompt["ids"]) for prompt in prompts]}
