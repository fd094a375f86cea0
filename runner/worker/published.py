"""config.json in the form in which checkpoints are published, which transformers 4 and 5 both read.

Version 5 saves rotary parameters nested, and version 4 does not find them
there: it takes its defaults and says nothing. What version 4 has no place for
stays as version 5 wrote it.
"""

from __future__ import annotations

FULL, SLIDING = "full_attention", "sliding_attention"
# The rope types that version 4 has a form of.
LEGACY = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
# Of those with parameters by kind of layer, the models whose fields of version 4 say the same.
BY_LAYER = ("gemma3", "gemma3_text")
PLAIN = {"rope_type", "type", "rope_theta"}


def published_config(config: dict) -> dict:
    """`config` with its rotary parameters and its dtype at the places where version 4 looks too."""
    config = dict(config)
    if isinstance(config.get("text_config"), dict):
        config["text_config"] = published_config(config["text_config"])
    rope = config.get("rope_parameters") or {}
    said = by_layer(rope) if config.get("model_type") in BY_LAYER and nested(rope) else flat(rope)
    if said is not None:
        del config["rope_parameters"]
        config |= said
        if config.get("model_type") == "phi3":
            as_phi3(config)
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    return config


def nested(rope: dict) -> bool:
    """Whether there are parameters of their own for each kind of layer."""
    return any(isinstance(value, dict) for value in rope.values())


def rope_type(rope: dict) -> str:
    return rope.get("rope_type") or rope.get("type") or "default"


def by_layer(rope: dict) -> dict | None:
    """Version 4's fields of full and sliding layers' parameters, where the sliding ones have nothing but a theta."""
    sliding = rope.get(SLIDING)
    if not set(rope) <= {FULL, SLIDING} or not rope.get(FULL):
        return None
    said = flat(rope[FULL])
    if said is None or not sliding:
        return said
    if rope_type(sliding) != "default" or set(sliding) - PLAIN:
        return None
    return said | ({"rope_local_base_freq": sliding["rope_theta"]} if "rope_theta" in sliding else {})


def flat(rope: dict) -> dict | None:
    """Version 4's fields of one set of parameters; None where it has none for them."""
    if not rope or nested(rope) or rope_type(rope) not in LEGACY:
        return None
    rest = dict(rope)
    said = {key: rest.pop(key) for key in ("rope_theta", "partial_rotary_factor") if rest.get(key) is not None}
    scales = rope_type(rest) != "default" or set(rest) - PLAIN
    return said | {"rope_scaling": rest if scales else None}


def as_phi3(config: dict) -> None:
    """Version 4's Phi-3 takes exactly the type and the two lists, and looks for the original length beside them."""
    scaling = config["rope_scaling"]
    if scaling and rope_type(scaling) == "longrope":
        rest = {key: value for key, value in scaling.items() if key not in ("rope_type", "type")}
        original = rest.pop("original_max_position_embeddings", None)
        config["rope_scaling"] = {"type": "longrope", **rest}
        if original is not None:
            config["original_max_position_embeddings"] = original
