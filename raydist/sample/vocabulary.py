"""The vocabulary of `builtin:tiny`: word pieces of the sample world in its six languages.

    python -m raydist.sample.vocabulary > raydist/models/tiny_vocabulary.txt

Shipped as a file, so that the model does not change with the sample world.
"""

from __future__ import annotations

import json
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from raydist.sample.write import write_sample

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def words_of_the_world(seed: int = 0) -> Iterator[str]:
    """Every text of a small sample world."""
    with tempfile.TemporaryDirectory() as folder:
        write_sample(Path(folder) / "world", "small", seed)
        for file in sorted(Path(folder).rglob("*.json")):
            for article in json.loads(file.read_text(encoding="utf-8")).get("data", []):
                for paragraph in article["paragraphs"]:
                    yield paragraph["context"]
                    yield from (question["question"] for question in paragraph["qas"])


def make_vocabulary(size: int = 6000) -> list[str]:
    """Word pieces by frequency, and every letter of the scripts in use, so that no word is unknown."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=size, min_frequency=3, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(words_of_the_world(), trainer)
    pieces = sorted(set(tokenizer.get_vocab()) - set(SPECIALS))
    scripts = [*range(0x21, 0x250), *range(0x300, 0x370), *range(0x600, 0x700), *range(0x900, 0x980), *range(0x1E00, 0x1F00)]
    letters = [chr(code) for code in scripts if unicodedata.category(chr(code))[0] in "LMNPS"]
    return SPECIALS + sorted({*pieces, *letters, *("##" + letter for letter in letters)})


if __name__ == "__main__":
    print("\n".join(make_vocabulary()))
