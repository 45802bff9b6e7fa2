"""The record's writer: one memory-mapped file, filled with plain stores. Knows bytes, nothing of torch.

A full file system must not kill the rank: the file is allocated before it is mapped (a sparse one raises SIGBUS at
the first touch of a page that cannot be had).
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import threading
import time

from rankcall.record import layout


class Writer:
    """Writes one record. Raises OSError when the file cannot be allocated whole."""

    def __init__(self, path: str, pid: int, start: int) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, layout.SIZE)
            self.map = mmap.mmap(descriptor, layout.SIZE)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        for group in range(layout.GROUPS):
            layout.GROUP.pack_into(self.map, layout.GROUPS_AT + 8 * group, layout.NONE)
        self.next_event = itertools.count().__next__
        self.next_place = itertools.count().__next__
        self._strings: dict[object, int] = {}
        self._strings_end = layout.STRINGS_AT
        self._next_string = 1  # 0 means: none, or no room left
        self._slots_used = 0
        self._lock = threading.Lock()
        layout.HEADER.pack_into(self.map, 0, b"\0" * 8, layout.LAYOUT_VERSION, 0, pid, start)
        self.map[0:8] = layout.MAGIC  # last: a reader that sees it finds the rest in place

    # --- numbers -----------------------------------------------------------------------------------------------

    def set_counter(self, name: str, value: int) -> None:
        layout.COUNTER.pack_into(self.map, layout.COUNTER_INDEX[name], value)

    def set_group(self, group: int, seq: int) -> None:
        """Store the sequence number last seen of a group."""
        if 0 <= group < layout.GROUPS:
            layout.GROUP.pack_into(self.map, layout.GROUPS_AT + 8 * group, seq)

    # --- strings -----------------------------------------------------------------------------------------------

    def intern(self, key: object, text: str, tag: int) -> int:
        """The number of a string; the same `key` always gets the same one, 0 once the table is full."""
        number = self._strings.get(key)
        if number is not None:
            return number
        data = text.encode("utf-8", "surrogateescape")[:4000]
        with self._lock:
            number = self._strings.get(key)
            if number is not None:
                return number
            end = self._strings_end + layout.STRING_HEAD.size + len(data)
            if end > layout.SIZE or self._next_string >= 65535:
                self._strings[key] = 0
                return 0
            head = self._strings_end
            layout.STRING_HEAD.pack_into(self.map, head, len(data), tag)
            self.map[head + layout.STRING_HEAD.size : end] = data
            self._strings_end = end
            number, self._next_string = self._next_string, self._next_string + 1
            self._strings[key] = number
            self.set_counter("strings_end", end - layout.STRINGS_AT)
            return number

    # --- blobs -------------------------------------------------------------------------------------------------

    def write_blob(self, name: str, value: object) -> None:
        """Replace a JSON blob. What does not fit is left out rather than cut: no half-written JSON."""
        data = json.dumps(value, ensure_ascii=True, default=str).encode()
        half = layout.BLOBS[name]
        if len(data) > half:
            return
        at = layout.BLOB_AT[name]
        with self._lock:
            generation, first, second = layout.BLOB_HEAD.unpack_from(self.map, at)
            target = (generation + 1) & 1
            start = at + 64 + target * half
            self.map[start : start + len(data)] = data
            lengths = (first, len(data)) if target else (len(data), second)
            layout.BLOB_HEAD.pack_into(self.map, at, generation + 1, *lengths)

    # --- slots -------------------------------------------------------------------------------------------------

    def take_slot(self) -> int:
        """The byte position of a fresh slot; the last one is shared once there are no more."""
        with self._lock:
            number = min(self._slots_used, layout.SLOTS - 1)
            self._slots_used = number + 1
            self.set_counter("slots_used", self._slots_used)
            return layout.SLOTS_AT + number * layout.SLOT_SIZE

    def close(self) -> None:
        self.map.close()


def process_start(pid: int | str = "self") -> int:
    """The start time of a process in clock ticks since boot, field 22 of /proc/PID/stat; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
        return int(data[data.rindex(b")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


now = time.time
