"""A Report as text for people and as data for programs, one file an output; nothing else prints one.

The renderers only print: they judge nothing, and read nothing but the report and the source lines that it
points to.
"""
