"""All of the project's logs: formats, levels, and a writer that cannot stall the event loop.

A log goes to a pipe or a terminal that somebody else reads, and a reader that pauses (a terminal
held by ^S, a container runtime under load) blocks the writer: in a router that is one thread, it
would stop every stream. So records are handed to a thread over a bounded queue, and lines are
dropped, counted and reported when the reader does not keep up. Formatting happens in that thread
too. Invariants, held by tests/observe/test_log_pipe.py: handing over never blocks; a record is one
line (a traceback in text is indented, so that no message can forge a line); lines keep their order.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import BinaryIO, Final, TextIO

import orjson

from lifeboat.observe.access_log import fields_of, text_of
from lifeboat.observe.events import Finished
from lifeboat.observe.printable import MESSAGE_CHARS, iso_time, printable


class LogFormat(StrEnum):
    """Values of `LIFEBOAT_LOG_FORMAT`."""

    AUTO = "auto"
    """Text on a terminal, JSON elsewhere."""
    TEXT = "text"
    JSON = "json"


QUEUE_LINES = 10_000
"""Lines held while nobody reads: seconds of heavy traffic, some 10 MB at the most."""

_CLOSE_S = 2.0
"""How long an orderly exit waits for the reader of the last lines."""


def _time_of(record: logging.LogRecord) -> str:
    at_wall = record.msg.at_wall if isinstance(record.msg, Finished) else record.created
    return iso_time(at_wall)


class JsonFormatter(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line: access fields flat, other messages as `message`."""
        line: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if isinstance(record.msg, Finished):
            line["event"] = "request"
            line.update(fields_of(record.msg))
        else:
            line["event"] = "log"
            line["message"] = printable(record.getMessage(), MESSAGE_CHARS)
        if record.exc_info and record.exc_info[0]:
            trace = self.formatException(record.exc_info)
            line["exception"] = [printable(part, MESSAGE_CHARS) for part in trace.splitlines()]
        return orjson.dumps(line).decode()


class TextFormatter(logging.Formatter):
    """A line for a person; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, where it comes from, and the message."""
        if isinstance(record.msg, Finished):
            message = text_of(record.msg)
        else:
            message = printable(record.getMessage(), MESSAGE_CHARS)
        lines = [f"{_time_of(record)} {record.levelname.lower():<7} {record.name}: {message}"]
        if record.exc_info and record.exc_info[0]:
            trace = self.formatException(record.exc_info)
            lines += [f"    {printable(part, MESSAGE_CHARS)}" for part in trace.splitlines()]
        return "\n".join(lines)


class _End:
    """The last thing in the queue."""


_END: Final = _End()


class LogPipe(logging.Handler):
    """Hands records to a thread that writes them. Use as a context manager, or call close()."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter, lines: int = QUEUE_LINES):
        super().__init__()
        self._stream = stream
        self._queue: queue.SimpleQueue[logging.LogRecord | _End] = queue.SimpleQueue()
        self._bound = lines
        self.dropped = 0
        """Lines dropped since start because the reader was too far behind."""
        self._reported = 0
        self.broken = 0
        """Lines lost to a stream that could not be written."""
        self._ended = False
        self.setFormatter(formatter)
        # A daemon: a reader that never comes back must not keep the process alive.
        self._thread = threading.Thread(target=self._write_all, name="lifeboat-log", daemon=True)
        self._thread.start()

    def handle(self, record: logging.LogRecord) -> bool:
        """Queue a record or drop it. Never blocks: without the base class's lock, on purpose.

        A writer stuck in the stream holds no lock that this could wait for.
        """
        if not self.filter(record):
            return False
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or count it as dropped when the reader is too far behind."""
        if self._ended or self._queue.qsize() >= self._bound:
            self.dropped += 1
            return
        if record.args:
            # Arguments may change before they are written: a message is what it was.
            try:
                record.msg = record.getMessage()
            except Exception:
                record.msg = f"{record.msg!r} does not fit {record.args!r}"
            record.args = None
        self._queue.put(record)

    def close(self) -> None:
        """Write what is queued, waiting at most two seconds for the reader. May be called twice."""
        if not self._ended:
            self._ended = True
            self._queue.put(_END)
            self._thread.join(_CLOSE_S)
        super().close()

    def __enter__(self) -> LogPipe:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        logging.getLogger().removeHandler(self)
        self.close()

    # ---- in the thread -------------------------------------------------------------------------

    def _write_all(self) -> None:
        write = _writer(self._stream)
        while True:
            record = self._queue.get()
            if isinstance(record, _End):
                return
            try:
                dropped = self.dropped
                if dropped > self._reported:
                    write(self.format(_dropped_record(dropped - self._reported)))
                    self._reported = dropped
                write(self.format(record))
            except Exception:
                # The stream is broken: there is nowhere to say so, and the next line may pass.
                self.broken += 1


def _dropped_record(count: int) -> logging.LogRecord:
    message = f"{count} log lines were dropped: nobody read them in time"
    return logging.LogRecord("lifeboat.log", logging.WARNING, __file__, 0, message, None, None)


def _writer(stream: TextIO) -> Callable[[str], None]:
    """Return a function that writes a line as UTF-8 whatever the locale, and flushes it."""
    raw: BinaryIO | None = getattr(stream, "buffer", None)
    if raw is None:

        def write_text(line: str) -> None:
            stream.write(line + "\n")
            stream.flush()

        return write_text

    def write_bytes(line: str) -> None:
        raw.write(line.encode("utf-8", "backslashreplace") + b"\n")
        raw.flush()

    return write_bytes


def configure_logging(
    log_format: LogFormat | str = LogFormat.AUTO,
    level: str = "info",
    stream: TextIO | None = None,
) -> LogPipe:
    """Send all logs of the process to `stream` (stderr by default); return the pipe to close.

    level: of this project's logs (debug, info, warning, error, critical); those of libraries are
    shown from warning up, or from there if that is higher. At `warning` there is no access log.
    Raises ValueError for a level or format that does not exist.
    """
    target: TextIO = stream or sys.stderr
    chosen = LogFormat(log_format)
    if chosen is LogFormat.AUTO:
        chosen = LogFormat.TEXT if target.isatty() else LogFormat.JSON
    number = _number_of(level)
    pipe = LogPipe(target, TextFormatter() if chosen is LogFormat.TEXT else JsonFormatter())
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, LogPipe):
            root.removeHandler(handler)
            handler.close()
    root.addHandler(pipe)
    _set_levels(number)
    return pipe


def set_log_level(level: str) -> None:
    """Change the level while logs are written; as `configure_logging` takes it."""
    _set_levels(_number_of(level))


def _number_of(level: str) -> int:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"unknown log level {level!r}: use debug, info, warning, error, critical")
    return number


def _set_levels(number: int) -> None:
    logging.getLogger().setLevel(max(number, logging.WARNING))
    logging.getLogger("lifeboat").setLevel(number)
