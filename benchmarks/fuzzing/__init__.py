"""What `benchmarks/fuzz_readers.py` is made of: valid samples, ways to damage them, and the readers that get them."""
