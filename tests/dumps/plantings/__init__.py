"""The plantings, a file a kind of fault; `dumps.plant` hands them out."""
