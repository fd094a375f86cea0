"""To what limit a torch model clips its queries, keys and values: seen on values that are far beyond it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from rope_reference import REFUSALS, first_line

PROJECTIONS = ("v_proj", "qkv_proj", "Wqkv", "query_key_value", "c_attn", "att_proj")
TOKENS = 3
FAR = 2.0**20


@torch.inference_mode()
def measure(model: torch.nn.Module, watching: Callable) -> float | str | None:
    """The limit; None where values that are far beyond any come through, and where the config names none.

    watching: a function that is given the values of each attention -> a context in which it is. A config may name a
    limit that its model never looks at, so its name alone says nothing. A text: why it was not to be seen.
    """
    if getattr(model.config.get_text_config(), "clip_qkv", None) is None:
        return None
    seen: list[float] = []

    def far(module, args, output):
        return torch.full_like(output, FAR)

    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            if name.rpartition(".")[2] in PROJECTIONS:
                stack.callback(module.register_forward_hook(far).remove)
        stack.enter_context(watching(lambda values: seen.append(float(values.abs().max()))))
        try:
            model(input_ids=torch.arange(TOKENS)[None], use_cache=False)
        except REFUSALS as error:
            return f"values beyond it were refused: {first_line(error)}"
    if not seen:
        return "the config names one, and no attention was seen to be given values"
    largest = max(seen)
    return largest if largest < FAR else None
