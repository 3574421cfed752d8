"""The language of a document, by py3langid (Lui and Baldwin 2012), whose model is in its package."""

import functools
from typing import Any

from bert_jax.errors import UserError

READ_CHARACTERS = 2_000
"""Characters of a document by which its language is told; more take longer and hardly change the answer."""


def check_languages(languages: tuple[str, ...]) -> None:
    """Raise a UserError that names the languages that cannot be identified."""
    known = sorted(_identifier().labels)
    if unknown := [language for language in languages if language not in known]:
        raise UserError(
            f"clean.languages={','.join(unknown)} cannot be identified; give codes among {', '.join(known)}"
        )


def language_of(lines: list[str]) -> str:
    """Return the code of the most probable language of the beginning of a document, or "und" if it has no letter."""
    text, length = [], 0
    for line in lines:
        text.append(line[: READ_CHARACTERS - length])
        length += len(text[-1]) + 1
        if length >= READ_CHARACTERS:
            break
    joined = "\n".join(text)
    if not any(character.isalpha() for character in joined):
        return "und"
    return _identifier().classify(joined)[0]


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)
