"""Fenced blocks of Markdown pages, for the tests that compile and run them."""

import re


def fenced_blocks(text, language, left_out):
    """The blocks of a language, as matches with the groups `code` and `reason`.

    `reason` is that of the line <!-- LEFT_OUT: REASON --> before the block, else None.
    """
    return list(re.finditer(rf"(?:^ *<!-- {left_out}: (?P<reason>[^\n]+) -->\n)?^ *```{language}\n(?P<code>.*?)^ *```$",
                            text, re.DOTALL | re.MULTILINE))


def line_of(text, position):
    """Its number, from 1."""
    return text.count("\n", 0, position) + 1
