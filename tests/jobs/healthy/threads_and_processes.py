"""A heartbeat thread, a process pool, a subprocess and a timer beside the training; none of them is a
rank.
"""
# job: nproc=2 timeout=60
# expect: healthy

import subprocess
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import torch
import torch.distributed as dist


def square(number):
    return number * number


def heartbeat(stop):
    while not stop.wait(0.1):
        pass


def main():
    dist.init_process_group("gloo")
    stop = threading.Event()
    threading.Thread(target=heartbeat, args=(stop,), daemon=True).start()
    threading.Timer(0.5, time.sleep, (1,)).start()
    with ProcessPoolExecutor(1) as processes, ThreadPoolExecutor(2) as threads:
        for step in range(20):
            later = processes.submit(square, step)
            soon = threads.submit(square, step)
            total = torch.tensor([later.result() + soon.result()])
            dist.all_reduce(total)
            if step == 10:
                subprocess.run(["sleep", "0.3"], check=True)
    stop.set()
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
