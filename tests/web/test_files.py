"""The dashboard's files: complete in themselves, and nothing of them runs what it should not."""

from __future__ import annotations

import re

import pytest

from lifeboat.core.capacity import CapacityVerdict
from lifeboat.core.limits import LimitReason
from lifeboat.core.modes import MODES, Mode
from lifeboat.core.vocabulary import Health, OperatorState, Reason
from lifeboat.web import INDEX, StaticFile, static_files

FILES = static_files()
SCRIPTS = {name: one.body.decode() for name, one in FILES.items() if name.endswith(".js")}
PAGE = FILES[INDEX].body.decode()
STYLE = FILES["style.css"].body.decode()


def test_every_file_has_a_type_a_browser_accepts_and_an_etag_of_its_own() -> None:
    assert {one.content_type for one in FILES.values()} == {
        "text/html; charset=utf-8",
        "text/javascript; charset=utf-8",
        "text/css; charset=utf-8",
        "image/svg+xml",
    }
    assert len({one.etag for one in FILES.values()}) == len(FILES)
    assert all(re.fullmatch(r'"[0-9a-f]{32}"', one.etag) for one in FILES.values())


def test_every_file_that_is_named_is_there_and_every_script_is_used() -> None:
    imported = {
        name for text in SCRIPTS.values() for name in re.findall(r'from "\./([^"]+)";', text)
    }
    named = set(re.findall(r'(?:src|href)="static/([^"]+)"', PAGE))
    assert imported | named == set(FILES) - {INDEX}


@pytest.mark.parametrize("one", FILES.values(), ids=lambda one: one.name)
def test_nothing_is_asked_of_another_host(one: StaticFile) -> None:
    addresses = re.findall(r"(?:https?:|wss?:)?//[a-z0-9][^\s\"')]*", one.body.decode())
    # The names of XML vocabularies are no addresses; a comment of a script is none either.
    found = [address for address in addresses if "://" in address and "www.w3.org" not in address]
    assert found == []


def test_the_page_has_no_script_or_style_of_its_own() -> None:
    """So that the policy can forbid every inline one."""
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:", PAGE) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_makes_markup_or_code_out_of_text(name: str) -> None:
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    assert re.findall(ways, SCRIPTS[name]) == []


def test_every_element_a_script_looks_up_is_on_the_page() -> None:
    wanted = {name for text in SCRIPTS.values() for name in re.findall(r'byId\("([^"]+)"\)', text)}
    ids = re.findall(r'\sid="([^"]+)"', PAGE)
    assert len(ids) == len(set(ids))
    assert wanted <= set(ids)


def keys_of(table: str) -> set[str]:
    body = re.search(rf"export const {table} = {{(.*?)\n}};", SCRIPTS["words.js"], re.DOTALL)
    assert body is not None
    return set(re.findall(r"^  (\w+):", body[1], re.MULTILINE))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("LIMIT_REASONS", LimitReason),
        ("HEALTHS", Health),
        ("STATES", OperatorState),
        ("VERDICTS", CapacityVerdict),
    ],
)
def test_every_word_of_the_state_has_its_words_for_people(table: str, words: type) -> None:
    assert keys_of(table) == {word.value for word in words}


def test_the_reasons_with_a_colour_are_reasons() -> None:
    listed = re.search(r"const COLOURED = \[(.*?)\]", SCRIPTS["charts.js"])
    assert listed is not None
    coloured = re.findall(r'"(\w+)"', listed[1])
    assert set(coloured) <= {reason.value for reason in Reason}
    for number in range(len(coloured) + 1):
        assert f'[data-colour="{number}"]' in STYLE


def test_the_mode_whose_queue_cannot_be_switched_off_is_the_one_the_table_says() -> None:
    always = [mode for mode in Mode if MODES[mode].always_queues]
    assert always == [Mode.QUEUE_ALL]
    assert f'const ALWAYS_QUEUES = "{Mode.QUEUE_ALL.value}";' in SCRIPTS["mode.js"]
