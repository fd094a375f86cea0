"""A generation as a user of a checkpoint runs it: transformers' own ``generate()``, with the checkpoint's config."""

from __future__ import annotations

import own_way
import torch
from generation_settings import ids as end_ids
from own_way import NOT_KNOWN, NOT_RUN, Generation


def run(model, tokenizer, prompts: list[dict], max_new_tokens: int) -> Generation:
    """Generate from the prompt that `own_way.chosen` names; its ids are those that the prompts stage made.

    Whatever goes wrong is recorded: it must not fail the reference.
    """
    place = own_way.chosen(prompts)
    if place is None:
        return Generation(NOT_RUN, "the prompts are made of ids, not of text")
    try:
        return generate(model, tokenizer, prompts[place], max_new_tokens)
    except Exception as error:
        return Generation(NOT_KNOWN, f"generate() failed: {type(error).__name__}: {error}", prompts[place]["name"])


@torch.inference_mode()
def generate(model, tokenizer, prompt: dict, max_new_tokens: int) -> Generation:
    """`run` for one prompt, its errors not caught."""
    ids, asked = prompt["ids"], model.generation_config
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    limit = own_way.limit_of(max_new_tokens, len(ids), context)
    if limit < 1:
        return Generation(NOT_RUN, f"the prompt fills the context of {context} tokens", prompt["name"], list(ids))
    inputs = torch.tensor([ids], device=model.device)
    made = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=limit, use_cache=True
    )
    tokens = [int(token) for token in made[0, len(ids) :]]
    ends = end_ids(asked.eos_token_id)
    stopped = len(tokens) < limit or (bool(tokens) and tokens[-1] in ends)
    return Generation(
        prompt=prompt["name"], ids=list(ids), tokens=tokens, stopped=stopped, limit=limit, end_tokens=ends,
        rendered_by="transformers", sampled=bool(asked.do_sample),
        text=tokenizer.decode(tokens, skip_special_tokens=True),
    )  # fmt: skip
