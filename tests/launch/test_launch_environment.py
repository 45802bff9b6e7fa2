"""What the ranks find in their environment beside the user's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankcall.launch.environment import (
    changed_environment,
    console_defaults,
    error_handling_note,
    flight_recorder_defaults,
)

DUMPS = Path("/run/attempt-0/dumps")


def test_a_new_torch_dumps_into_the_run_folder_and_records_by_itself() -> None:
    assert flight_recorder_defaults({}, "2.13.0+cpu", DUMPS) == {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": "/run/attempt-0/dumps/rank-",
    }


def test_an_old_torch_gets_the_old_names_and_has_its_recorder_switched_on() -> None:
    assert flight_recorder_defaults({}, "2.6.0", DUMPS) == {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/run/attempt-0/dumps/rank-",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    }


@pytest.mark.parametrize("version", ["2.6.0", "2.13.0", None])
@pytest.mark.parametrize("place", ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"])
@pytest.mark.parametrize("ring", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_nothing_that_is_set_is_overruled_under_either_name(version: str | None, place: str, ring: str) -> None:
    mine = {place: "/mine", ring: "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    assert flight_recorder_defaults(mine, version, DUMPS) == {}


def test_error_handling_is_reported() -> None:
    assert "is not set" in error_handling_note({})
    assert error_handling_note({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}).startswith("TORCH_NCCL_ASYNC_ERROR_HANDLING=3")


def test_buffering_is_the_users_choice_if_made() -> None:
    assert console_defaults({})["PYTHONUNBUFFERED"] == "1"
    assert "PYTHONUNBUFFERED" not in console_defaults({"PYTHONUNBUFFERED": ""})


def test_the_launchers_own_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "before")
    monkeypatch.delenv("NEW", raising=False)
    with pytest.raises(ValueError), changed_environment({"KEPT": "during", "NEW": "x"}):
        assert (os.environ["KEPT"], os.environ["NEW"]) == ("during", "x")
        raise ValueError
    assert os.environ["KEPT"] == "before" and "NEW" not in os.environ
