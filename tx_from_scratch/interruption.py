"""Stopping between two steps instead of in the middle of one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets; a second signal acts as it would have without this."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # Python delivers signals to the main thread alone
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        event.set()
        signal.signal(number, previous[signal.Signals(number)])

    previous = {
        number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)
    }
    for number in previous:
        signal.signal(number, stop)
    try:
        yield event
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
