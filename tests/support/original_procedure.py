"""The sequential procedure of the original example maker (google-research/bert, 2018), written from its description.

Works on lengths alone: a document is a list of sentence lengths, a sentence is (document, place in it). An oracle for
statistics, not for single examples.
"""

import dataclasses
import itertools
import random


@dataclasses.dataclass
class Example:
    num_first: int  # tokens of the first segment after truncation
    num_second: int
    is_random: bool
    truncated: int
    duplicated: int  # tokens of the second segment, if random: they also stand in their own document's examples
    seen: list[tuple[int, int]]  # sentences with a token at least


def create_examples(documents: list[list[int]], max_tokens: int, short_probability: float, seed: int) -> list[Example]:
    """One pass over all documents; `max_tokens` is the sequence length less three."""
    generator = random.Random(seed)
    return [
        example
        for number in range(len(documents))
        for example in _of_document(documents, number, max_tokens, short_probability, generator)
    ]


def _of_document(documents, number, max_tokens, short_probability, generator):
    document = documents[number]
    target = generator.randint(2, max_tokens) if generator.random() < short_probability else max_tokens
    examples, chunk, at = [], [], 0
    while at < len(document):
        chunk.append(document[at])
        if at == len(document) - 1 or sum(chunk) >= target:
            num_sentences = generator.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            own = [(number, at - len(chunk) + 1 + place) for place in range(len(chunk))]
            first, second = own[:num_sentences], own[num_sentences:]
            is_random = len(chunk) == 1 or generator.random() < 0.5
            if is_random:
                at -= len(second)  # the sentences that the random segment displaced come again
                second = _random_second(documents, number, target - sum(chunk[:num_sentences]), generator)
            examples.append(_example(documents, first, second, is_random, max_tokens, generator))
            chunk = []
        at += 1
    return examples


def _random_second(documents, number, wanted, generator):
    for _ in range(10):
        other = generator.randint(0, len(documents) - 1)
        if other != number:
            break
    sentences, length = [], 0
    for place in range(generator.randint(0, len(documents[other]) - 1), len(documents[other])):
        sentences.append((other, place))
        length += documents[other][place]
        if length >= wanted:
            break
    return sentences


def _example(documents, first, second, is_random, max_tokens, generator):
    lengths = [[documents[document][place] for document, place in segment] for segment in (first, second)]
    kept = truncate(sum(lengths[0]), sum(lengths[1]), max_tokens)
    lost = [sum(lengths[0]) - kept[0], sum(lengths[1]) - kept[1]]
    seen = [s for segment, *rest in zip((first, second), lengths, lost) for s in _seen(segment, *rest, generator)]
    return Example(*kept, is_random, lost[0] + (0 if is_random else lost[1]), kept[1] if is_random else 0, seen)


def _seen(sentences, lengths, lost, generator):
    """Those that keep a token when each of the `lost` tokens goes from the front or the back by a fair coin."""
    front = sum(generator.random() < 0.5 for _ in range(lost))
    ends = list(itertools.accumulate(lengths))
    return [
        sentence
        for sentence, length, end in zip(sentences, lengths, ends)
        if end > front and end - length < ends[-1] - (lost - front)
    ]


def truncate(first: int, second: int, max_tokens: int) -> tuple[int, int]:
    """Lengths after tokens were taken off the longer segment one by one; the second loses on a tie."""
    while first + second > max_tokens:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second
