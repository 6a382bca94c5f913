"""Raise an exception at any bytecode of a call, like Ctrl-C or a full memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import kalstream

_PACKAGE = kalstream.__path__[0]


class Interrupt(BaseException):
    """The exception that is raised; no code catches it by name."""


def count_bytecodes(call: Callable[[], Any]) -> int:
    """Count the bytecodes of kalstream's own code in a call."""
    return _traced(call, -1)


def interrupt_at(call: Callable[[], Any], bytecode: int) -> bool:
    """Run a call, raise `Interrupt` before this bytecode, and return whether it was reached."""
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
