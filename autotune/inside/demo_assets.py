"""Makes the demo's model, tokenizer, data and reward: `python demo_assets.py FOLDER`. Nothing is fetched.

A Qwen2 of about 4 million random parameters, a tokenizer trained on sums, prompts that ask for sums, and a reward that
varies enough for GRPO to have advantages. Too small to learn, large enough for the knobs to show on a CPU.
"""

import json
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

WORDS = [
    "what",
    "is",
    "the",
    "sum",
    "of",
    "number",
    "and",
    "plus",
    "minus",
    "times",
    "answer",
    "question",
    "please",
    "compute",
    "carefully",
    "step",
    "by",
    "result",
    "equals",
]
HIDDEN, LAYERS, VOCABULARY, HEAD = 256, 4, 2048, 32
PROMPTS = 256
REWARD = '''"""Reward of the demo: the share of digits in a response."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return sum(character.isdigit() for character in solution_str) / max(1, len(solution_str))
'''
CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def sums(dice: random.Random, count: int) -> Iterator[str]:
    """Sentences about sums."""
    for _ in range(count):
        a, b = dice.randint(0, 999), dice.randint(0, 999)
        yield f"{' '.join(dice.choices(WORDS, k=12))} {a} + {b} = {a + b}"


def make_tokenizer(dice: random.Random, folder: str) -> Any:
    """Byte-level BPE with the chat tokens of Qwen."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - 3, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(sums(dice, 4000), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=special[2],
        pad_token=special[0],
        additional_special_tokens=[special[1]],
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT
    fast.save_pretrained(folder)
    return fast


def make_model(tokenizer: Any, folder: str) -> Any:
    """Random weights, always the same ones."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=max(VOCABULARY, len(tokenizer)),
        hidden_size=HIDDEN,
        intermediate_size=3 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // HEAD,
        num_key_value_heads=HIDDEN // HEAD // 2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def make_rows(dice: random.Random, count: int) -> list[dict[str, Any]]:
    """Prompts in the shape of verl's datasets."""
    rows = []
    for index in range(count):
        a, b = dice.randint(0, 99), dice.randint(0, 99)
        question = f"what is the sum of {a} + {b} please compute step by step"
        rows.append(
            {
                "data_source": "autotune/sums",
                "prompt": [{"role": "user", "content": question}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                "extra_info": {"index": index, "split": "train"},
            }
        )
    return rows


def main(folder: str) -> None:
    """Writes everything; prints one JSON line about it."""
    import pandas

    dice = random.Random(0)
    os.makedirs(os.path.join(folder, "model"), exist_ok=True)
    tokenizer = make_tokenizer(dice, os.path.join(folder, "model"))
    parameters = make_model(tokenizer, os.path.join(folder, "model"))
    pandas.DataFrame(make_rows(dice, PROMPTS)).to_parquet(os.path.join(folder, "train.parquet"))
    pandas.DataFrame(make_rows(dice, 8)).to_parquet(os.path.join(folder, "val.parquet"))
    with open(os.path.join(folder, "reward.py"), "w", encoding="utf-8") as sink:
        sink.write(REWARD)
    print(json.dumps({"parameters": parameters, "vocabulary": len(tokenizer)}))


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if place and os.path.abspath(place) != here]
    main(sys.argv[1])
