"""The one exception type for everything the user can mend."""

from __future__ import annotations


class RankcallError(Exception):
    """Wrong usage or unreadable input: printed as one sentence, without a traceback, exit code 2.

    Say what was wrong with the input, where, and what would be right.
    """
