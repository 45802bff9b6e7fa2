"""The simulator keeps its own rules, its dumps have torch's form, and what a planting says of itself is true."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from .bulk import bulk
from .plant import FAULTS, HEALTHY, KINDS, Planted, plant
from .programs import Course, Plan, course, lay_out, stage_of
from .simulate import Backend, Compute, Issue, Op, Part, Program, Simulation, Stuck, Sync, Wait
from .write import BEGIN, SCHEMES, Form, Moment, dump, to_bytes

MESHES: tuple[dict[str, int], ...] = (
    {"data": 4},
    {"data": 2, "tensor": 4},
    {"data": 4, "expert": 2},
    {"pipeline": 4, "data": 2},
    {"pipeline": 2, "data": 2, "context": 2, "tensor": 2},
)
SEEDS = range(3)


def reduce_of(*shape: int, axis: str = "world", awaited: bool = True, dtype: str = "Float") -> Issue:
    return Issue(Op("all_reduce", axis, (shape,), (shape,), dtype, awaited=awaited))


def run(programs: list[Program], backend: Backend = "nccl") -> Simulation:
    """A job of one group."""
    return Simulation(lay_out({"data": len(programs)}, "new_group"), programs, backend, seed=1).run()


def job(axes: dict[str, int], backend: Backend = "nccl", **plan: Any) -> tuple[Simulation, list[Course]]:
    layout = lay_out(axes, "new_group")
    stages = [course(Plan(axes, **plan), stage) for stage in range(axes.get("pipeline", 1))]
    courses = [stages[stage_of(layout, rank)] for rank in range(layout.world)]
    return Simulation(layout, [each.program for each in courses], backend, seed=3).run(), courses


def done(simulation: Simulation, rank: int) -> list[bool]:
    return [record.done is not None and record.done.time is not None for record in simulation.ranks[rank].records]


# --- the rules of the two libraries ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("axes", MESHES)
def test_a_healthy_job_ends(axes: dict[str, int], schedule: Any, backend: Backend) -> None:
    simulation, _ = job(axes, backend, schedule=schedule, micro_batches=3, checkpoint_every=2, sharded=True)

    assert simulation.ended
    for rank in range(simulation.layout.world):
        assert not simulation.unfinished(rank)


def test_on_nccl_the_host_runs_ahead_of_the_missing_rank_and_stops_where_it_asks_the_device() -> None:
    program = [reduce_of(8), reduce_of(16), reduce_of(8), Sync(), reduce_of(8)]
    simulation = run([program, [*program[:1], Stuck(), *program[1:]]])

    assert done(simulation, 0) == [True, False, False]
    assert done(simulation, 1) == [True]
    assert simulation.ranks[0].state == "waiting"
    assert simulation.ranks[1].state == "stuck"
    assert simulation.waits_for(0) == {1}


def test_on_gloo_a_rank_is_in_one_operation_at_a_time() -> None:
    program = [reduce_of(8), reduce_of(16), reduce_of(8), Sync(), reduce_of(8)]
    simulation = run([program, [*program[:1], Stuck(), *program[1:]]], "gloo")

    assert done(simulation, 0) == [True, False]
    assert simulation.waits_for(0) == {1}


def test_operations_that_do_not_fit_are_done_on_no_rank() -> None:
    for wrong in (
        reduce_of(9),
        reduce_of(8, dtype="Double"),
        Issue(Op("broadcast", "world", ((8,),), ((8,),), root=0)),
    ):
        simulation = run([[reduce_of(8), Sync()], [reduce_of(8), Sync()], [wrong, Sync()]])

        assert [done(simulation, rank) for rank in range(3)] == [[False]] * 3


def test_another_dtype_of_the_same_width_goes_through() -> None:
    simulation = run([[reduce_of(8, dtype="Half"), Sync()], [reduce_of(8, dtype="BFloat16"), Sync()]])

    assert simulation.ended


def test_a_skipped_operation_pairs_with_its_neighbours_until_one_is_left() -> None:
    program = [reduce_of(8), Sync()] * 5
    simulation = run([program, program[2:], program])

    assert simulation.ranks[1].state == "finished"
    assert done(simulation, 0) == done(simulation, 2) == [True] * 4 + [False]
    assert simulation.waits_for(0) == {1}


def test_groups_entered_in_different_order_stop_each_other_though_all_is_enqueued() -> None:
    layout = lay_out({"data": 2, "tensor": 1}, "new_group", ring=(0, 1))
    one, other = reduce_of(4, axis="ring0"), reduce_of(4, axis="ring1")
    simulation = Simulation(layout, [[one, other, Sync()], [other, one, Sync()]], "nccl", seed=1).run()

    assert [done(simulation, rank) for rank in range(2)] == [[False, False]] * 2
    assert simulation.waits_for(0) == {1}
    assert simulation.waits_for(1) == {0}


def test_what_is_not_awaited_may_cross() -> None:
    layout = lay_out({"data": 2, "tensor": 1}, "new_group", ring=(0, 1))
    one, other = reduce_of(4, axis="ring0", awaited=False), reduce_of(4, axis="ring1", awaited=False)
    programs = [[one, other, Wait(), Sync()], [other, one, Wait(), Sync()]]

    assert Simulation(layout, programs, "nccl", seed=1).run().ended


def test_a_small_broadcast_of_nccl_lets_its_root_go_and_one_of_gloo_does_not() -> None:
    broadcast = Issue(Op("broadcast", "world", ((8,),), ((8,),), root=0))
    programs: list[Program] = [[broadcast, Sync()], [broadcast, Sync()], [Stuck()]]

    assert [done(run(programs), rank) for rank in range(3)] == [[True], [True], []]
    assert [done(run(programs, "gloo"), rank) for rank in range(3)] == [[False], [True], []]


def test_a_send_without_its_recv_stops_both_sides() -> None:
    send = Issue(Op("p2p", "world", ((8,),), ((8,),), parts=(Part("send", 1),), batched=True))
    recv = Issue(Op("p2p", "world", ((8,),), ((8,),), parts=(Part("recv", -1),), batched=True))
    simulation = run([[send, send, reduce_of(4), Sync()], [recv, reduce_of(4), Sync()]])

    names = [[record.name for record in simulation.ranks[rank].records] for rank in range(2)]
    assert names == [
        ["send 0->1", "coalesced", "send 0->1", "coalesced", "all_reduce"],
        ["recv 1<-0", "coalesced", "all_reduce"],
    ]
    assert simulation.waits_for(0) == {1}
    assert simulation.waits_for(1) == {0}


def test_numbers_count_as_torch_counts() -> None:
    send = Issue(Op("p2p", "world", ((8,),), ((8,),), parts=(Part("send", 1), Part("recv", 1)), batched=True))
    recv = Issue(Op("p2p", "world", ((8,),), ((8,),), parts=(Part("recv", -1), Part("send", -1)), batched=True))
    simulation = run([[reduce_of(4), send, reduce_of(4), Sync()], [reduce_of(4), recv, reduce_of(4), Sync()]])

    numbers = [(record.seq, record.p2p_seq, record.op_id) for record in simulation.ranks[0].records]
    assert numbers == [(1, 0, 1), (1, 1, 2), (1, 1, 3), (1, 1, 3), (2, 1, 4)]


# --- the form ----------------------------------------------------------------------------------------------------


def a_stopped_job() -> Simulation:
    program = [reduce_of(8), Compute(0.5), reduce_of(8), Sync()]
    return run([program, [*program[:1], Stuck()]])


def test_a_hung_operation_is_scheduled_without_timing_and_started_with_it() -> None:
    simulation = a_stopped_job()
    moment = Moment(simulation.last_moment + 60)

    plain = dump(simulation, 0, moment, Form(timing=False))["entries"]
    timed = dump(simulation, 0, moment, Form(timing=True))["entries"]

    assert [(entry["state"], entry["retired"]) for entry in plain] == [("completed", True), ("scheduled", False)]
    assert plain[0]["time_discovered_started_ns"] is None
    assert "duration_ms" not in plain[0]
    assert [entry["state"] for entry in timed] == ["completed", "started"]
    assert timed[1]["time_discovered_started_ns"] == moment.wall_ns(moment.at)
    assert timed[0]["duration_ms"] > 0


def test_what_has_just_ended_is_completed_but_not_retired() -> None:
    simulation = a_stopped_job()
    end = simulation.ranks[0].records[0].done
    assert end is not None and end.time is not None

    entry = dump(simulation, 0, Moment(end.time + 1e-6), Form())["entries"][0]

    assert (entry["state"], entry["retired"]) == ("completed", False)


def test_a_ring_keeps_the_newest() -> None:
    simulation, _ = job({"data": 4})
    at = simulation.last_moment + 1
    whole = dump(simulation, 1, Moment(at), Form())["entries"]

    assert dump(simulation, 1, Moment(at, ring=5), Form())["entries"] == whole[-5:]


def test_older_schemas_lack_what_did_not_exist() -> None:
    simulation = a_stopped_job()
    fields = {
        minor: dump(simulation, 0, Moment(9.0), Form(version=f"2.{minor}", frames=False)) for minor in (0, 2, 3, 6, 10)
    }

    assert "is_p2p" not in fields[0]["entries"][0]
    assert "input_dtypes" in fields[2]["entries"][0]
    assert [minor for minor in fields if "pg_status" in fields[minor]] == [3, 6, 10]
    assert [minor for minor in fields if "thread_id" in fields[minor]["entries"][0]] == [10]
    assert "nccl_version" in fields[6]
    assert "comm_lib_version" in fields[10]


def test_json_says_the_same_as_pickle() -> None:
    simulation, _ = job({"data": 2, "tensor": 2})
    moment = Moment(simulation.last_moment / 2)
    form = Form(container="json")
    document = dump(simulation, 1, moment, form)
    read = json.loads(to_bytes(document, form))

    for entry, written in zip(read["entries"], document["entries"], strict=True):
        assert entry.pop("process_group") == list(written["process_group"])
        for name, value in entry.items():
            assert value == (0 if written[name] is None else written[name])
    assert read["pg_status"]["0"]["last_enqueued_collective"] == str(
        document["pg_status"]["0"]["last_enqueued_collective"]
    )


REAL = """
import pickle, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for name in sys.argv[1:]:
    if name == "barrier":
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(8))
recorder = torch._C._distributed_c10d
found = pickle.loads(recorder._dump_fr_trace(True, False, False))
sys.stdout.buffer.write(pickle.dumps((found, recorder._dump_fr_trace_json(True, False))))
"""


def test_a_dump_has_the_form_of_one_that_torch_wrote() -> None:
    done = subprocess.run([sys.executable, "-c", REAL, "all_reduce", "barrier"], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    real, real_json = pickle.loads(done.stdout)
    barrier = Issue(Op("barrier", "world", (), ()))
    simulation = run([[reduce_of(8), barrier, Sync()]], "gloo")
    form = Form(frames=False, timeout_ms=1_800_000)
    made = dump(simulation, 0, Moment(5.0), form)

    assert list(made) == list(real)
    assert made["pg_config"] == real["pg_config"]
    assert made["pg_status"].keys() == real["pg_status"].keys()
    # Completion is noticed by a thread of its own, which may be late on a busy machine.
    enqueued = "last_enqueued_collective"
    assert [each[enqueued] for each in made["pg_status"].values()] == [
        each[enqueued] for each in real["pg_status"].values()
    ]
    for own, theirs in zip(made["entries"], real["entries"], strict=True):
        assert list(own) == list(theirs)
        for name in own:
            if name not in ("time_created_ns", "thread_id", "thread_name", "retired"):
                assert own[name] == theirs[name], name
    plain, theirs = json.loads(to_bytes(made, Form(container="json"))), json.loads(real_json)
    assert {name: type(value) for name, value in plain["entries"][0].items()} == {
        name: type(value) for name, value in theirs["entries"][0].items()
    }


def nccl_pickles() -> list[Planted]:
    """Plantings that torch's own reader is made for."""
    kinds = ("healthy-end", "healthy-moment", "healthy-pipeline", "missing", "shape-mismatch", "unpaired-p2p")
    found = [plant(kind, seed) for kind in kinds for seed in range(4)]
    return [
        each
        for each in found
        if each.simulation.backend == "nccl" and each.form.container == "pickle" and each.form.minor >= 3
        and each.world <= 16 and all(group.incarnation == 0 for group in each.simulation.layout.groups)
    ]  # fmt: skip


def test_torchs_own_reader_takes_what_is_written(tmp_path: Path) -> None:
    from torch.distributed.flight_recorder.components import builder, types
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dir

    plantings = nccl_pickles()
    assert len(plantings) > 5
    for number, planted in enumerate(plantings):
        folder = tmp_path / str(number)
        replace(planted, form=replace(planted.form, scheme=SCHEMES[0])).write(folder)
        arguments = JobConfig().parse_args([str(folder)])
        details, version = read_dir(arguments)
        assert version == planted.form.version
        ranks = {each["rank"]: each for each in details.values()}
        assert len(ranks) == len(list(folder.iterdir()))
        _, _, _, members, names = builder.build_groups_memberships({rank: ranks[rank]["pg_config"] for rank in ranks})
        for rank, each in ranks.items():
            for entry in each["entries"]:
                op = types.Op(entry, members, names[(entry["process_group"][0], rank)])
                assert op.type != "send" or op._src_g == rank
                assert op.type != "recv" or op._dst_g == rank


BULK: tuple[tuple[dict[str, int], dict[str, Any]], ...] = (
    ({"data": 8}, {"buckets": (100,) * 8}),
    ({"data": 4, "tensor": 4}, {"layers": 3, "buckets": (5, 6, 7), "norm_syncs": True}),
    ({"pipeline": 2, "data": 2, "context": 2, "tensor": 2}, {"micro_batches": 2, "layers": 1, "buckets": (9,)}),
)


@pytest.mark.parametrize("frames", [False, True])
@pytest.mark.parametrize(("axes", "values"), BULK)
def test_dumps_printed_from_templates_are_those_of_the_whole_job(
    axes: dict[str, int], values: dict[str, Any], frames: bool
) -> None:
    plan, form = Plan(axes, **values), Form(frames=frames)
    made = bulk(plan, 60, form, seed=3)
    courses = [course(replace(plan, steps=made.history + 1), stage) for stage in range(axes.get("pipeline", 1))]
    programs: list[Program] = [courses[stage_of(made.layout, rank)].program for rank in range(made.layout.world)]
    stuck_in = courses[stage_of(made.layout, made.stuck)]
    place = stuck_in.begins[made.history] + made.place
    programs[made.stuck] = [*stuck_in.program[:place], Stuck(), *stuck_in.program[place:]]
    whole = Simulation(made.layout, programs, "nccl", seed=3).run()

    for rank, data, _ in made.files():
        printed = pickle.loads(data)
        expected = dump(whole, rank, Moment(whole.last_moment + 601, ring=60), form)
        for document in (printed, expected):
            times = [entry.pop("time_created_ns") for entry in document["entries"]]
            assert times == sorted(times)
            for entry in document["entries"]:
                for name in ("time_discovered_started_ns", "time_discovered_completed_ns"):
                    entry[name] = entry[name] is not None
        assert printed == expected
        assert list(printed["entries"][0]) == list(expected["entries"][0])


# --- plantings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_planting_is_the_same_every_time(kind: str, tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        planted = plant(kind, 5)
        planted.write(tmp_path / name)
        files = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        found.append({path.relative_to(tmp_path / name): path.read_bytes() for path in files})

    assert found[0] == found[1]
    assert len(found[0]) == planted.world - sum(how == "absent" for how in planted.lost.values())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_planting_would_end(kind: str, seed: int) -> None:
    planted = plant(kind, seed)

    assert planted.simulation.ended
    assert not planted.culprits


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_stops_the_job_and_its_culprits_are_what_the_others_wait_for(kind: str, seed: int) -> None:
    planted = plant(kind, seed)
    simulation = planted.simulation
    world = set(range(planted.world))

    assert planted.culprits <= world
    assert not simulation.ended
    for rank in world - planted.culprits:
        assert simulation.ranks[rank].state == "waiting"
    # Whoever waits, waits for a culprit in the end, or stands at an operation that a culprit broke.
    reached = set(planted.culprits)
    broken = {rank for meeting in simulation.meetings.values() if meeting.broken for rank in meeting.members}
    reached |= broken
    while True:
        more = {rank for rank in world - reached if simulation.waits_for(rank) & reached}
        if not more:
            break
        reached |= more
    assert reached == world


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind.startswith(("missing", "two"))])
def test_a_missing_rank_is_stuck_and_waits_for_nobody(kind: str, seed: int) -> None:
    planted = plant(kind, seed)

    for rank in planted.culprits:
        assert planted.simulation.ranks[rank].state == "stuck"
        assert not planted.simulation.unfinished(rank)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cycle_is_a_circle_of_waits(seed: int) -> None:
    planted = plant("cycle", seed)

    for rank in planted.culprits:
        assert planted.simulation.waits_for(rank)
        assert planted.simulation.waits_for(rank) <= planted.culprits
    shown = all(len(planted.simulation.unfinished(rank)) > 1 for rank in planted.done_by)
    assert planted.done_by < planted.culprits
    assert planted.also == (() if shown else (planted.done_by,))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["shape-mismatch", "dtype-mismatch", "other-kind", "swapped"])
def test_a_mismatch_is_broken_by_its_culprit_alone(kind: str, seed: int) -> None:
    planted = plant(kind, seed)
    rank = min(planted.culprits)
    broken = [
        each for each in planted.simulation.meetings.values() if each.broken and planted.culprits <= set(each.members)
    ]
    meeting = min(broken, key=lambda each: each.members[rank][0].created)

    signatures = {rank: record.op.signature for rank, (record, _) in meeting.members.items()}
    assert len({signatures[rank] for rank in signatures if rank not in planted.culprits}) <= 1
    if not planted.ambiguous:
        [culprit] = planted.culprits
        assert signatures[culprit] not in [signatures[rank] for rank in signatures if rank != culprit]


@pytest.mark.parametrize("seed", SEEDS)
def test_files_are_as_old_as_their_dumps(seed: int, tmp_path: Path) -> None:
    planted = plant("missing-stale-dump", seed)
    planted.write(tmp_path)

    ages = sorted((tmp_path / planted.form.file_name(rank)).stat().st_mtime - BEGIN for rank in range(planted.world))
    assert 28.9 < ages[1] - ages[0] < 31.1
    assert ages[-1] - ages[1] < 1.1


def test_some_dumps_are_missing_or_cut(tmp_path: Path) -> None:
    for seed in range(8):
        planted = plant("missing-some-dumps", seed)
        folder = tmp_path / str(seed)
        planted.write(folder)
        assert planted.lost
        for rank, how in planted.lost.items():
            path = folder / planted.form.file_name(rank)
            assert path.exists() == (how != "absent")
            if how == "truncated" and planted.form.container == "pickle":
                with pytest.raises((EOFError, pickle.UnpicklingError)):
                    pickle.loads(path.read_bytes())
