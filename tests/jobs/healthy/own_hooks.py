"""A script with hooks of its own: excepthook, atexit, signal handlers, faulthandler, threads and a trace
switch.
"""
# job: nproc=2 timeout=60
# expect: healthy

import atexit
import faulthandler
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist


def report(kind, value, traceback):
    print("mine:", kind.__name__, value)


def main():
    sys.excepthook = report
    threading.excepthook = lambda arguments: print("thread:", arguments.exc_type.__name__)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, chain=False)
    signal.signal(signal.SIGUSR2, lambda number, frame: print("checkpoint asked for"))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    atexit.register(print, "goodbye")
    threading.Thread(target=time.sleep, args=(2,), daemon=True, name="heartbeat").start()
    dist.init_process_group("gloo")
    for step in range(40):
        dist.all_reduce(torch.ones(3))
        if step == 20:
            signal.raise_signal(signal.SIGUSR2)
    try:
        raise RuntimeError("handled at once")
    except RuntimeError:
        pass
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
