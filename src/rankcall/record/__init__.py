"""Lives inside a rank: the progress record, the hooks that fill it, stacks, the exit note.

Standard library only, small, fast, and never the reason why a job fails: a fault inside a hook is swallowed, and
logged once. `layout` and `reading` are shared with the watcher; all else runs in the rank.
"""
