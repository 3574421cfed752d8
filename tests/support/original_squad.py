"""The published algorithm of run_squad.py (google-research/bert), written down again from what it does: slow and plain.

It works on words and searches for texts; the product works on the character offsets of the tokenizer. `tokenize` is any
function from a text to its pieces, `basic` Google's basic tokenizer with its words joined by spaces.
"""

import dataclasses
import math


@dataclasses.dataclass
class Window:
    tokens: list[str]
    word_of: dict[int, int]
    most_context: dict[int, bool]
    start: int
    end: int


def split_words(text: str) -> tuple[list[str], list[int]]:
    """Words, and for each character the word it belongs to (a space: the word before it)."""
    words, word_of_character, fresh = [], [], True
    for c in text:
        if c in " \t\r\n\u202f":
            fresh = True
        elif fresh:
            words.append(c)
            fresh = False
        else:
            words[-1] += c
        word_of_character.append(len(words) - 1)
    return words, word_of_character


def make_windows(
    context: str, question: str, answer: tuple[str, int] | None, tokenize, max_length: int, stride: int, max_query: int
) -> list[Window]:
    words, word_of_character = split_words(context)
    pieces, word_of_piece, first_piece = [], [], []
    for index, word in enumerate(words):
        first_piece.append(len(pieces))
        for piece in tokenize(word):
            pieces.append(piece)
            word_of_piece.append(index)
    first_piece.append(len(pieces))
    span = None
    if answer:
        text, offset = answer
        low = first_piece[word_of_character[offset]]
        high = first_piece[word_of_character[offset + len(text) - 1] + 1] - 1
        span = improve(pieces, low, high, " ".join(tokenize(text)))
    head = ["[CLS]", *tokenize(question)[:max_query], "[SEP]"]
    chunks = cut(len(pieces), max_length - len(head) - 1, stride)
    result = []
    for number, (begin, length) in enumerate(chunks):
        places = {len(head) + i: begin + i for i in range(length)}
        inside = span is not None and span[0] >= begin and span[1] < begin + length
        result.append(
            Window(
                [*head, *pieces[begin : begin + length], "[SEP]"],
                {at: word_of_piece[p] for at, p in places.items()},
                {at: most_context(chunks, p) == number for at, p in places.items()},
                *((s - begin + len(head) if inside else 0) for s in span or (0, 0)),
            )
        )
    return result


def cut(pieces: int, room: int, stride: int) -> list[tuple[int, int]]:
    chunks, begin = [], 0
    while begin < pieces:
        length = min(room, pieces - begin)
        chunks.append((begin, length))
        if begin + length == pieces:
            break
        begin += min(length, stride)
    return chunks


def improve(pieces: list[str], low: int, high: int, wanted: str) -> tuple[int, int]:
    for start in range(low, high + 1):
        for end in range(high, start - 1, -1):
            if " ".join(pieces[start : end + 1]) == wanted:
                return start, end
    return low, high


def most_context(chunks: list[tuple[int, int]], piece: int) -> int:
    best, chosen = None, None
    for number, (begin, length) in enumerate(chunks):
        last = begin + length - 1
        if begin <= piece <= last:
            score = min(piece - begin, last - piece) + 0.01 * length
            if best is None or score > best:
                best, chosen = score, number
    return chosen


def answer(context: str, windows: list[Window], logits: list, n_best: int, max_answer: int, with_null: bool, basic):
    """(n-best list of (text, start score, end score), best nonempty text, null odds); ("", None) where it crashed."""
    spans, null = [], None
    for number, (window, scores) in enumerate(zip(windows, logits)):
        starts, ends = ([float(pair[side]) for pair in scores] for side in (0, 1))
        if null is None or starts[0] + ends[0] < null[0] + null[1]:
            null = starts[0], ends[0]
        for start in sorted(range(len(starts)), key=lambda i: starts[i], reverse=True)[:n_best]:
            for end in sorted(range(len(ends)), key=lambda i: ends[i], reverse=True)[:n_best]:
                if (
                    start in window.word_of
                    and end in window.word_of
                    and window.most_context[start]
                    and start <= end < start + max_answer
                ):
                    spans.append((number, start, end, starts[start], ends[end]))
    if with_null:
        spans.append((None, 0, 0, *null))
    spans.sort(key=lambda span: span[3] + span[4], reverse=True)
    seen, best = set(), []
    for number, start, end, start_score, end_score in spans:
        if len(best) >= n_best:
            break
        text = ""
        if number is not None:
            text = read(context, windows[number], basic, start, end)
            if text in seen:
                continue
        seen.add(text)
        best.append((text, start_score, end_score))
    if with_null and "" not in seen:
        best.append(("", *null))
    full = next((entry for entry in best if entry[0]), None)
    if full is None:
        return best, "", None
    return best, full[0], null[0] + null[1] - full[1] - full[2]


def read(context: str, window: Window, basic, start: int | None = None, end: int | None = None) -> str:
    """The text of positions start to end, those of the label if not given."""
    start, end = (window.start, window.end) if start is None else (start, end)
    predicted = " ".join(" ".join(window.tokens[start : end + 1]).replace(" ##", "").replace("##", "").split())
    words = split_words(context)[0]
    return project(predicted, " ".join(words[window.word_of[start] : window.word_of[end] + 1]), basic)


def project(predicted: str, original: str, basic) -> str:
    """The heuristic of get_final_text: aligns the characters other than spaces, gives up if their numbers differ."""
    tokenized = basic(original)
    at = tokenized.find(predicted)
    kept = [i for i, c in enumerate(original) if c != " "]
    if at == -1 or len(kept) != len(tokenized.replace(" ", "")):
        return original
    before = len(tokenized[:at].replace(" ", ""))
    return original[kept[before] : kept[before + len(predicted.replace(" ", "")) - 1] + 1]


def softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    total = sum(math.exp(score - top) for score in scores)
    return [math.exp(score - top) / total for score in scores]
