"""E-mail addresses and telephone numbers, cut out of text."""

import re

import phonenumbers

from bert_jax.errors import UserError

_ADDRESS = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")  # from the start of a run only: linear time
_DIGITS = re.compile(r"\d\D{0,3}\d\D{0,3}\d\D{0,3}\d\D{0,3}\d\D{0,3}\d\D{0,3}\d")  # the least that a number has: 7
_SPACES = re.compile(r"\s{2,}")


def check_region(region: str) -> None:
    """Raise a UserError unless numbers of that country can be recognized."""
    if region not in phonenumbers.SUPPORTED_REGIONS:
        raise UserError(f"clean.phone_region={region} must be the code of a country in capitals, such as US or DE")


def without_contacts(line: str, region: str) -> str:
    """Return the line without addresses and valid numbers, and without the double spaces that they leave."""
    cut = _ADDRESS.sub("", line) if "@" in line else line
    if _DIGITS.search(cut):
        for match in reversed(list(phonenumbers.PhoneNumberMatcher(cut, region))):
            cut = cut[: match.start] + cut[match.end :]
    return line if cut == line else _SPACES.sub(" ", cut).strip()
