"""Where CPython keeps what a stack needs, by version. Offsets in bytes.

3.11 and 3.12: computed with offsetof() from the headers of 3.11.7 and 3.12.1 on x86-64; a minor version keeps
them. 3.13 publishes its own at the head of _PyRuntime (struct _Py_DebugOffsets,
Include/internal/pycore_runtime.h), except for those of dictionaries and of the chunk's top, which are the
same in all three. The fields used here have no machine-dependent size among 64-bit Linux machines.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields

from diag.sources.stacks.remote_stack.image import Unsupported

DEBUG_COOKIE = b"xdebugpy"
DEBUG_SIZE = 584  # of 3.13


@dataclass(frozen=True, slots=True)
class Layout:
    """Names are CPython's: `thread_*` of PyThreadState, `frame_*` of _PyInterpreterFrame, `code_*` of
    PyCodeObject (`code_names`: of its variables)."""

    minor: int
    interpreters_main: int  # of _PyRuntime
    interp_threads_head: int
    interp_modules: int
    gil: int  # in _PyRuntime (3.11), or of a pointer in the interpreter's state
    thread_size: int
    thread_next: int
    thread_interp: int
    thread_frame: int  # of the current frame, or (3.11, 3.12) of the cframe
    cframe_frame: int | None
    thread_native_id: int
    thread_id: int
    thread_chunk: int  # datastack_chunk; datastack_top comes behind it
    frame_code: int
    frame_previous: int
    frame_instr: int
    frame_owner: int
    frame_locals: int
    code_names: int
    code_filename: int
    code_qualname: int
    code_linetable: int
    code_firstlineno: int
    code_adaptive: int
    ascii_size: int
    compact_size: int
    gil_last_holder: int = 8
    gil_locked: int = 16
    thread_on_delete: int | None = None  # on_delete_data: a weak reference to the lock that join() waits for
    owner_cstack: int = 3  # FRAME_OWNED_BY_CSTACK: no frame of Python's (from 3.12 on)

    def frame_struct(self) -> struct.Struct:
        """Unpacks (code, previous, instr, owner)."""
        places = [
            (self.frame_code, "Q"),
            (self.frame_previous, "Q"),
            (self.frame_instr, "Q"),
            (self.frame_owner, "B"),
        ]
        text, at = "<", 0
        for place, kind in places:  # in this order in every version known here
            if place < at:
                raise Unsupported("frames of another order")
            text += f"{place - at}x{kind}"
            at = place + (8 if kind == "Q" else 1)
        return struct.Struct(text)


_KNOWN = {
    11: Layout(
        minor=11, interpreters_main=48, interp_threads_head=16, interp_modules=888, gil=360,
        thread_size=360, thread_next=8, thread_interp=16, thread_frame=56, cframe_frame=8,
        thread_native_id=160, thread_id=152, thread_chunk=296,
        frame_code=32, frame_previous=48, frame_instr=56, frame_owner=69, frame_locals=72, code_names=96,
        code_filename=112, code_qualname=128, code_linetable=136, code_firstlineno=72, code_adaptive=184,
        ascii_size=48, compact_size=72, thread_on_delete=192,
    ),
    12: Layout(
        minor=12, interpreters_main=48, interp_threads_head=72, interp_modules=944, gil=384,
        thread_size=288, thread_next=8, thread_interp=16, thread_frame=56, cframe_frame=0,
        thread_native_id=144, thread_id=136, thread_chunk=232,
        frame_code=0, frame_previous=8, frame_instr=56, frame_owner=70, frame_locals=72, code_names=96,
        code_filename=112, code_qualname=128, code_linetable=136, code_firstlineno=68, code_adaptive=192,
        ascii_size=40, compact_size=56, thread_on_delete=176,
    ),
}  # fmt: skip


def layout_of(version: int) -> Layout:
    """Of PY_VERSION_HEX, for interpreters that publish nothing. Raises Unsupported."""
    layout = _KNOWN.get(version >> 16 & 0xFF)
    if version >> 24 != 3 or layout is None or version >> 4 & 0xF != 0xF:  # 0xF: a final release, not a beta
        raise Unsupported(f"no offsets are known for version {version:#010x}")
    return layout


def published(head: bytes) -> Layout:
    """From struct _Py_DebugOffsets as 3.13 has it. Raises Unsupported."""
    if len(head) < DEBUG_SIZE or head[:8] != DEBUG_COOKIE:
        raise Unsupported("no published offsets")
    numbers = struct.unpack_from("<72Q", head, 8)
    version, free_threaded = numbers[0], numbers[1]
    if version >> 16 != 0x030D or version >> 4 & 0xF != 0xF or free_threaded:
        raise Unsupported(
            f"no offsets are known for version {version:#010x}{' without a GIL' if free_threaded else ''}"
        )
    runtime, interp, thread = numbers[2:5], numbers[5:18], numbers[18:27]
    frame, code, unicode = numbers[27:33], numbers[33:43], numbers[66:70]
    layout = Layout(
        minor=13, interpreters_main=runtime[2] + 8, interp_threads_head=interp[3], interp_modules=interp[5], gil=interp[8],
        thread_size=thread[0], thread_next=thread[2], thread_interp=thread[3], thread_frame=thread[4], cframe_frame=None,
        thread_native_id=thread[6], thread_id=thread[5], thread_chunk=thread[7],
        frame_code=frame[2], frame_previous=frame[1], frame_instr=frame[3], frame_owner=frame[5],
        frame_locals=frame[4], code_names=code[7],
        code_filename=code[1], code_qualname=code[3], code_linetable=code[4], code_firstlineno=code[5], code_adaptive=code[9],
        ascii_size=unicode[3], compact_size=unicode[3] + 16,
        gil_locked=interp[11] - interp[9], gil_last_holder=interp[12] - interp[9],
    )  # fmt: skip
    if any(not 0 <= (getattr(layout, field.name) or 0) < 1 << 20 for field in fields(layout)):
        raise Unsupported("the published offsets make no sense")
    return layout
