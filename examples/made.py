"""Data for the examples, made on the spot: sentences of a small grammar, and a tokenizer with a token a word."""

import random

from tokenizers import Tokenizer, models, pre_tokenizers

WHO, WHAT, HOW = ["the cat", "a bird", "my dog", "the child"], ["sees", "hears", "follows"], ["quickly", "slowly", "at night"]
END = "<|endoftext|>"


def texts(documents: int, seed: int) -> list[str]:
    """Documents of 1 to 8 sentences."""
    chance = random.Random(seed)

    def sentence() -> str:
        return f"{chance.choice(WHO)} {chance.choice(WHAT)} {chance.choice(WHO)} {chance.choice(HOW)} ."

    return [" ".join(sentence() for _ in range(chance.randint(1, 8))) for _ in range(documents)]


def tokenizer() -> Tokenizer:
    words = sorted({word for phrase in [*WHO, *WHAT, *HOW, "."] for word in phrase.split()})
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate([END, *words])}, unk_token=END))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([END])
    return made
