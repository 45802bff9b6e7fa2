"""What the launcher does when it is asked to end: the first time in order, the second time at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))


class Interrupted(BaseException):
    """The launcher was asked to end by a signal. Not an Exception, so that nobody swallows it on the way."""

    def __init__(self, number: int) -> None:
        super().__init__(f"got {signal_name(number)}")
        self.number = number


class Signals:
    """Turns the first signal into an exception in the main thread; the second calls `at_once`; the third kills."""

    def __init__(self, at_once: Callable[[], None]) -> None:
        self._at_once = at_once
        self._error: Callable[[int], BaseException] = Interrupted
        self._before: dict[int, object] = {}
        self._count = 0
        self._held = 0
        self._waiting: int | None = None

    def raise_as(self, error: Callable[[int], BaseException]) -> None:
        """`error` makes the exception that the first signal raises."""
        self._error = error

    def install(self, numbers: Iterable[int] = ENDING) -> None:
        """Handle these from now on."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in numbers:
            self._before.setdefault(number, signal.getsignal(number))
            signal.signal(number, self.handle)

    def restore(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._before.items():
            with contextlib.suppress(TypeError, ValueError, OSError):
                signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A first signal that comes meanwhile takes effect at the end: nothing inside is left half done.

        Signals reach the main thread only, so in any other thread this does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if not self._held and self._waiting is not None:
                number, self._waiting = self._waiting, None
                raise self._error(number)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """The handler itself."""
        if number == getattr(signal, "SIGHUP", None) and self._before.get(number) is signal.SIG_IGN:
            return  # nohup: the job is to outlive the terminal
        self._count += 1
        if self._count == 1:
            if self._held:
                self._waiting = number
                return
            raise self._error(number)
        if self._count == 2:
            self._at_once()
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def signal_name(number: int) -> str:
    """`SIGINT`, or `signal 64` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
