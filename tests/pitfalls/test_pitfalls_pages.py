"""The catalogue as it is: every name has its page, and every page can be read on one screen and believed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rankcall.pitfalls.pages as pages_module
from rankcall.pitfalls import layer, names, page, seen_by

PAGES = Path(pages_module.__file__).parent
LAYERS = (
    "environment", "launch", "communication", "data", "model",
    "evaluation", "storage", "memory", "hardware", "program",
)  # fmt: skip
VERBS = {"run", "why", "explain", "demo"}  # what a page may tell its reader to type
ONE_SCREEN = 45
WIDTH = 100


def _text(name: str) -> str:
    return (PAGES / layer(name) / f"{name}.en.md").read_text(encoding="utf-8")


def test_every_name_has_a_page_and_every_page_a_name() -> None:
    written = {(file.parent.name, file.name.split(".")[0]) for file in PAGES.rglob("*.md")}
    assert written == {(layer(name), name) for name in names()}


def test_layers_and_seers_are_the_known_ones_in_the_order_of_the_registry() -> None:
    assert tuple(dict.fromkeys(layer(name) for name in names())) == LAYERS
    assert len(set(names())) == len(names()) > 100
    for name in names():
        assert seen_by(name)
        assert set(seen_by(name)) <= {"lint", "preflight", "run", "triage", "plan"}


@pytest.mark.parametrize("name", names())
def test_a_page_is_complete_and_says_what_the_registry_says(name: str) -> None:
    found = page(name)
    assert (found.name, found.layer, found.seen_by, found.lang) == (name, layer(name), seen_by(name), "en")
    assert found.title and not found.title.endswith(".")
    assert len(found.title) <= 80
    assert all((found.happens, found.why, found.tell, found.fix, found.related, found.sources))


@pytest.mark.parametrize("name", names())
def test_a_page_fits_on_one_screen(name: str) -> None:
    lines = _text(name).splitlines()
    assert len(lines) <= ONE_SCREEN
    too_wide = [line for line in lines if len(line) > WIDTH and "https://" not in line]
    assert not too_wide


@pytest.mark.parametrize("name", names())
def test_each_fix_stands_alone_as_a_sentence(name: str) -> None:
    for fix in page(name).fix:
        assert fix[0].isupper(), fix
        assert fix.endswith("."), fix
        assert not fix.startswith(("It ", "Or ", "They ", "Then ")), fix
        assert fix.count("`") % 2 == 0, fix


@pytest.mark.parametrize("name", names())
def test_a_page_speaks_of_names_and_verbs_that_exist(name: str) -> None:
    found = page(name)
    assert set(found.related) <= set(names()) - {name}
    assert set(re.findall(r"see `([a-z-]+)`", _text(name))) <= set(names())
    assert set(re.findall(r"\brankcall ([a-z]+)", _text(name))) <= VERBS


@pytest.mark.parametrize("name", names())
def test_python_examples_are_python(name: str) -> None:
    for code in re.findall(r"```python\n(.*?)```", page(name).example, flags=re.DOTALL):
        ast.parse(code)


def test_sources_are_addresses_measurements_or_files_of_torch() -> None:
    for name in names():
        for source in page(name).sources:
            assert re.search(r"https://|^Measured\b|^torch \d", source), (name, source)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("uneven-steps", "DistributedSampler is not the cause"),
        ("optimizer-other-parameters", "Making it before DDP or before `model.to(device)` is not this mistake"),
        ("optimizer-before-shard", "For DDP the order does not matter"),
        ("moved-after-wrap", "Optimizers made before `.to(device)` are no problem"),
        ("wrapper-bypassed", "`ddp.forward(x)` does synchronise"),
        ("accumulation-out-of-sync", "Leaving `no_sync` out is only slower"),
        ("no-init-timeout", "Nothing is wrong with the job"),
        ("group-not-destroyed", "gloo says nothing"),
        ("lone-collective", "is right: each rank calls once"),
    ],
)
def test_a_myth_is_called_one(name: str, says: str) -> None:
    assert says in " ".join(_text(name).split())


def test_no_page_asks_for_what_only_a_myth_asks_for() -> None:
    everything = " ".join(" ".join(page(name).fix) for name in names())
    assert not re.search(r"optimizer (only )?after (wrapping|DDP|`DDP)", everything)
    assert not re.search(r"(seed|reseed) (numpy|np\.random)", everything, flags=re.IGNORECASE)


def test_the_index_lists_every_page_once_with_a_link_that_holds() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "rankcall.pitfalls"], capture_output=True, text=True, check=True
    ).stdout
    links = re.findall(r"^\| \[([a-z-]+)\]\(\.\./src/rankcall/pitfalls/pages/(.+?)\)", made, flags=re.MULTILINE)
    assert [name for name, _ in links] == list(names())
    assert all((PAGES / target).is_file() for _, target in links)
