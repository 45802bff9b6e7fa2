"""Makes each inner function of the recording raise, one after the other, and calls everything again.

Prints one line a function: its name and whether the results were those of a sound recording.
"""

import os

import torch.distributed as dist
from every_operation import everything

from rankcall.record import collectives, dump, exits, recorder, training, writer
from rankcall.record.recorder import recorder as recording

TARGETS = [
    (recorder.Recorder, "event"),
    (recorder.Recorder, "site"),
    (recorder.Recorder, "change"),
    (recorder.Recorder, "count"),
    (recorder.Recorder, "name"),
    (recorder.Recorder, "identify"),
    (recorder.Recorder, "set_loop_step"),
    (recorder.Recorder, "exception_passes"),
    (recorder.Recorder, "exception_handled"),
    (recorder.Recorder, "settle_exception"),
    (recorder.Recorder, "beat"),
    (recorder.Recorder, "slot"),
    (collectives, "_group"),
    (collectives, "register_group"),
    (collectives, "_shape"),
    (collectives, "_reduce_op"),
    (collectives, "_root"),
    (collectives, "_write_wait"),
    (collectives, "_leave"),
    (collectives, "_remember_work"),
    (collectives, "_argument"),
    (collectives, "_claims"),
    (collectives, "_devices"),
    (collectives, "_forget"),
    (collectives, "sample_groups"),
    (collectives, "now"),
    (training, "enter"),
    (training, "leave"),
    (training, "sample_default"),
    (training, "_note_forward"),
    (exits, "describe"),
    (dump, "serve"),
    (writer.Writer, "intern"),
    (writer.Writer, "write_blob"),
    (writer.Writer, "take_slot"),
    (writer.Writer, "set_counter"),
    (writer.Writer, "set_group"),
]


# The fault has to look like one of our own: an exception out of the program's files is handed on to the program.
_namespace: dict[str, object] = {}
exec(
    compile("def raises(*args, **kwargs):\n    raise RuntimeError('planted fault')", collectives.__file__, "exec"),
    _namespace,
)
_raises = _namespace["raises"]


def run() -> list[object]:
    os.environ["MASTER_PORT"] = "0"
    dist.init_process_group("gloo")
    try:
        return everything()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    expected = run()
    assert recording.counts["faults"] == 0, recording.identity.get("faults")
    print("sound", recording.on, recording.counts["faults"])
    for owner, name in TARGETS:
        original = owner.__dict__[name]
        setattr(owner, name, property(_raises) if isinstance(original, property) else _raises)
        try:
            result = run()
        finally:
            setattr(owner, name, original)
        print("same" if result == expected else f"DIFFERENT {result}", getattr(owner, "__name__", owner), name)
        recording.on = True
        recording.counts["faults"] = 0
