"""Runs a hook right after a module of torch was executed: the moment at which nothing has taken its names yet.

A finder at the head of `sys.meta_path` lets the other finders find the module and wraps its loader's `exec_module`;
for every name it does not know it costs one set look-up.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from rankcall.record.recorder import recorder


class HookFinder(importlib.abc.MetaPathFinder):
    """Finds nothing itself; `hooks` maps a module's name to what is run after its execution."""

    def __init__(self, hooks: dict[str, Callable[[ModuleType], None]]) -> None:
        self.hooks = hooks
        self._searching: set[str] = set()
        self._beats = True

    def _beat(self) -> None:
        """A program that imports is alive. Not once torch.compile is there: it would look into our frames."""
        dynamo = sys.modules.get("torch._dynamo")
        spec = getattr(dynamo, "__spec__", None)
        if spec is not None and not getattr(spec, "_initializing", False):
            self._beats = False
            return
        recorder.beat()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.hooks or fullname in self._searching:
            if self._beats:
                self._beat()
            return None
        self._searching.add(fullname)
        try:
            for finder in sys.meta_path:
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    self._wrap(spec, self.hooks[fullname])
                    return spec
            return None
        finally:
            self._searching.discard(fullname)

    def _wrap(self, spec: ModuleSpec, hook: Callable[[ModuleType], None]) -> None:
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            try:
                hook(module)
            except Exception:
                recorder.fault(f"hook on {module.__name__}")

        try:
            loader.exec_module = exec_module  # type: ignore[method-assign]
        except (AttributeError, TypeError):
            recorder.fault(f"loader of {spec.name}")


def _hook(module_name: str, function: str) -> Callable[[ModuleType], None]:
    """The named function of a record module, imported when it is needed."""

    def call(module: ModuleType) -> None:
        import importlib

        getattr(importlib.import_module(f"rankcall.record.{module_name}"), function)(module)

    return call


def install() -> None:
    """Put the finder in place."""
    hooks = {
        "torch": _hook("start", "torch_imported"),
        "torch.distributed.distributed_c10d": _hook("collectives", "install"),
        "torch.autograd": _hook("training", "install_autograd"),
        "torch.nn.parallel.distributed": _hook("training", "install_ddp"),
        "torch.distributed.fsdp.fully_sharded_data_parallel": _hook("training", "install_fsdp"),
        "torch.distributed.fsdp._fully_shard._fsdp_state": _hook("training", "install_fsdp2"),
        "torch.optim.optimizer": _hook("training", "install_optimizer"),
        "torch.amp.grad_scaler": _hook("training", "install_grad_scaler"),
        "torch.utils.data.dataloader": _hook("training", "install_data_loader"),
        "torch.serialization": _hook("training", "install_serialization"),
        "torch.distributed.checkpoint.state_dict_saver": _hook("training", "install_checkpoint_saver"),
        "torch.distributed.checkpoint.state_dict_loader": _hook("training", "install_checkpoint_loader"),
        "torch._dynamo.callback": _hook("training", "install_compile"),
    }
    sys.meta_path.insert(0, HookFinder(hooks))
