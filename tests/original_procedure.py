"""The sequential procedure of the original example maker (google-research/bert, 2018), written from its described behaviour.

Works on lengths alone: a document is a list of sentence lengths. An oracle for statistics, not for single examples.
"""

import dataclasses
import random


@dataclasses.dataclass
class Example:
    num_first: int  # tokens of the first segment after truncation
    num_second: int
    is_random: bool
    truncated: int
    duplicated: int = 0  # tokens of the second segment, if random: they also stand in their own document's examples


def create_examples(documents: list[list[int]], max_tokens: int, short_probability: float, seed: int) -> list[Example]:
    """One pass over all documents; `max_tokens` is the sequence length less three."""
    generator = random.Random(seed)
    return [example for number in range(len(documents))
            for example in _of_document(documents, number, max_tokens, short_probability, generator)]


def _of_document(documents, number, max_tokens, short_probability, generator):
    document = documents[number]
    target = generator.randint(2, max_tokens) if generator.random() < short_probability else max_tokens
    examples, chunk, at = [], [], 0
    while at < len(document):
        chunk.append(document[at])
        if at == len(document) - 1 or sum(chunk) >= target:
            num_sentences = generator.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            first = sum(chunk[:num_sentences])
            is_random = len(chunk) == 1 or generator.random() < 0.5
            if is_random:
                second = _random_second(documents, number, target - first, generator)
                at -= len(chunk) - num_sentences  # the sentences that the random segment displaced come again
            else:
                second = sum(chunk[num_sentences:])
            kept_first, kept_second = truncate(first, second, max_tokens)
            truncated = first - kept_first + (0 if is_random else second - kept_second)
            examples.append(Example(kept_first, kept_second, is_random, truncated, kept_second if is_random else 0))
            chunk = []
        at += 1
    return examples


def _random_second(documents, number, wanted, generator):
    for _ in range(10):
        other = generator.randint(0, len(documents) - 1)
        if other != number:
            break
    length, start = 0, generator.randint(0, len(documents[other]) - 1)
    for sentence in documents[other][start:]:
        length += sentence
        if length >= wanted:
            break
    return length


def truncate(first: int, second: int, max_tokens: int) -> tuple[int, int]:
    """Lengths after tokens were taken off the longer segment one by one; the second loses on a tie."""
    while first + second > max_tokens:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second
