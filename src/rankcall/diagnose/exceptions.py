"""Which pitfall an exception of the program's own speaks of: a table, each row with a text it has to match.

A text that no row knows is a program-error. Echoes of other ranks' failures never get here (see echoes.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rankcall.snapshot import ExceptionNote


@dataclass(frozen=True, slots=True)
class Row:
    """`pattern` is searched in `Type: message`. `bad` is a text of this pitfall, `good` a near miss."""

    pitfall: str
    pattern: re.Pattern[str]
    bad: str
    good: str
    confidence: float = 0.95


def _row(pitfall: str, pattern: str, bad: str, good: str, confidence: float = 0.95) -> Row:
    return Row(pitfall, re.compile(pattern, re.IGNORECASE | re.DOTALL), bad, good, confidence)


ROWS: tuple[Row, ...] = (
    _row(
        "unused-parameters",
        r"expected to have finished reduction in the prior iteration",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
        "RuntimeError: Expected to be in states [BACKWARD] but current state is IDLE",
    ),
    _row(
        "marked-ready-twice",
        r"expected to mark a variable ready only once|marked (as )?ready twice",
        "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following",
        "RuntimeError: Trying to backward through the graph a second time",
    ),
    _row(
        "model-differs",
        r"DDP expects same model across all ranks|params\[\d+\] in this process with sizes|"
        r"appears not to match (strides of )?the same param in process|ranks? built different models",
        "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 4 params, while rank 1 has "
        "inconsistent 6 params.",
        "RuntimeError: The size of tensor a (4) must match the size of tensor b (6) at non-singleton dimension 0",
    ),
    _row(
        "shm-too-small",
        r"insufficient shared memory \(shm\)|unable to (open|allocate) shared memory|"
        r"no space left on device.{0,200}(/dev/shm|nccl-)|(/dev/shm|nccl-\w+).{0,200}no space left on device|"
        r"DataLoader worker.{0,80}bus error",
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory.",
        "OSError: [Errno 28] No space left on device: '/data/ckpt.pt'",
    ),
    _row(
        "loader-worker-died",
        r"DataLoader worker \(pid|Caught \w+ in DataLoader worker process|DataLoader worker.{0,40}exited",
        "RuntimeError: DataLoader worker (pid 7010) exited unexpectedly with exit code 3.",
        "RuntimeError: Caught ValueError in replica 0 on device 0.",
    ),
    _row(
        "host-out-of-memory",
        r"^MemoryError|cannot allocate memory|DefaultCPUAllocator: (can't|not enough)|std::bad_alloc",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ),
    _row(
        "gpu-out-of-memory",
        r"(cuda|hip|npu|xpu|mps)( error:)? out of memory|OutOfMemoryError|NPU out of memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of",
        "MemoryError: Unable to allocate 12.0 GiB for an array",
    ),
    _row(
        "invalid-device-ordinal",
        r"invalid device ordinal|device .{0,20}is not available.{0,40}only|device_id .{0,20}out of range",
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
        "RuntimeError: CUDA error: invalid argument",
    ),
    _row(
        "illegal-memory-access",
        r"illegal memory access|misaligned address",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: out of memory",
    ),
    _row(
        "label-out-of-range",
        r"device-side assert triggered|target \d+ is out of bounds|index out of range in self",
        "IndexError: Target 11 is out of bounds.",
        "IndexError: list index out of range",
        0.85,
    ),
    _row(
        "gpu-fault",
        r"uncorrectable (nvlink|ecc) error|ecc error|device has fallen off|hardware error",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: CUDA error: device-side assert triggered",
    ),
    _row(
        "backend-unavailable",
        r"distributed package doesn't have nccl|no nvidia driver|found no nvidia|"
        r"ProcessGroupNCCL is only supported with GPUs|torch not compiled with cuda|"
        r"no CUDA GPUs are available|use_libuv was requested|(gloo|mpi|nccl|ucc) (is not|isn't) (available|built)|"
        r"unknown c10d backend|no backend type associated with device type|distributed package doesn't have",
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled system error",
    ),
    _row(
        "port-in-use",
        r"EADDRINUSE|address already in use",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "ConnectionRefusedError: [Errno 111] Connection refused",
    ),
    _row(
        "missing-env-var",
        r"environment variable \w+ expected, but not set|Error initializing torch.distributed using env://|"
        r"(?-i:KeyError: '?(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'?$)|"
        r"invalid literal for int.{0,80}(RANK|WORLD_SIZE)",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable "
        "MASTER_ADDR expected, but not set",
        "KeyError: 'rank'",
    ),
    _row(
        "master-unreachable",
        r"name or service not known|temporary failure in name resolution|getaddrinfo.{0,60}fail|"
        r"no route to host|hostname.{0,80}(cannot|could not) be (retrieved|resolved)",
        "RuntimeError: The client socket has failed to connect to node-0:29500: Name or service not known",
        "FileNotFoundError: [Errno 2] No such file or directory: 'node-0'",
    ),
    _row(
        "world-size-mismatch",
        r"rank < size|(rank|value) .{0,60}(must|should) be (less|smaller) than .{0,20}world.?size|"
        r"invalid rank \d+, rank should be in the interval",
        "RuntimeError: [enforce fail at gloo/context.cc:23] rank < size. 2 vs 2",
        "RuntimeError: [enforce fail at gloo/context.cc:23] size > 0. 0 vs 0",
    ),
    _row(
        "group-not-initialized",
        r"default process group has not been initialized|process group is not initialized|"
        r"call init_process_group",
        "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
        "AttributeError: module 'torch.distributed' has no attribute 'all_sum'",
    ),
    _row(
        "local-rank-argument",
        r"unrecognized arguments: --local[-_]rank|arguments are required: --local[-_]rank",
        "SystemExit: train.py: error: unrecognized arguments: --local-rank=0",
        "SystemExit: train.py: error: unrecognized arguments: --lr=0",
    ),
    _row(
        "shuffle-with-sampler",
        r"sampler option is mutually exclusive with shuffle",
        "ValueError: sampler option is mutually exclusive with shuffle",
        "ValueError: batch_sampler option is mutually exclusive with batch_size",
    ),
    _row(
        "checkpoint-mismatch",
        r"error\(s\) in loading state_dict|PytorchStreamReader|missing key\(s\) in state_dict|"
        r"size mismatch for [\w.]+: copying a param|checkpoint.{0,80}(world.size|not found|does not match)",
        "RuntimeError: Error(s) in loading state_dict for Net: Missing key(s) in state_dict: \"head.weight\"",
        "KeyError: 'epoch'",
    ),
    _row(
        "disk-full",
        r"no space left on device|disk quota exceeded|errno (28|122)\]",
        "OSError: [Errno 28] No space left on device",
        "OSError: [Errno 5] Input/output error",
    ),
    _row(
        "storage-unreachable",
        r"stale file handle|input/output error|errno (5|116|107)\]|transport endpoint is not connected",
        "OSError: [Errno 116] Stale file handle: '/nfs/data/shard-3'",
        "OSError: [Errno 13] Permission denied: '/data'",
    ),
    _row(
        "import-error",
        r"^(\w+\.)*(ModuleNotFoundError|ImportError)\b|undefined symbol",
        "ModuleNotFoundError: No module named 'apex'",
        "AttributeError: module 'apex' has no attribute 'amp'",
    ),
    _row(
        "device-mismatch",
        r"expected all tensors to be on the same device|"
        r"module must have its parameters and buffers on device|Input type .{0,60} and weight type",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x4)",
    ),
    _row(
        "mixed-dtype",
        r"must flatten tensors with (the same|uniform) dtype|expects uniform (original )?(parameter )?dtype",
        "ValueError: Must flatten tensors with the same dtype but got torch.float32 and torch.bfloat16",
        "RuntimeError: expected scalar type Float but found Half",
    ),
    _row(
        "nan-loss",
        r"(loss|gradient|grad norm|total norm).{0,60}(is |are |was )?(nan|inf|non-finite|not finite)|"
        r"returned nan values|detected inf or nan",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        "ValueError: information is missing",
        0.85,
    ),
    _row(
        "duplicate-gpu",
        r"duplicate gpu detected",
        "torch.distributed.DistBackendError: NCCL error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA "
        "device 8b000",
        "RuntimeError: duplicate key in the state dict",
    ),
    _row(
        "shape-mismatch",
        r"(tensor|output|input).{0,60}(sizes?|shapes?|length).{0,60}(must|should) (be|match).{0,80}"
        r"(across|all ranks|world.?size)|mismatch between collective|"
        r"Detected mismatch between collectives",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective",
        "RuntimeError: The size of tensor a (4) must match the size of tensor b (6) at non-singleton dimension 0",
        0.8,
    ),
    _row(
        "data-not-found",
        r"^FileNotFoundError.{0,300}(data|train|val|img|image|shard|\.(csv|parquet|json|jsonl|tar|npy|h5|bin))",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train/0001.jpg'",
        "FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'",
        0.85,
    ),
    _row(
        "config-conflict",
        r"train_batch_size is not equal to micro_batch|batch.?size.{0,60}(must|not) (be )?divisible by.{0,40}"
        r"(world|data.parallel)",
        "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
        "gradient_acc_step * world_size",
        "ValueError: batch_size should be a positive integer value",
    ),
)  # fmt: skip


def text_of(note: ExceptionNote) -> str:
    """`Type: message`, without the type's module."""
    kind = note.type.rpartition(".")[2]
    return f"{kind}: {note.message}" if note.message else kind


def pitfall_of(note: ExceptionNote) -> tuple[str, float]:
    """The pitfall this exception speaks of, and how sure that is."""
    text = f"{note.type}: {note.message}"[:20_000]
    bare = text_of(note)[:20_000]
    for row in ROWS:
        if row.pattern.search(bare) or row.pattern.search(text):
            return row.pitfall, row.confidence
    return "program-error", 0.95
