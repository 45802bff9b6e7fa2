"""Real gloo jobs, started without rankcall: what they leave behind has to be explained.

`scenarios` are what the ranks do and the answers to them, `in_rank` is one rank, `job` runs all of them and has their
dumps written, `judge` compares a report with the answer, `run` prints the table.
"""
