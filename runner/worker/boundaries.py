"""Prompts as long as a model's own boundaries: where its attention or its rotary embedding begins to work otherwise."""

from __future__ import annotations

from task import StageError


def lengths(config) -> dict[str, int]:
    """Prompt lengths in tokens by name, from a text config of transformers.

    One below, at, and one above the sliding window (some layer has one), the
    length from which longrope takes its other factors, and that from which
    dynamic scaling raises its theta.
    """
    at = {"window": window(config), "longrope": longrope(config), "dynamic": dynamic(config)}
    return {
        f"{name}{offset:+d}" if offset else name: length + offset
        for name, length in at.items()
        if length
        for offset in (-1, 0, 1)
        if length + offset > 0
    }


def window(config) -> int | None:
    """The sliding window, if a layer looks through one."""
    kinds = getattr(config, "layer_types", None)
    if getattr(config, "use_sliding_window", True) is False or (kinds and "sliding_attention" not in kinds):
        return None
    return getattr(config, "sliding_window", None)


def longrope(config) -> int | None:
    """The original context length of a longrope model, beyond which it takes the long factors."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope.get("rope_type", rope.get("type")) not in ("longrope", "su"):
        return None
    return rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)


def dynamic(config) -> int | None:
    """The length beyond which dynamic scaling takes another theta for each length; None where its factor is 1."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope.get("rope_type", rope.get("type")) != "dynamic" or not (rope.get("factor") or 1) > 1:
        return None
    return getattr(config, "max_position_embeddings", None)


def crosses(config, prompt: int, continued: int) -> bool:
    """Whether a continuation of so many tokens crosses a length at which the rotary embedding changes.

    Step by step, what stands in the cache then keeps the old factors; in one
    pass all get the new ones. Neither is wrong, and the two differ.
    """
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    switch = longrope(config)
    if rope.get("rope_type", rope.get("type")) == "dynamic":
        switch = rope.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", None)
    return switch is not None and prompt <= switch < prompt + continued - 1


def beginning(tokenizer) -> list[int]:
    """What the tokenizer begins every text with, and not what it ends one with."""
    whole, bare = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    return whole[: whole.index(bare[0])]


def prompts(tokenizer, config, text: str) -> list[dict]:
    """Prompts of exactly those lengths, `text` over and over: {"name", "user_text", "text", "ids"}."""
    wanted = lengths(config)
    if not wanted:
        raise StageError(
            f"{config.model_type} has no boundary: config.json names no sliding window, longrope or dynamic scaling",
            kind="NoBoundary",
            hint="use prompts=five, or prompts of your own",
        )
    body = tokenizer(text.strip() + "\n", add_special_tokens=False)["input_ids"]
    start = beginning(tokenizer)
    made = []
    for name, length in wanted.items():
        ids = [*start, *body * (length // len(body) + 1)][:length]
        said = tokenizer.decode(ids)
        made.append({"name": name, "user_text": "", "text": said, "ids": [int(i) for i in ids]})
    return made
