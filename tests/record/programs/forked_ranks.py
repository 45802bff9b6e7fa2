"""Uses a group of one, then forks two ranks: they inherit everything the parent had recorded."""

import multiprocessing
import os

import torch
import torch.distributed as dist


def rank(number: int, port: int) -> None:
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=number, world_size=2)
    dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(2, dtype=torch.int64), op=dist.ReduceOp.MAX)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = server.port
    del server
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=rank, args=(number, port)) for number in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    raise SystemExit(sum(process.exitcode for process in ranks))
