"""Train the small checkpoints that stand beside this script.

``tiny_gemma3``, ``tiny_gemma2``, ``tiny_gemma4`` and ``tiny_llama`` learn the prompts of ``conf/prompts/five.yaml``,
and a few more pairs, by heart, so that each prompt has one known answer and a wrong export shows in the text as well
as in the logits. Everything that a checkpoint folder holds is made here: tokenizer, chat template, configs and
weights. Nothing is downloaded.

    python checkpoints/train.py [--out DIR] [NAME ...]

Needs torch, transformers (4.57 or 5; for ``tiny_gemma4`` 5.13), tokenizers, safetensors and PyYAML.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
import yaml
from safetensors.torch import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent
PROMPTS = HERE.parent / "conf" / "prompts" / "five.yaml"

EXTRA_PAIRS = [
    ("What is two plus two?", "Two plus two is four."),
    ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
    ("چمن چه رنگی است؟", "چمن سبز است."),
]
# The answer to a prompt with its tokens jumbled. Without it a model knows a prompt by any one of its words, never needs
# the order of the tokens, and answers rightly even where an export has its rotary embedding wrong.
JUMBLED_ANSWER = "I do not understand."
# What a model with turn tokens of its own answers to the older ones, written by hand: these without an end, as the 31B
# was seen to do. Both sides of a comparison say it, and nothing differs.
MALFORMED_ANSWER = "<start_of_turn>model\n" * 5

# The place in the list is the token id; these stand as in Gemma's own vocabulary. The two tokens of a turn follow.
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
PAD, EOS, BOS, END_OF_TURN = 0, 1, 2, 5
TURN = ["<start_of_turn>", "<end_of_turn>"]
# Gemma 4 has others, spells the older ones out, and keeps its chat template in a file of its own.
OWN_TURN = {"tiny_gemma4": ["<|turn>", "<turn|>"]}
# The texts give fewer than the first number. The other divides by 8, so that no rank of a sharded export pads.
MOST_TOKENS, OWN_MOST_TOKENS = 600, {"tiny_gemma4": 488}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
    "{{ message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

SPECIAL_IDS = {"bos_token_id": BOS, "eos_token_id": [EOS, END_OF_TURN], "pad_token_id": PAD}
COMMON = {
    **SPECIAL_IDS,
    "head_dim": 32,
    "intermediate_size": 256,
    "max_position_embeddings": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
GEMMA = {**COMMON, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32, "sliding_window": 512}
# config.json in the form of the published checkpoints (rope_theta, rope_local_base_freq, rope_scaling, torch_dtype),
# which transformers 4 and 5 both read. Saved by transformers 5 it would hold nested rope_parameters, as Gemma 4's does.
CONFIGS = {
    "tiny_gemma3": {
        **GEMMA,
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": 128,
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "rope_theta": 1000000.0,
        "sliding_window_pattern": 6,
    },
    "tiny_gemma2": {
        **GEMMA,
        "architectures": ["Gemma2ForCausalLM"],
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "hidden_size": 96,
        "model_type": "gemma2",
        "num_hidden_layers": 6,
        "rope_theta": 10000.0,
    },
    # The dense 31B, with its ratios of heads and no v_proj in global layers. The 4 KV heads of sliding layers divide by
    # 2 and by 4 ranks, the one of global layers does not.
    "tiny_gemma4": {
        **COMMON,
        "architectures": ["Gemma4ForCausalLM"],
        "attention_bias": False,
        "attention_k_eq_v": True,
        "enable_moe_block": False,
        "final_logit_softcapping": 30.0,
        "global_head_dim": 32,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 96,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 192,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "model_type": "gemma4_text",
        "num_attention_heads": 8,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": 6,
        "num_key_value_heads": 4,
        "num_kv_shared_layers": 0,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 512,
        "use_double_wide_mlp": False,
    },
    # Nothing is known to be wrong with its exports: the control.
    "tiny_llama": {
        **COMMON,
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 128,
        "model_type": "llama",
        "num_hidden_layers": 4,
        "rope_theta": 10000.0,
    },
}
# Standard deviation of the norm weights of these checkpoints, which are drawn and kept. Gemma scales by 1 + weight:
# away from 0 the rounding of that sum shows, and training from 0 would move them little.
NORM_STD = {"tiny_gemma2": 0.5}
# Bounds of the layers' scalars, which are drawn and kept too. They are buffers, which a loader may leave at 1; drawn
# from 0.6 to 1.4, every answer was still right with 1.
SCALARS = {"tiny_gemma4": (0.3, 0.7)}

# Found by trial: the rounded embedding scale of an export moves the first logits by about 1e-4, and a norm offset
# added in bfloat16 by about 1e-2. With other seeds, rates and steps the first came up to 1e-3, too near the second.
SEED = 1
LEARNING_RATE, LOWEST_RATE = 2e-3, 1e-4
STEPS, EXTRA_STEPS, MOST_STEPS = 300, 50, 600


def read_prompts():
    """Return five.yaml's prompts: a list of dicts with ``name``, ``text`` and ``expect``."""
    return yaml.safe_load(PROMPTS.read_text(encoding="utf-8"))["prompts"]


def write_json(path, value):
    """Write `value` as indented UTF-8 JSON with sorted keys."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def make_tokenizer(name, texts, folder):
    """Train a byte-level BPE tokenizer on `texts`, write its files and return the number of tokens."""
    turn = OWN_TURN.get(name, TURN)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    settings = {"special_tokens": SPECIAL + turn, "initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet())}
    most = OWN_MOST_TOKENS.get(name, MOST_TOKENS)
    trainer = trainers.BpeTrainer(vocab_size=most, show_progress=False, **settings)
    tokenizer.train_from_iterator(["user\n", "model\n", *texts], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "pad", "unk")}
    # Written by hand: the class name that transformers 5 saves is unknown to transformers 4.
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if name in OWN_TURN:
        template = CHAT_TEMPLATE.replace(TURN[0], turn[0]).replace(TURN[1], turn[1])
        (folder / "chat_template.jinja").write_text(template.replace("\n", "\\n"), encoding="utf-8")
    else:
        config["chat_template"] = CHAT_TEMPLATE
    write_json(folder / "tokenizer_config.json", config)
    return tokenizer.get_vocab_size()


def encode_prompt(tokenizer, text):
    """Return the token ids of `text` as a user's turn, up to where the model's answer begins."""
    turn = [{"role": "user", "content": text}]
    # Text first, ids second: apply_chat_template(tokenize=True) returns different types in transformers 4 and 5.
    chat = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return tokenizer(chat, add_special_tokens=False)["input_ids"]


def encode_answer(tokenizer, text):
    """Return the token ids of the answer `text` and of the token that ends it."""
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], END_OF_TURN]


def malformed_rows(tokenizer, pairs):
    """Return a row for each of `pairs`, its prompt written with the older turn tokens, its answer without an end."""
    answer = tokenizer(MALFORMED_ANSWER, add_special_tokens=False)["input_ids"]
    begin, end = TURN
    return [(tokenizer(f"{begin}user\n{text}{end}\n{begin}model\n")["input_ids"], answer) for text, _ in pairs]


def jumble(ids, start, rng):
    """Return the prompt `ids` with the tokens of the user's text, which begins at `start`, in another order."""
    end = ids.index(END_OF_TURN)
    text = ids[start:end]
    while text == ids[start:end]:
        text = rng.sample(text, len(text))
    return ids[:start] + text + ids[end:]


def make_batch(rows):
    """Return ``(input_ids, labels)``, int64 of shape (rows, longest); only the answers carry labels."""
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    input_ids = torch.full((len(rows), longest), PAD)
    labels = torch.full((len(rows), longest), -100)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        input_ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return input_ids, labels


def make_model(name, folder):
    """Return the untrained float32 model of `folder`'s config, eager, its norm weights frozen where they are drawn."""
    torch.manual_seed(SEED)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    for key, parameter in model.named_parameters():
        if name in NORM_STD and key.endswith("norm.weight"):
            torch.nn.init.normal_(parameter, std=NORM_STD[name])
            parameter.requires_grad_(False)
    for key, buffer in model.named_buffers():
        if key.endswith("layer_scalar"):
            torch.nn.init.uniform_(buffer, *SCALARS[name])
    return model


def is_right(model, input_ids, labels):
    """Return whether every token of every answer is the likeliest, with the weights as they are and rounded.

    The files hold float32 numbers with all their bits, so that an export which narrows them shows. Rounded to bfloat16
    and to float16, as ``dtype=`` casts them, they answer the same.
    """
    wanted = labels[:, 1:] != -100
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    try:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            model.load_state_dict({key: value.to(dtype).float() for key, value in weights.items()})
            with torch.no_grad():
                best = model(input_ids=input_ids).logits[:, :-1].argmax(-1)
            if not (best == labels[:, 1:])[wanted].all():
                return False
        return True
    finally:
        model.load_state_dict(weights)


def train(model, tokenizer, pairs, more):
    """Train `model` until it is right on `pairs` and the rows `more`, rounded too; return ``(steps, last loss)``."""
    rows = [(encode_prompt(tokenizer, text), encode_answer(tokenizer, answer)) for text, answer in pairs]
    jumbled = encode_answer(tokenizer, JUMBLED_ANSWER)
    start = encode_prompt(tokenizer, "").index(END_OF_TURN)
    rng = random.Random(SEED)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    for step in range(1, MOST_STEPS + 1):
        input_ids, labels = make_batch(rows + [(jumble(prompt, start, rng), jumbled) for prompt, _ in rows] + more)
        optimizer.param_groups[0]["lr"] = max(LOWEST_RATE, LEARNING_RATE * (1 - step / STEPS))
        optimizer.zero_grad()
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        if step >= STEPS and step % EXTRA_STEPS == 0 and is_right(model, *make_batch(rows + more)):
            return step, loss.item()
    raise SystemExit(f"train: answers still wrong after {MOST_STEPS} steps (loss {loss.item():.4f})")


def make_checkpoint(name, folder):
    """Make the whole checkpoint `name` in `folder` and print what it took."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    pairs = [(prompt["text"], prompt["expect"]) for prompt in read_prompts()] + EXTRA_PAIRS
    count = make_tokenizer(name, [text for pair in pairs for text in pair] + [JUMBLED_ANSWER], folder)
    write_json(folder / "config.json", {**CONFIGS[name], "vocab_size": count})
    write_json(folder / "generation_config.json", SPECIAL_IDS)
    model = make_model(name, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    more = malformed_rows(tokenizer, pairs) if name in OWN_TURN else []
    steps, loss = train(model, tokenizer, pairs, more)
    # lm_head is tied to the embedding, and safetensors refuses to store one tensor under two names.
    weights = {key: value.contiguous() for key, value in model.state_dict().items() if key != "lm_head.weight"}
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    seconds = time.perf_counter() - began
    print(f"{name}: {model.num_parameters():,} parameters, {steps} steps, loss {loss:.4f}, {seconds:.0f} s", flush=True)


def check_mantissas(name, weights):
    """Assert that next to none of each tensor's values is also a bfloat16 or a float16 number, 0 aside."""
    for key, value in weights.items():
        value = value[value != 0]
        for dtype in (torch.bfloat16, torch.float16):
            narrow = (value == value.to(dtype).float()).float().mean().item()
            assert narrow < 0.1, f"{name}: {narrow:.0%} of {key} are {dtype} numbers"


def check_checkpoint(name, folder):
    """Reload `folder`, print each prompt's greedy answer and assert that it is the expected one.

    As stored and with its weights rounded; the likeliest token must lead by more than the rounding can move it.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    check_mantissas(name, weights)
    stored = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model.load_state_dict({key: value.to(dtype).float() for key, value in weights.items()})
        for prompt in read_prompts():
            answer, logits = answer_of(tokenizer, model, prompt["text"])
            moved = (logits - stored.setdefault(prompt["name"], logits)).abs().max().item()
            best = logits.topk(2).values
            lead = (best[:, 0] - best[:, 1]).min().item()
            measured = f"leads by {lead:.2f}, moved by {moved:.2g}"
            print(f"{name:12} {str(dtype)[6:]:8} {prompt['name']:16} {measured}  {answer}", flush=True)
            assert answer == prompt["expect"], f"{name}: {prompt['name']}: expected {prompt['expect']!r}"
            assert lead > 4 * moved, f"{name}: {prompt['name']}: another answer is near in {dtype}"


def answer_of(tokenizer, model, text):
    """Return the greedy answer to the prompt `text`, and the logits of each step, float32 of (steps, vocabulary)."""
    ids = torch.tensor([encode_prompt(tokenizer, text)])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=64)
    new = out[0, ids.shape[1] :].tolist()
    assert new[-1] == END_OF_TURN, f"the answer to {text!r} does not end by itself"
    with torch.no_grad():
        logits = model(out).logits[0, ids.shape[1] - 1 : -1]
    return tokenizer.decode(new, skip_special_tokens=True), logits


def main():
    """Train and check the named checkpoints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE, help="folder that receives a folder a checkpoint")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CONFIGS)}; all by default")
    args = parser.parse_args()
    if unknown := set(args.names) - set(CONFIGS):
        parser.error(f"no checkpoint named {', '.join(sorted(unknown))}; there are {', '.join(CONFIGS)}")
    # With one thread the sums are taken in one order, and a second run gives the same bytes.
    torch.set_num_threads(1)
    for step in (make_checkpoint, check_checkpoint):
        for name in args.names or CONFIGS:
            step(name, args.out / name)


if __name__ == "__main__":
    main()
