"""Ids as the published code of each family gives them, by SentencePiece and plain Python: an oracle.

ALBERT's `preprocess_text` and `encode_pieces` of tokenization.py (google-research/albert), XLNet's of prepro_utils.py,
with the quotation marks that `transformers` replaces in both; the offsets of fairseq's ids in XLM-RoBERTa and
CamemBERT; the mask that DeBERTa appends.
"""

import unicodedata


def preprocess_text(text: str, lower: bool) -> str:
    text = " ".join(text.strip().split()).replace("``", '"').replace("''", '"')
    text = unicodedata.normalize("NFKD", text)
    text = "".join(c for c in text if not unicodedata.combining(c))
    return text.lower() if lower else text


def encode_pieces(processor, text: str) -> list[str]:
    found = []
    for piece in processor.encode_as_pieces(text):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            parts = processor.encode_as_pieces(piece[:-1].replace("\u2581", ""))
            if piece[0] != "\u2581" and parts[0][0] == "\u2581":
                parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
            found += [*parts, piece[-1]]
        else:
            found.append(piece)
    return found


def ids(family: str, processor, text: str) -> list[int]:
    if family in ("albert", "xlnet"):
        return [
            processor.piece_to_id(piece)
            for piece in encode_pieces(processor, preprocess_text(text, family == "albert"))
        ]
    plain = processor.encode_as_ids(text)
    if family == "deberta-v2":
        return plain
    offset = {"xlm-roberta": 1, "camembert": 4}[family]
    return [i + offset if i else 3 for i in plain]
