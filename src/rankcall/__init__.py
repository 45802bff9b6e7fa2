"""rankcall: which rank did not arrive, where is it, why, and what now?

Importing this package costs nothing: every verb loads its own folder when it is called, and torch is never
imported by it. The modules on the ground are `findings` (what is reported), `snapshot` (what is known) and
`pitfalls` (the names).
"""

__version__ = "0.1.0"
