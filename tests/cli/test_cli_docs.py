"""The documents say what the code does: every field is explained, every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from rankcall import findings, snapshot

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def _structs(module: object) -> list[type[msgspec.Struct]]:
    return [
        kind
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and not name.startswith("_")
    ]


@pytest.mark.parametrize(("module", "document"), [(findings, "report.md"), (snapshot, "snapshot.md")])
def test_every_field_of_the_schema_is_explained(module: object, document: str) -> None:
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    fields = {field for kind in _structs(module) for field in kind.__struct_fields__}
    assert sorted(field for field in fields if f"`{field}`" not in text) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings_that_are_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, heading = target.partition("#")
        if "://" in path:
            continue
        file = document.parent / path if path else document
        assert file.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {one.lower().replace(" ", "-") for one in headings}, target


def test_every_verb_that_the_readme_names_exists() -> None:
    from rankcall.cli import app

    verbs = {command.name for command in app.registered_commands}
    named = set(re.findall(r"^    rankcall ([a-z]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= verbs


def test_the_readme_shows_a_real_verdict() -> None:
    picture = (ROOT / "docs" / "verdict.svg").read_text(encoding="utf-8")
    assert "data-dependent-skip" in picture.replace("&#45;", "-")
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")
