"""Directories of `transformers` with tokenizers of many forms, small and of our own making.

Each reads all of difficult_text.py, and none has names of special tokens in a text.
"""

import json

import difficult_text
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

BERT, ROBERTA = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
MPNET = ("<pad>", "[UNK]", "<s>", "</s>", "<mask>")
KEYS = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
ADDED, SPECIAL = ("<e1>", "Neue Wörter"), "[E2]"
"""Tokens that are added to a vocabulary: found in a text before, and after, it is normalized."""
TEXTS = [
    *difficult_text.without_specials(difficult_text.texts()),
    "an <e1>entity</e1> and NEUE WÖRTER, neue wörter; [E2]x [e2]",
    "Überraschung 1234 words wordlike straße",
    "a @@b c|d  e",
]


def entries(lowercase: bool, names=BERT) -> list[str]:
    """The special tokens, and every character, alone and within a word."""
    words = difficult_text.vocabulary()[len(BERT) :]
    extra = [*"0123456789<>/[];|@", *("##" + c for c in "0123456789<>/[];|@")]
    kept = [word for word in dict.fromkeys([*words, *extra, "word", "##word"]) if not lowercase or word == word.lower()]
    return [*names, *kept]


def vocab_txt(lines: list[str] | None = None, added: dict[str, int] | None = None, end: str = "\n", **settings):
    """vocab.txt with tokenizer_config.json, and added_tokens.json if `added`."""
    lines = entries(settings.get("do_lower_case", True)) if lines is None else lines
    files = {"vocab.txt": "".join(line + end for line in lines), "tokenizer_config.json": json.dumps(settings)}
    return files | ({"added_tokens.json": json.dumps(added)} if added else {})


def of_json(fast: tokenizers.Tokenizer, names=BERT, of_class="PreTrainedTokenizerFast", **settings) -> dict[str, str]:
    """A tokenizer.json with tokenizer_config.json."""
    _, _, cls, sep, _ = names
    two = f"{sep} {sep}" if names is ROBERTA else sep
    second = 0 if names is ROBERTA else 1
    fast.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {two} $B:{second} {sep}:{second}",
        special_tokens=[(name, fast.token_to_id(name)) for name in (cls, sep)],
    )
    settings |= {"tokenizer_class": of_class, **dict(zip(KEYS, names, strict=True))}
    return {"tokenizer.json": fast.to_str(), "tokenizer_config.json": json.dumps(settings)}


def wordpiece(normalizer=None, splitting=None, lowercase=True, names=BERT, prefix="##", length=100, added=(), more=()):
    lines = [
        ("@@" + line[2:] if line.startswith("##") and prefix == "@@" else line) for line in entries(lowercase, names)
    ]
    lines += more
    ids = {line: i for i, line in enumerate(lines)}
    model = models.WordPiece(ids, unk_token=names[1], continuing_subword_prefix=prefix, max_input_chars_per_word=length)
    fast = tokenizers.Tokenizer(model)
    fast.normalizer = normalizers.BertNormalizer(lowercase=lowercase) if normalizer is None else normalizer
    if splitting != "none":
        fast.pre_tokenizer = splitting or pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece(prefix, cleanup=False)
    fast.add_special_tokens(list(names))
    for token in added:
        fast.add_tokens([token])
    return fast


def bpe(splitting, normalizer=None, names=BERT, of_bytes=False, byte_fallback=False, **options):
    """Byte-pair encoding of a few merges over all characters, or all bytes."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet()) if of_bytes else entries(False)[len(BERT) :]
    pieces = dict.fromkeys([*characters, "▁", "wo", "or", "wor", "word", "▁word", "12", "34"])
    merges = [("w", "o"), ("wo", "r"), ("wor", "d"), ("1", "2"), ("3", "4"), ("▁", "word")]
    tokens = [*names, *pieces, *(f"<0x{byte:02X}>" for byte in range(256) if byte_fallback)]
    ids = {token: i for i, token in enumerate(tokens)}
    unknown = None if of_bytes else names[1]
    fast = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token=unknown, byte_fallback=byte_fallback, **options))
    fast.normalizer, fast.decoder = normalizer, decoders.ByteLevel() if of_bytes else decoders.Fuse()
    if splitting is not None:
        fast.pre_tokenizer = splitting
    fast.add_special_tokens(list(names))
    return fast


def _word_level():
    words = ["an", "and", "word", "words", "a", "c", "1234", ",", ".", "straße", "überraschung"]
    fast = tokenizers.Tokenizer(
        models.WordLevel({word: i for i, word in enumerate([*BERT, *words])}, unk_token="[UNK]")
    )
    fast.normalizer, fast.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    fast.add_special_tokens(list(BERT))
    return fast


_GPT4 = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+")
_SPLITS = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(_GPT4, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
)
_PUNCTUATION = pre_tokenizers.Split(Regex(r"\s|\p{P}"), "isolated")
_LATE = [AddedToken(token, normalized=True) for token in ADDED]

FORMS = {
    # What the settings next to a vocab.txt ask for.
    "accents kept": lambda: vocab_txt(do_lower_case=True, strip_accents=False),
    "accents of capitals": lambda: vocab_txt(do_lower_case=False, strip_accents=True),
    "ideographs in words": lambda: vocab_txt(do_lower_case=True, tokenize_chinese_chars=False),
    "another unknown word": lambda: vocab_txt(entries(True, ("[PAD]", "<unk>", *BERT[2:])), unk_token="<unk>"),
    "names of RoBERTa": lambda: vocab_txt(entries(True, ROBERTA), **dict(zip(KEYS, ROBERTA, strict=True))),
    "names of MPNet, by its class": lambda: vocab_txt(
        [*entries(True, MPNET), *BERT[2:]], tokenizer_class="MPNetTokenizer"
    ),
    "added beside it": lambda: vocab_txt(added={ADDED[0]: len(entries(True)), ADDED[1]: len(entries(True)) + 1}),
    "added in a decoder": lambda: vocab_txt(
        added_tokens_decoder={
            str(len(entries(True)) + i): {"content": token, "special": token == SPECIAL, "normalized": token != SPECIAL}
            | {"single_word": False, "lstrip": False, "rstrip": False}
            for i, token in enumerate([*ADDED, SPECIAL])
        }
    ),
    "a further special token": lambda: vocab_txt(
        [*entries(True), SPECIAL], added={"[E3]": len(entries(True)) + 1}, additional_special_tokens=[SPECIAL, "[E3]"]
    ),
    # A WordPiece tokenizer.json with other parts than BERT's.
    "split at spaces": lambda: of_json(wordpiece(splitting=pre_tokenizers.WhitespaceSplit())),
    "not split": lambda: of_json(wordpiece(splitting="none")),
    "digits apart": lambda: of_json(
        wordpiece(
            splitting=pre_tokenizers.Sequence(
                [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(individual_digits=True)]
            )
        )
    ),
    "split by an expression": lambda: of_json(
        wordpiece(splitting=pre_tokenizers.Split(Regex(r"\s|\p{P}"), "isolated"))
    ),
    "words of five": lambda: of_json(wordpiece(length=5)),
    "controls kept": lambda: of_json(wordpiece(normalizers.BertNormalizer(clean_text=False))),
    "accents kept by the file": lambda: of_json(wordpiece(normalizers.BertNormalizer(strip_accents=False))),
    "accents kept by the settings": lambda: of_json(wordpiece(), of_class="BertTokenizer", strip_accents=False),
    "ideographs kept by the file": lambda: of_json(wordpiece(normalizers.BertNormalizer(handle_chinese_chars=False))),
    "composed": lambda: of_json(wordpiece(normalizers.NFKC(), lowercase=False)),
    "another prefix": lambda: of_json(wordpiece(prefix="@@")),
    "added tokens": lambda: of_json(wordpiece(added=[*_LATE, AddedToken(SPECIAL, special=True)])),
    # Other models.
    "BPE split by an expression": lambda: of_json(bpe(pre_tokenizers.Split(Regex(r"\w+|\W"), "isolated"))),
    "bytes split by an expression": lambda: of_json(bpe(_SPLITS, of_bytes=True)),
    "bytes that ignore merges": lambda: of_json(bpe(_SPLITS, of_bytes=True, ignore_merges=True)),
    "Metaspace": lambda: of_json(bpe(pre_tokenizers.Metaspace(), names=ROBERTA), ROBERTA),
    "Gemma": lambda: of_json(bpe(None, normalizers.Replace(" ", "▁"), byte_fallback=True, fuse_unk=True)),
    "Gemma of today": lambda: of_json(
        bpe(pre_tokenizers.Split(" ", "merged_with_previous"), normalizers.Replace(" ", "▁"), byte_fallback=True)
    ),
    "words": lambda: of_json(_word_level()),
}


_RAW = {"normalized": False, "special": True}
PIPELINES = {
    "accents kept": lambda: wordpiece(normalizers.BertNormalizer(strip_accents=False)),
    "accents of capitals": lambda: wordpiece(
        normalizers.BertNormalizer(lowercase=False, strip_accents=True), None, False
    ),
    "ideographs in words": lambda: wordpiece(normalizers.BertNormalizer(handle_chinese_chars=False)),
    "another unknown word": lambda: wordpiece(names=("[PAD]", "<unk>", *BERT[2:])),
    "names of RoBERTa": lambda: wordpiece(names=ROBERTA),
    "names of MPNet, by its class": lambda: wordpiece(names=MPNET, more=BERT[2:]),
    "added beside it": lambda: wordpiece(added=_LATE),
    "added in a decoder": lambda: wordpiece(added=[*_LATE, AddedToken(SPECIAL, **_RAW)]),
    "a further special token": lambda: wordpiece(added=[AddedToken(SPECIAL, **_RAW), AddedToken("[E3]", **_RAW)]),
}
"""What `transformers` makes of the settings next to a vocab.txt."""


def pipeline(name: str) -> tokenizers.Tokenizer:
    """The pipeline of `tokenizers` that a form asks for, with five special tokens that it does not find in a text."""
    fast = PIPELINES[name]() if name in PIPELINES else tokenizers.Tokenizer.from_str(FORMS[name]()["tokenizer.json"])
    if "settings" in name:
        fast.normalizer = normalizers.BertNormalizer(strip_accents=False)
    return fast


def write(name: str, place):
    """Write the directory, with a config.json as a model has it."""
    place.mkdir(parents=True)
    for file, text in FORMS[name]().items():
        (place / file).write_text(text, encoding="utf-8")
    (place / "config.json").write_text('{"model_type": "bert"}')
    return place
