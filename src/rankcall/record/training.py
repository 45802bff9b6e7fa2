"""Hooks on the training loop: forward, backward, optimizer step, batches, saving, loading, compiling.

Each `install_*` gets the module that was just executed. Under torch.compile the wrappers step aside at once, so
that graphs are traced as without them.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rankcall.record import layout
from rankcall.record.collectives import sample_default
from rankcall.record.recorder import recorder

_K = layout.KIND
_P = layout.PHASE


def _compiling() -> bool:
    """Whether dynamo is tracing this call; dynamo itself folds this to True."""
    torch = sys.modules.get("torch")
    compiler = getattr(torch, "compiler", None)
    return bool(compiler is not None and compiler.is_compiling())


def _phase_wrapper(
    original: Callable[..., Any], name: str, phase: str, kind: str | None, count: str | None, compared: bool
) -> Callable[..., Any]:
    """Wrap a function so that the time inside it is a phase, and its entry an event."""
    phase_number = _P[phase]
    kind_number = _K[kind] if kind else -1

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not recorder.on or _compiling():
            return original(*args, **kwargs)
        before = None
        try:
            before = enter(phase_number, kind_number, count, compared)
        except Exception:
            recorder.fault(name)
        # Not called inside the except: an exception of the original's own would carry ours as its context.
        if before is None:
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            try:
                recorder.exception_passes(error, before[2])
            except Exception:
                recorder.fault(name)
            raise
        finally:
            try:
                leave(before)
            except Exception:
                recorder.fault(name)

    return wrapped


def _replace(
    module: ModuleType,
    attribute: str,
    name: str,
    phase: str,
    kind: str,
    count: str | None = None,
    compared: bool = False,
) -> None:
    """Replace a function of a module by its wrapper; a name that this torch lacks is left alone."""
    original = getattr(module, attribute, None)
    if original is not None:
        setattr(module, attribute, _phase_wrapper(original, name, phase, kind, count, compared))


def enter(phase: int, kind: int, count: str | None, compared: bool, depth: int = 3) -> tuple[int, int, int]:
    """Begin a phase; returns what `leave` restores and the call's site."""
    slot = recorder.slot
    site = recorder.site(depth)
    error = sys.exc_info()[1]
    if error is not None:
        recorder.exception_handled(error, site)
    before = slot.phase, slot.phase_site
    if kind >= 0:
        recorder.event(kind, site, compared=compared)
    if count is not None:
        recorder.count(count)
    sample_default()
    recorder.change(phase, site)
    return before[0], before[1], site


def leave(before: tuple[int, int, int]) -> None:
    """End a phase and sample what C++ has enqueued in it."""
    sample_default()
    recorder.change(before[0], before[1])


# --- backward ---------------------------------------------------------------------------------------------------


def install_autograd(module: ModuleType) -> None:
    _replace(module, "backward", "backward", "backward", "backward", "backwards", True)


# --- wrapped models: DDP, FSDP ----------------------------------------------------------------------------------

_UNUSED = re.compile(r"(?:did not receive grad|not used in producing loss)[^:]*:?([\d ,\[\]]+)")
_INDICES = re.compile(r"Parameter ind(?:ices|ex)[^:]*:\s*([\d ,]+)")


def install_ddp(module: ModuleType) -> None:
    model = module.DistributedDataParallel
    model.forward = _wrap_forward(model.forward, name_parameters=True)
    model.__init__ = _phase_wrapper(model.__init__, "DDP.__init__", "init", None, None, False)


def install_fsdp(module: ModuleType) -> None:
    model = module.FullyShardedDataParallel
    model.forward = _wrap_forward(model.forward, name_parameters=False)


def install_fsdp2(module: ModuleType) -> None:
    """fully_shard has no forward of its own; its root's pre-forward marks the start of one."""
    state = module.FSDPState
    original = state._root_pre_forward

    @functools.wraps(original)
    def root_pre_forward(self: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if recorder.on and not _compiling():
            try:
                # Called for every sharded module; only the first of a forward is the model's own.
                if getattr(getattr(self, "_state_ctx", None), "iter_forward_root", None) is None:
                    _note_forward(module, 3)
                sample_default()
            except Exception:
                recorder.fault("FSDP forward")
        return original(self, module, args, kwargs)

    state._root_pre_forward = root_pre_forward


def _note_forward(model: Any, depth: int) -> tuple[int, int]:
    import torch

    with_gradients = torch.is_grad_enabled() and bool(getattr(model, "training", True))
    site = recorder.site(depth + 1)
    kind, count = ("forward", "forwards") if with_gradients else ("eval-forward", "eval_forwards")
    recorder.event(_K[kind], site, compared=True)
    recorder.count(count)
    return _P["forward" if with_gradients else "evaluate"], site


def _enter_forward(model: Any) -> tuple[int, int, int]:
    slot = recorder.slot
    error = sys.exc_info()[1]
    if error is not None:
        recorder.exception_handled(error, recorder.site(3))
    phase, site = _note_forward(model, 3)
    before = (slot.phase, slot.phase_site, site)
    sample_default()
    recorder.change(phase, site)
    return before


def _wrap_forward(original: Callable[..., Any], name_parameters: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.on or _compiling():
            return original(self, *args, **kwargs)
        before = None
        try:
            before = _enter_forward(self)
        except Exception:
            recorder.fault("forward")
        if before is None:
            return original(self, *args, **kwargs)
        site = before[2]
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            try:
                if name_parameters and isinstance(error, RuntimeError):
                    _name_parameters(self, error)
                recorder.exception_passes(error, site)
            except Exception:
                recorder.fault("forward")
            raise
        finally:
            try:
                leave(before)
            except Exception:
                recorder.fault("forward")

    return forward


def _name_parameters(model: Any, error: RuntimeError) -> None:
    """DDP speaks of unused parameters by number; write their names beside it."""
    text = str(error)
    if "did not receive grad" not in text and "finished reduction" not in text:
        return
    found = _INDICES.search(text) or _UNUSED.search(text)
    if found is None:
        return
    wanted = {int(part) for part in re.findall(r"\d+", found.group(1))}
    names = [name for name, parameter in model.module.named_parameters() if parameter.requires_grad]
    chosen = [names[index] for index in sorted(wanted) if index < len(names)]
    error._rankcall_parameters = chosen  # type: ignore[attr-defined]


# --- optimizer --------------------------------------------------------------------------------------------------

_first_optimizer = 0


def _begin_anew() -> None:
    global _first_optimizer
    _first_optimizer = 0
    _before_compile.clear()


recorder.at_start.append(_begin_anew)


def install_optimizer(module: ModuleType) -> None:
    module.register_optimizer_step_pre_hook(_before_step)
    module.register_optimizer_step_post_hook(_after_step)


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    global _first_optimizer
    if not recorder.on or _compiling():
        return
    try:
        if not _first_optimizer:
            _first_optimizer = id(optimizer)
        recorder.slot.step_before = enter(_P["optimizer"], _K["step"], "optimizer_steps", True, depth=2)
        if id(optimizer) == _first_optimizer and recorder.loop_step >= 0:
            recorder.set_loop_step(recorder.loop_step + 1)
    except Exception:
        recorder.fault("optimizer step")


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not recorder.on or _compiling():
        return
    try:
        slot = recorder.slot
        before, slot.step_before = slot.step_before, None
        if before is not None:
            leave(before)
    except Exception:
        recorder.fault("optimizer step")


def install_grad_scaler(module: ModuleType) -> None:
    scaler = module.GradScaler
    original = scaler.step

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.on or _compiling():
            return original(self, *args, **kwargs)
        taken = recorder.counts["optimizer_steps"]
        try:
            recorder.event(_K["scaler-step"], recorder.site(2))
            recorder.count("scaler_steps")
        except Exception:
            recorder.fault("GradScaler.step")
        result = original(self, *args, **kwargs)
        try:
            if recorder.counts["optimizer_steps"] == taken:
                # The scaler skipped it: from here on nobody can say which step this is.
                recorder.set_loop_step(layout.NONE)
        except Exception:
            recorder.fault("GradScaler.step")
        return result

    scaler.step = step


# --- data -------------------------------------------------------------------------------------------------------


def install_data_loader(module: ModuleType) -> None:
    iterator = module._BaseDataLoaderIter
    original = iterator.__next__

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        if not recorder.on:
            return original(self)
        before = None
        try:
            before = enter(_P["data"], -1, None, False)
        except Exception:
            recorder.fault("DataLoader")
        if before is None:
            return original(self)
        try:
            batch = original(self)
        except StopIteration:
            _data_event("loader-end", "loader_ends", before[2])
            raise
        except BaseException as error:
            try:
                recorder.exception_passes(error, before[2])
            except Exception:
                recorder.fault("DataLoader")
            raise
        finally:
            try:
                leave(before)
            except Exception:
                recorder.fault("DataLoader")
        _data_event("batch", "batches", before[2])
        return batch

    iterator.__next__ = __next__


def _data_event(kind: str, count: str, site: int) -> None:
    try:
        recorder.event(_K[kind], site)
        recorder.count(count)
    except Exception:
        recorder.fault("DataLoader")


# --- saving, loading, compiling ---------------------------------------------------------------------------------


def install_serialization(module: ModuleType) -> None:
    _replace(module, "save", "torch.save", "save", "save")
    _replace(module, "load", "torch.load", "load", "load")


def install_checkpoint_saver(module: ModuleType) -> None:
    for name in ("save", "save_state_dict"):
        _replace(module, name, f"dcp.{name}", "save", "save")


def install_checkpoint_loader(module: ModuleType) -> None:
    for name in ("load", "load_state_dict"):
        _replace(module, name, f"dcp.{name}", "load", "load")


_before_compile: list[tuple[int, int, int]] = []


def install_compile(module: ModuleType) -> None:
    handler = module.callback_handler
    handler.register_start_callback(_compile_starts)
    handler.register_end_callback(_compile_ends)


def _compile_starts(arguments: Any = None) -> None:
    if recorder.on:
        try:
            _before_compile.append(enter(_P["compile"], _K["compile"], None, False, depth=2))
        except Exception:
            recorder.fault("compile")


def _compile_ends(arguments: Any = None) -> None:
    if recorder.on:
        try:
            if _before_compile:
                leave(_before_compile.pop())
        except Exception:
            recorder.fault("compile")
