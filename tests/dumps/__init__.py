"""A simulator of distributed jobs that writes flight-recorder dumps, and faults planted in them."""
