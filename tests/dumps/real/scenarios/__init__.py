"""What the ranks do, by theme. Each function is run by every rank of a job; what it must be called is in the decorator.

A comment `<- here` marks a line that may be named as the place: where the rank stands, the last call that it made, or
the call that it did not make. Dumps show only calls.
"""
