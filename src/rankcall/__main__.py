"""`python -m rankcall`: the same as the `rankcall` command."""

from __future__ import annotations

import sys

from rankcall.cli import main

if __name__ == "__main__":
    sys.exit(main())
