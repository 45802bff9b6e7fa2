"""A training package as it is started with `python -m`."""
