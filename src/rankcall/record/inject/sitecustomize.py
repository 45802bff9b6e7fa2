"""Loaded by every Python process below `rankcall run`, because this folder stands first in PYTHONPATH.

Starts the recording, then hands over to the sitecustomize that would have been loaded without us. Nothing here may
fail the program.
"""


def _begin() -> None:
    import os
    import sys

    here = os.path.dirname(os.path.abspath(__file__))
    home = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    added = home not in sys.path
    try:
        if added:
            sys.path.append(home)
        from rankcall.record import collectives, dump, exits, modules, stacks, start, training  # noqa: F401

        start.begin()
    except Exception:
        if os.environ.get("RANKCALL_DEBUG"):
            raise
    finally:
        if added and home in sys.path:
            sys.path.remove(home)


def _hand_over() -> None:
    import sys

    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401 (the user's own, if there is one)
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


_begin()
_hand_over()
