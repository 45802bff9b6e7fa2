"""Rank 2 computes its features in a process pool that was forked while a lock was held: the result never
comes.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck culprits=2 outcome=hung

import multiprocessing
import threading

import torch
import torch.distributed as dist

table_lock = threading.Lock()


def feature(number):
    with table_lock:  # <- also
        return number * 0.5


def compute(numbers):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(feature, numbers)  # <- here


def main():
    dist.init_process_group("gloo")
    for step in range(10):
        numbers = list(range(4))
        if dist.get_rank() == 2 and step == 5:
            with table_lock:  # a reader thread holds it while the pool forks
                values = compute(numbers)  # <- also
        else:
            values = [number * 0.5 for number in numbers]
        dist.all_reduce(torch.tensor(values))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
