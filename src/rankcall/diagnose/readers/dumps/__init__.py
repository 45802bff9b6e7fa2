"""Flight-recorder dumps, read as untrusted data: files -> workers -> columns -> a snapshot.

`files` finds them, `pool` has each one read by a `worker` process under limits, where `reduce` turns it into columns;
`rings` holds the columns of a rank, `lanes` lays the ranks' rings side by side, `fleet` makes the snapshot.
"""
