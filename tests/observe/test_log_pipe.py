"""Logs that cannot stall the loop, and cannot be forged."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lifeboat.observe.access_log import AccessLog
from lifeboat.observe.log_pipe import (
    JsonFormatter,
    LogFormat,
    LogPipe,
    TextFormatter,
    configure_logging,
)
from tests.observe.scenes import finished

log = logging.getLogger("lifeboat.test")


@pytest.fixture(autouse=True)
def _restored_levels() -> Iterator[None]:
    """Leave the process's logging as it was."""
    root, ours = logging.getLogger(), logging.getLogger("lifeboat")
    before = root.level, ours.level
    yield
    for handler in root.handlers[:]:
        if isinstance(handler, LogPipe):
            root.removeHandler(handler)
            handler.close()
    root.setLevel(before[0])
    ours.setLevel(before[1])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_arrive_in_order_and_all_of_them_by_the_time_it_is_closed() -> None:
    stream = io.StringIO()
    with configure_logging("json", "info", stream):
        for number in range(2000):
            log.info("line %d", number)
            AccessLog().finished(finished(request_id=f"r{number}"))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"] for line in lines[::2]] == [f"line {n}" for n in range(2000)]
    assert [line["request_id"] for line in lines[1::2]] == [f"r{n}" for n in range(2000)]


def test_a_reader_that_stopped_reading_blocks_nobody_and_the_loss_is_told() -> None:
    """A real pipe, full: writing to it directly would block for ever."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        pipe = LogPipe(stream, TextFormatter(), lines=1000)
        record = log.makeRecord(log.name, logging.INFO, "f", 0, "x" * 1000, (), None)
        started = time.monotonic()
        for _ in range(20_000):
            pipe.handle(record)
        assert time.monotonic() - started < 30.0
        assert pipe.dropped > 15_000

        with os.fdopen(reading, "r", encoding="utf-8") as reader:
            kept, told = 0, 0
            # The loss may be told in more than one line, where the pipe had room in between.
            while kept + told < 20_000:
                line = reader.readline()
                dropped = re.search(r": ([0-9]+) log lines were dropped", line)
                kept, told = (kept + 1, told) if dropped is None else (kept, told + int(dropped[1]))
            pipe.close()
    assert told == pipe.dropped


def test_closing_does_not_wait_for_ever_for_a_reader_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lifeboat.observe.log_pipe._CLOSE_S", 0.05)
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w", encoding="utf-8")
    pipe = LogPipe(stream, TextFormatter())
    for _ in range(500):
        pipe.handle(log.makeRecord(log.name, logging.INFO, "f", 0, "x" * 1000, (), None))
    started = time.monotonic()
    pipe.close()
    assert time.monotonic() - started < 20.0
    # Let the thread end: what it still writes goes nowhere.
    os.set_blocking(reading, False)
    while pipe._thread.is_alive():
        try:
            os.read(reading, 1 << 16)
        except BlockingIOError:
            pipe._thread.join(0.01)
    os.close(reading)
    stream.close()


def test_a_stream_that_breaks_costs_its_lines_and_nothing_else() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "wb", buffering=0)
    text = io.TextIOWrapper(stream, encoding="ascii", write_through=True)
    pipe = LogPipe(text, TextFormatter())
    pipe.handle(log.makeRecord(log.name, logging.INFO, "f", 0, "lost", (), None))
    pipe.close()
    stream.close()
    assert pipe.broken == 1


def test_no_message_can_forge_a_line() -> None:
    stream = io.StringIO()
    with configure_logging("text", "info", stream):
        log.warning("bad url %s", "http://x\r\n2023-11-14T22:13:20.250Z info forged")
        try:
            raise ValueError("first\n2023-11-14T22:13:20.250Z info forged")
        except ValueError:
            log.exception("it broke")
    lines = stream.getvalue().splitlines()
    assert not [line for line in lines if line.startswith("2023")]
    assert sum(not line.startswith("    ") for line in lines) == 2


def test_json_lines_carry_a_traceback_in_one_line() -> None:
    stream = io.StringIO()
    with configure_logging("json", "info", stream):
        try:
            raise ValueError("no \ud800 good")
        except ValueError:
            log.exception("it broke")
    (line,) = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert line["message"] == "it broke"
    assert line["exception"][-1] == "ValueError: no \\ud800 good"


def test_a_message_that_does_not_fit_its_arguments_raises_nothing() -> None:
    stream = io.StringIO()
    # Straight to the pipe: pytest's own handler raises on purpose.
    with LogPipe(stream, JsonFormatter()) as pipe:
        pipe.handle(log.makeRecord(log.name, logging.INFO, "f", 0, "%d requests", ("many",), None))
    assert "'%d requests' does not fit ('many',)" in stream.getvalue()


def test_a_message_is_what_it_was_when_it_was_logged() -> None:
    stream, names = io.StringIO(), ["a"]
    with configure_logging("json", "info", stream):
        for _ in range(100):
            log.info("names %s", names)
            names[0] = "b"
    assert json.loads(stream.getvalue().splitlines()[0])["message"] == "names ['a']"


def test_names_are_written_as_utf8_whatever_the_locale() -> None:
    raw = io.BytesIO()
    with configure_logging("text", "info", io.TextIOWrapper(raw, encoding="ascii")):
        log.info("modèle 日本")
        # The wrapper closes its bytes with it: read before.
        logging.getLogger().handlers[-1].close()
        written = raw.getvalue()
    assert "modèle 日本\n" in written.decode("utf-8")


@pytest.mark.parametrize(
    ("log_format", "stream", "formatter"),
    [
        ("auto", Terminal(), TextFormatter),
        ("auto", io.StringIO(), JsonFormatter),
        ("text", io.StringIO(), TextFormatter),
        (LogFormat.JSON, Terminal(), JsonFormatter),
    ],
)
def test_auto_is_text_on_a_terminal_and_json_elsewhere(
    log_format: str, stream: Any, formatter: type[logging.Formatter]
) -> None:
    with configure_logging(log_format, "info", stream) as pipe:
        assert isinstance(pipe.formatter, formatter)


def test_the_level_is_for_our_logs_and_libraries_are_heard_from_warning_up() -> None:
    stream = io.StringIO()
    with configure_logging("text", "debug", stream):
        log.debug("ours")
        logging.getLogger("aiohttp").info("theirs, chatter")
        logging.getLogger("aiohttp").warning("theirs, a warning")
    assert [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()] == [
        "ours",
        "theirs, a warning",
    ]


@pytest.mark.parametrize(("log_format", "level"), [("yaml", "info"), ("json", "loud")])
def test_a_format_or_level_that_does_not_exist_is_an_error(log_format: str, level: str) -> None:
    with pytest.raises(ValueError, match=r"yaml|loud"):
        configure_logging(log_format, level, io.StringIO())


def test_configuring_twice_writes_each_line_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logging("text", "info", first)
    with configure_logging("text", "info", second):
        log.info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_stderr_is_where_logs_go_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    with configure_logging("text", "info", sys.__stderr__):
        log.info("hello")
    assert "hello" in capfd.readouterr().err
