"""Assertions about batches."""


def check_batch(batch, step):
    assert batch.ndim == 2, f"step {step}: batch has {batch.ndim} dimensions"
    low, high = batch.min().item(), batch.max().item()
    assert -10 <= low <= high <= 10, f"step {step}: values from {low} to {high}"  # <- here
