"""Fine-tuning with the Trainer of Hugging Face, and decoding that rolls back.

    pip install '.[hf]' accelerate
    python examples/hugging_face.py

A small language model learns sentences of a simple grammar. Then prompt lookup guesses several
tokens at a time: the model reads them in one call and rejects those that it would not have chosen,
which takes a recurrence whose state can be rolled back. The tokens are those of greedy search.
"""

import argparse
import random
import tempfile

import torch
from transformers import Trainer, TrainingArguments

from statemix import LMConfig
from statemix.hf import StatemixForCausalLM, config_from_lm

SUBJECTS = ("the cat", "a dog", "my aunt", "the old king")
VERBS = ("sees", "likes", "follows", "paints")
BEGIN, END = 0, 10  # byte 10 is a line break


def sentence(rng: random.Random) -> list[int]:
    """A sentence that repeats itself, as bytes."""
    text = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(SUBJECTS)}"
    return [BEGIN, *f"{text}; {text}\n".encode()]


def rows(count: int, length: int = 48) -> list[dict[str, list[int]]]:
    """Sentences padded to one length; padding is not scored."""
    rng = random.Random(0)
    found = []
    for _ in range(count):
        tokens = sentence(rng)[:length]
        padding = length - len(tokens)
        found.append(
            {
                "input_ids": tokens + [END] * padding,
                "attention_mask": [1] * len(tokens) + [0] * padding,
                "labels": tokens + [-100] * padding,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a model with Trainer, and decode.")
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    sizes = LMConfig(vocab=256, width=64, layers=2, options={"n_blocks": 16, "block_size": 4})
    model = StatemixForCausalLM(config_from_lm(sizes, bos=BEGIN, eos=END, pad=END))
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            per_device_train_batch_size=32,
            max_steps=steps,
            learning_rate=3e-3,
            logging_steps=50,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(model=model, args=arguments, train_dataset=rows(2_000)).train()

    model.eval()
    prompt = torch.tensor([[BEGIN, *b"the cat sees my aunt; the"]])
    shape = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": END}
    mask = torch.ones_like(prompt)
    greedy = model.generate(prompt, attention_mask=mask, **shape)
    lookup = model.generate(prompt, attention_mask=mask, prompt_lookup_num_tokens=5, **shape)
    print(bytes(greedy[0, 1:].tolist()).decode(errors="replace").strip())
    print("prompt lookup gives the same tokens:", torch.equal(greedy, lookup))
    assert torch.equal(greedy, lookup)


if __name__ == "__main__":
    main()
