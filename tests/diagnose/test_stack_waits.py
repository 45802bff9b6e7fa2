"""What a stack says its thread is doing: the operation it waits in, its phase; and the threads of a snapshot."""

from __future__ import annotations

import pytest

from rankcall.diagnose.readers.stack_phases import phase_from_stack
from rankcall.diagnose.readers.stack_sample import StackSample, StackThread, is_native, native_frame
from rankcall.diagnose.readers.stack_threads import snapshot_threads
from rankcall.diagnose.readers.stack_waits import wait_from_stack
from rankcall.snapshot import Frame, Wait

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
USER = Frame("/home/u/train.py", 57, "train")


def native(name: str) -> Frame:
    return native_frame(name, "libtorch_cpu.so")


def stack(*frames: tuple[str, str]) -> tuple[Frame, ...]:
    """Frames of torch's files, innermost first, above the user's line."""
    return (*(Frame(f"{TORCH}/{file}", 100 + at, name) for at, (file, name) in enumerate(frames)), USER)


D = "distributed/distributed_c10d.py"
LOG = ("distributed/c10d_logger.py", "_exception_logger.<locals>.wrapper")
FUNCTIONAL = "distributed/_functional_collectives.py"
WAITS: dict[str, tuple[tuple[Frame, ...], tuple[str, str, str]]] = {
    "all_reduce": (stack((D, "all_reduce"), LOG), ("collective", "all_reduce", "")),
    "barrier": (stack((D, "barrier")), ("collective", "barrier", "")),
    "monitored_barrier": (stack((D, "monitored_barrier")), ("collective", "monitored_barrier", "")),
    "object": (
        stack((D, "all_gather"), LOG, (D, "all_gather_object"), LOG), ("collective", "all_gather", "all_gather_object"),
    ),
    "object, its sizes on a device": (stack((D, "all_gather_object"), LOG), ("collective", "", "all_gather_object")),
    "renamed": (
        stack((D, "reduce_scatter_single"), LOG, (D, "reduce_scatter_tensor"), LOG),
        ("collective", "reduce_scatter_tensor", ""),
    ),
    "send": (stack((D, "send"), LOG), ("p2p", "send", "send")),
    "irecv": (stack((D, "irecv")), ("p2p", "recv", "irecv")),
    "batch": (stack((D, "isend"), (D, "batch_isend_irecv")), ("p2p", "", "batch_isend_irecv")),
    "new_group": (
        stack((D, "_new_process_group_helper"), (D, "_new_group_with_tag"), (D, "new_group")),
        ("new-group", "new_group", ""),
    ),
    "init": (
        stack(("distributed/rendezvous.py", "_create_c10d_store"), (D, "init_process_group")),
        ("init", "init_process_group", ""),
    ),
    "init, the barrier in it": (
        stack((D, "_store_based_barrier"), (D, "init_process_group")), ("init", "init_process_group", ""),
    ),
    "functional": (
        stack(("_ops.py", "OpOverloadPacket.__call__"), (FUNCTIONAL, "wait_tensor"),
              (FUNCTIONAL, "AsyncCollectiveTensor.wait")),
        ("collective", "", "wait_tensor"),
    ),
    "functional call": (stack((FUNCTIONAL, "all_gather_tensor")), ("collective", "all_gather_tensor", "")),
    "coalescing": (stack((D, "_coalescing_manager")), ("collective", "", "_coalescing_manager")),
    "ddp constructor": (
        stack(("distributed/utils.py", "_verify_param_shape_across_processes"),
              ("nn/parallel/distributed.py", "DistributedDataParallel.__init__")),
        ("collective", "all_gather", "DistributedDataParallel"),
    ),
    "ddp buffers": (
        stack(("nn/parallel/distributed.py", "DistributedDataParallel._default_broadcast_coalesced"),
              ("nn/parallel/distributed.py", "DistributedDataParallel._pre_forward")),
        ("collective", "broadcast", "forward"),
    ),
    "fsdp": (
        stack((D, "all_gather_into_tensor"), LOG, ("distributed/fsdp/_flat_param.py", "FlatParamHandle.unshard"),
              ("nn/modules/module.py", "Module._call_impl")),
        ("collective", "all_gather_into_tensor", ""),
    ),
    "synchronize": (stack(("cuda/__init__.py", "synchronize")), ("device", "", "synchronize")),
    "a stream": (stack(("cuda/streams.py", "Event.synchronize")), ("device", "", "synchronize")),
    "native": ((native("c10d::Work::wait(long)"), USER), ("collective", "", "")),
    "native allreduce": (
        (native("poll"), native("ncclGroupEnd"),
         native("c10d::ProcessGroupNCCL::allreduce_impl<x>(y)"),
         native("c10d::ProcessGroupNCCL::allreduce(std::vector<at::Tensor>&)"), USER),
        ("collective", "all_reduce", ""),
    ),
    "native base": (
        (native("c10d::ProcessGroupNCCL::_allgather_base(at::Tensor&)"), USER), ("collective", "all_gather", ""),
    ),
    "native recv": ((native("c10d::ProcessGroupGloo::RecvWork::wait(long)"), USER), ("p2p", "recv", "wait")),
    "native nccl": ((native("ncclReduceScatter"), USER), ("collective", "reduce_scatter", "")),
    "native nccl recv": ((native("ncclRecv"), USER), ("p2p", "recv", "")),
    "native gloo": ((native("gloo::allgatherv(gloo::AllgathervOptions&)"), USER), ("collective", "all_gather", "")),
    "native backward": (
        (native("c10d::Reducer::finalize_backward()"), *stack(("autograd/graph.py", "_engine_run_backward"))),
        ("collective", "all_reduce", "backward"),
    ),
    "native device": (
        (native("cudaStreamSynchronize"), native("at::native::item(at::Tensor)"), USER),
        ("device", "", ""),
    ),
    "native store": ((native("c10d::TCPStore::doGet(x)"), USER), ("collective", "", "Store.get")),
    "under rankcall's own hooks": (
        (Frame(C10D, 3252, "all_reduce"), Frame("/home/u/rankcall/record/collectives.py", 1, "guarded"), USER),
        ("collective", "all_reduce", ""),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_what_a_stack_waits_in(name: str) -> None:
    frames, (kind, op, outer) = WAITS[name]
    wait = wait_from_stack(frames)
    assert wait is not None
    assert (wait.kind, wait.op, wait.outer, wait.site, wait.source) == (kind, op, outer, USER, "stack")


def test_the_backend_where_native_frames_tell() -> None:
    gloo = wait_from_stack((native("c10d::ProcessGroupGloo::RecvWork::wait(long)"), USER))
    nccl = wait_from_stack((native("ncclAllReduce"), *stack((D, "all_reduce"))))
    assert gloo is not None and nccl is not None
    assert (gloo.backend, nccl.backend) == ("gloo", "nccl")


WORKING: dict[str, tuple[tuple[Frame, ...], str | None]] = {
    "loader": (stack(("utils/data/dataloader.py", "_try_get_data")), "data"),
    "pickling an object before its collective": (stack((D, "_object_to_tensor"), (D, "all_gather_object"), LOG), None),
    "the user's own line": ((USER,), None),
    "a function of the user's inside a loader": (
        (Frame("/home/u/data.py", 3, "__getitem__"), *stack(("utils/data/_utils/fetch.py", "fetch"))), "data",
    ),
    "backward": (stack(("autograd/graph.py", "_engine_run_backward"), ("_tensor.py", "Tensor.backward")), "backward"),
    "forward": (
        stack(("nn/modules/linear.py", "Linear.forward"), ("nn/modules/module.py", "Module._call_impl")), "forward",
    ),
    "optimizer": (stack(("optim/adamw.py", "_single_tensor_adamw"), ("optim/optimizer.py", "wrapper")), "optimizer"),
    "clip": (stack(("nn/utils/clip_grad.py", "clip_grad_norm_")), "optimizer"),
    "save": (stack(("serialization.py", "_save"), ("serialization.py", "save")), "save"),
    "load": (stack(("serialization.py", "_load"), ("serialization.py", "load")), "load"),
    "dcp": (stack(("distributed/checkpoint/filesystem.py", "write_data")), "save"),
    "user's checkpoint": ((Frame("/home/u/utils.py", 3, "save_checkpoint"), USER), "save"),
    "compile": (stack(("_inductor/graph.py", "run"), ("_inductor/compile_fx.py", "fx_codegen_and_compile"),
                      ("_dynamo/convert_frame.py", "_compile")), "compile"),
    "compiled code that runs": (stack(("_functorch/aot_autograd.py", "aot_module_simplified.<locals>.forward"),
                                      ("_dynamo/eval_frame.py", "DisableContext.__call__.<locals>._fn")), None),
    "import": ((Frame("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed"), USER), "init"),
    "destroy": (stack((D, "destroy_process_group")), "exit"),
    "native backward": ((native("torch::autograd::Engine::execute(x)"), USER), "backward"),
    "gloo's own thread": (
        (native("gloo::barrier(x)"), native("c10d::ProcessGroupGloo::runLoop(int)")), None,
    ),
    "nccl's watchdog": ((native("cudaEventQuery"), native("c10d::ProcessGroupNCCL::Watchdog::run()")), None),
    "nothing": ((), None),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKING)
def test_what_a_stack_that_waits_for_nobody_is_doing(name: str) -> None:
    frames, phase = WORKING[name]
    assert wait_from_stack(frames) is None
    assert phase_from_stack(frames) == phase


def test_phases_of_waits() -> None:
    assert phase_from_stack(WAITS["all_reduce"][0]) == "collective"
    assert phase_from_stack(WAITS["init"][0]) == "init"
    assert (
        phase_from_stack((native("cudaStreamSynchronize"), *stack(("nn/modules/module.py", "_call_impl")))) == "forward"
    )


def test_a_wait_of_a_work_object_shows_by_its_line_alone() -> None:
    text = "\n" * 56 + "    work.wait()\n"
    assert wait_from_stack((USER,)) is None
    assert wait_from_stack((USER,), {USER.file: text}) == Wait(
        "collective", "", outer="wait", site=USER, source="stack"
    )
    assert wait_from_stack((USER,), {USER.file: "req = dist.irecv(x, 0)" + text}) is None
    # The wait of an event is Python's own, and has a frame.
    event = Frame("/usr/lib/python3.11/threading.py", 607, "wait")
    assert wait_from_stack((event, USER), {USER.file: text}) is None


def sample(*threads: StackThread) -> StackSample:
    return StackSample(3, "host-a", 42, "python train.py", threads)


def test_threads_for_a_snapshot() -> None:
    queue = (
        Frame("/usr/lib/python3.11/threading.py", 327, "wait"),
        Frame("/usr/lib/python3.11/threading.py", 1002, "_bootstrap"),
    )
    main, own = snapshot_threads(
        sample(
            StackThread(42, "MainThread", True, "idle", (native("poll"), *stack((D, "all_reduce"), LOG)), native=True),
            StackThread(43, "QueueFeederThread", False, "idle", queue),
            StackThread(44, "monitor", False, "idle", (Frame("/home/u/watch.py", 3, "run"), *queue)),
            StackThread(
                45, "pt_nccl_watchdg", False, "", (native("c10d::ProcessGroupNCCL::Watchdog::run()"),), native=True
            ),
        )
    )
    assert (main.tid, main.name, main.main, main.phase, main.phase_site) == (42, "MainThread", True, "collective", USER)
    assert main.wait is not None
    assert main.wait.op == "all_reduce"
    assert not any(is_native(frame) for frame in main.stack)
    assert (own.name, own.main, own.wait) == ("monitor", False, None)


def test_gloos_own_thread_says_what_the_main_one_waits_for() -> None:
    (main,) = snapshot_threads(
        sample(
            StackThread(42, "python", True, "", (native("c10d::Work::wait(long)"),), native=True),
            StackThread(43, "pt_gloo_runloop", False, "", native=True, frames=(
                native("gloo::transport::tcp::UnboundBuffer::waitSend(int*)"),
                native("c10d::AsyncAllreduceWork::allreduce(x)"),
                native("c10d::ProcessGroupGloo::runLoop(int)"),
            )),
            StackThread(44, "pt_gloo_runloop", frames=(native("c10d::ProcessGroupGloo::runLoop(int)"),), native=True),
        )
    )  # fmt: skip
    assert main.wait is not None
    assert (main.wait.kind, main.wait.op, main.wait.backend) == ("collective", "all_reduce", "gloo")
    # Where Python shows nothing, the native frames are the stack.
    assert [frame.function for frame in main.stack] == ["c10d::Work::wait"]


def test_backward_waits_for_the_collective_of_autograds_thread() -> None:
    backward = stack(("autograd/__init__.py", "backward"), ("_tensor.py", "backward"))
    hook = (
        Frame(C10D, 2709, "all_gather_into_tensor"),
        Frame("/opt/venv/lib/python3.11/site-packages/deepspeed/zero.py", 3, "f"),
    )
    own = (Frame(C10D, 3151, "broadcast"), Frame("/usr/lib/python3.11/threading.py", 1002, "Thread._bootstrap"))
    main, other = snapshot_threads(
        sample(
            StackThread(42, "MainThread", True, "idle", backward),
            StackThread(43, "Thread-1", False, "idle", own),
            StackThread(44, "", False, "active", hook),
        )
    )
    assert main.wait is not None
    assert (main.wait.op, main.wait.site) == ("all_gather_into_tensor", USER)
    # A thread of the program's own is not one of autograd's.
    assert (other.tid, other.wait is not None) == (43, True)
