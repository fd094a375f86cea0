"""config.json in the form in which checkpoints are published, which transformers 4 and 5 both read.

Version 5 saves rotary parameters nested, and version 4 does not find them
there: it takes its defaults and says nothing.
"""

from __future__ import annotations

FULL, SLIDING = "full_attention", "sliding_attention"


def published_config(config: dict) -> dict:
    """`config` with its rotary parameters and its dtype at the places where version 4 looks too."""
    config = dict(config)
    rope = config.pop("rope_parameters", None) or {}
    if FULL in rope:
        if SLIDING in rope:
            config["rope_local_base_freq"] = rope[SLIDING]["rope_theta"]
        rope = rope[FULL]
    if rope:
        config["rope_theta"] = rope.get("rope_theta", config.get("rope_theta", 10000.0))
        rest = {key: value for key, value in rope.items() if key != "rope_theta"}
        if "partial_rotary_factor" in rest:
            config["partial_rotary_factor"] = rest.pop("partial_rotary_factor")
        config["rope_scaling"] = rest if rest.get("rope_type", "default") != "default" else None
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    return config
