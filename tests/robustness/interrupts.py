"""An exception at any bytecode of a call, as Ctrl-C or a full memory may raise it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import kalstream

_PACKAGE = kalstream.__path__[0]


class Interrupt(BaseException):
    """What is raised; nothing catches it by name."""


def count_bytecodes(call: Callable[[], Any]) -> int:
    """How many bytecodes of kalstream's own code a call runs."""
    return _traced(call, -1)


def interrupt_at(call: Callable[[], Any], bytecode: int) -> bool:
    """Run a call and raise `Interrupt` before this bytecode of it; whether it got so far."""
    try:
        _traced(call, bytecode)
    except Interrupt:
        return True
    return False


def _traced(call: Callable[[], Any], stop: int) -> int:
    passed = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal passed
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if passed == stop:
                sys.settrace(None)
                raise Interrupt
            passed += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return passed
