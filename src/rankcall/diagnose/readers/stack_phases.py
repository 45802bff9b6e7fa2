"""The phase of training that a stack shows: the innermost frame that says one counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rankcall.diagnose.readers.native_waits import in_autograd
from rankcall.diagnose.readers.stack_places import is_user, last_name
from rankcall.diagnose.readers.stack_sample import is_native
from rankcall.diagnose.readers.stack_waits import wait_from_stack
from rankcall.snapshot import Frame, Phase, Wait

_DATA = re.compile(
    r"(?:^|/)torch/utils/data/|(?:site|dist)-packages/(?:torchdata|webdataset|datasets|streaming|litdata|nvidia/dali)/"
)
_COMPILER = re.compile(
    r"(?:^|/)torch/(?:_dynamo/(?:convert_frame|symbolic_convert|output_graph|bytecode\w*|guards|variables/|backends/|repro/)"
    r"|_inductor/(?:compile_fx|graph|scheduler|lowering|ir|codegen/|codecache|async_compile|select_algorithm|fx_passes/"
    r"|pattern_matcher|autotune_process|cpp_builder)|_functorch/(?:aot_autograd|partitioners"
    r"|_aot_autograd/(?:graph_\w+|dispatch_and_compile_graph|collect_metadata\w*|input_output_analysis))"
    r"|fx/(?:interpreter|_symbolic_trace|experimental/)|utils/cpp_extension)|/triton/(?:compiler|backends)/"
)
# These also stand on the stack of a compiled function that runs.
_RUNS_COMPILED = frozenset({"forward", "runtime_wrapper", "<module>", "inner_fn", "run", "__call__"})
_SERIALIZATION = re.compile(r"(?:^|/)torch/serialization\.py$|/safetensors/\w+\.py$")
_CHECKPOINT = re.compile(r"(?:^|/)torch/distributed/checkpoint/")
_SAVES = re.compile(
    r"^_?(?:legacy_)?(?:async_)?(?:save|write)(?:_(?:file|data|checkpoint|ckpt|model|state|pretrained)\w*)?$"
)
_LOADS = re.compile(
    r"^_?(?:legacy_)?(?:load|read|from_pretrained)(?:_(?:file|data|checkpoint|ckpt|model|state|pretrained)\w*)?$"
)
_USERS_SAVE = re.compile(r"^_?(?:save|write)_(?:checkpoint|ckpt|model|state|pretrained)")
_USERS_LOAD = re.compile(r"^_?(?:load|read|restore)_(?:checkpoint|ckpt|pretrained)|^from_pretrained$")
_OPTIMIZER = re.compile(
    r"(?:^|/)torch/(?:optim/|amp/grad_scaler\.py$|cuda/amp/grad_scaler\.py$|nn/utils/clip_grad\.py$"
    r"|distributed/optim/)|/apex/optimizers/|/deepspeed/ops/(?:adam|lamb|lion)/"
)
_BACKWARD = re.compile(r"(?:^|/)torch/(?:autograd/(?:__init__|graph)|_tensor)\.py$")
_BACKWARD_FUNCTIONS = frozenset({"backward", "grad", "_engine_run_backward"})
_CHECKPOINTED = re.compile(r"(?:^|/)torch/utils/checkpoint\.py$")
_FORWARD = re.compile(r"(?:^|/)torch/nn/modules/module\.py$")
_FORWARD_FUNCTIONS = frozenset({"_call_impl", "_wrapped_call_impl", "_slow_forward"})
_IMPORTS = re.compile(r"^<frozen importlib")
_EXITS = frozenset({"destroy_process_group", "_exit_function", "_run_exitfuncs", "_shutdown"})


def phase_from_stack(frames: Sequence[Frame], sources: Mapping[str, str] | None = None) -> Phase | None:
    """What a thread's stack, innermost first, is doing; None where nothing in it says so."""
    return phase_of(frames, wait_from_stack(frames, sources))


def phase_of(frames: Iterable[Frame], wait: Wait | None) -> Phase | None:
    """The same, where the wait is known already."""
    if wait is not None and wait.kind != "device":
        return "init" if wait.kind == "init" else "collective"
    for frame in frames:
        phase = _phase_of_native(frame.function) if is_native(frame) else _phase_of(frame)
        if phase is not None:
            return phase
    return None


def _phase_of(frame: Frame) -> Phase | None:
    file, name = frame.file, last_name(frame.function)
    if is_user(file):
        if _USERS_SAVE.match(name):
            return "save"
        return "load" if _USERS_LOAD.match(name) else None
    if _DATA.search(file):
        return "data"
    if _SERIALIZATION.search(file):
        return "save" if _SAVES.match(name) else "load" if _LOADS.match(name) else None
    if _CHECKPOINT.search(file):
        return "load" if _LOADS.match(name) or "load" in file.rpartition("/")[2] else "save"
    if _USERS_SAVE.match(name):
        return "save"
    if _USERS_LOAD.match(name):
        return "load"
    if _COMPILER.search(file) and name not in _RUNS_COMPILED:
        return "compile"
    if _OPTIMIZER.search(file):
        return "optimizer"
    if (_BACKWARD.search(file) and name in _BACKWARD_FUNCTIONS) or (_CHECKPOINTED.search(file) and name == "backward"):
        return "backward"
    if name in _EXITS:
        return "exit"
    if name == "init_process_group":
        return "init"
    if _IMPORTS.search(file):
        return "init"
    return "forward" if _FORWARD.search(file) and name in _FORWARD_FUNCTIONS else None


def _phase_of_native(name: str) -> Phase | None:
    return "backward" if in_autograd((name,)) else None
