"""Precedence, sources, and all faults at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifeboat.core.modes import Mode
from lifeboat.settings import ConfigErrors
from tests.settings.configured import configure, faults

ONE = "backends: [{url: 'http://h:1'}]\n"


@pytest.mark.parametrize(
    ("flag", "variable", "line", "expected", "source"),
    [
        ("1s", "2", "queue: {ttl: 3s}", 1.0, "flag"),
        (None, "2", "queue: {ttl: 3s}", 2.0, "environment"),
        (None, None, "queue: {ttl: 3s}", 3.0, "file"),
        (None, None, "queue: {ttl: }", 30.0, "default"),
        (None, None, "queue:", 30.0, "default"),
        (None, "", "", 30.0, "default"),
    ],
)
def test_flag_beats_environment_beats_file_beats_default(
    tmp_path: Path,
    flag: str | None,
    variable: str | None,
    line: str,
    expected: float,
    source: str,
) -> None:
    environ = {} if variable is None else {"LIFEBOAT_LB_QUEUE_TTL_SEC": variable}
    settings = configure(tmp_path, f"{ONE}{line}\n", environ, {"queue_ttl_s": flag}).settings
    assert (settings.queue_ttl_s, settings.sources["queue_ttl_s"]) == (expected, source)


def test_every_fault_of_every_source_is_reported_at_once(tmp_path: Path) -> None:
    text = "mode: fastest\nqueue: {ttl: 0}\nbackends: [{url: 'ftp://h'}, {kind: gguf}]\n"
    environ = {"LIFEBOAT_PORT": "99999", "LIFEBOAT_LB_QUEUE_ENABLED": "maybe"}
    found = faults(tmp_path, text, environ, {"reject_status": "500"})
    told = "\n".join(found)
    for part in (
        "backends.yaml:1: mode = 'fastest'",
        "backends.yaml:2: queue.ttl = 0",
        "backends.yaml:3: backends[0].url = 'ftp://h'",
        "backends.yaml:3: backends[1]: has no url",
        "environment: LIFEBOAT_PORT = '99999': must be a whole number from 0 to 65535",
        "environment: LIFEBOAT_LB_QUEUE_ENABLED = 'maybe': must be true or false",
        "flag: --reject-status = '500': must be one of 503, 429, 529",
    ):
        assert part in told
    assert len(found) == 7


def test_a_fault_of_a_value_that_a_stronger_source_overrides_is_still_told(tmp_path: Path) -> None:
    found = faults(tmp_path, f"{ONE}port: x\n", {}, {"port": "8400"})
    assert len(found) == 1
    assert "port = 'x'" in found[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("queues: {ttl: 3s}\n", "queues: is no key known here. Did you mean queue?"),
        ("ttl: 3s\n", "ttl: is no key known here. Did you mean queue.ttl or queue_all.ttl?"),
        ("queue: {tll: 3s}\n", "queue.tll: is no key known here. Did you mean ttl?"),
        ("queue: 5\n", "queue = 5: must be a mapping"),
        ("- a\n", "the file = ['a']: must be a mapping"),
        ("mode: superfst\n", "Did you mean superfast?"),
        ("log: {format: jsn}\n", "Did you mean json?"),
    ],
)
def test_an_unknown_key_or_word_is_met_with_the_nearest(
    tmp_path: Path, text: str, told: str
) -> None:
    found = faults(tmp_path, text)
    assert len(found) == 1
    assert told in found[0]


def test_an_unknown_variable_is_a_warning_that_names_the_nearest(tmp_path: Path) -> None:
    environ = {"LIFEBOAT_LB_QUEUE_TTL_SECS": "3", "LIFEBOAT_ZZZ": "1", "OTHER": "1"}
    warnings = configure(tmp_path, ONE, environ).warnings
    assert len(warnings) == 2
    assert "did you mean LIFEBOAT_LB_QUEUE_TTL_SEC?" in warnings[0]
    assert "LIFEBOAT_ZZZ" in warnings[1]


@pytest.mark.parametrize("name", ["BOGUS", "LB_BOGUS", "LB_QUEUE_BOGUS", "UPSTREAM_X"])
def test_a_far_fetched_variable_is_named_and_not_guessed_at(tmp_path: Path, name: str) -> None:
    (warned,) = configure(tmp_path, ONE, {f"LIFEBOAT_{name}": "1"}).warnings
    said = f"environment: LIFEBOAT_{name} is no variable of Lifeboat and has no effect"
    assert warned.startswith(f"{said}; the nearest known one is LIFEBOAT_")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("PROT", "PORT"), ("LB_MODES", "LB_MODE"), ("QUEUE_TTL", "LB_QUEUE_TTL_SEC"),
     ("LB_QUEUE_ENABLE", "LB_QUEUE_ENABLED"), ("API_KEY", "API_KEYS")],
)  # fmt: skip
def test_a_near_variable_is_named(tmp_path: Path, name: str, meant: str) -> None:
    (warned,) = configure(tmp_path, ONE, {f"LIFEBOAT_{name}": "1"}).warnings
    assert warned.endswith(f": did you mean LIFEBOAT_{meant}?")


@pytest.mark.parametrize(
    ("text", "environ", "warned"),
    [
        ("mode: queue-all\n", {"LIFEBOAT_LB_QUEUE_ENABLED": "false"}, True),
        ("queue: {enabled: off}\n", {"LIFEBOAT_LB_MODE": "Queue_All"}, True),
        ("mode: queue-all\n", {}, False),
        ("mode: default\n", {"LIFEBOAT_LB_QUEUE_ENABLED": "false"}, False),
    ],
)
def test_a_disabled_queue_under_queue_all_is_a_warning(
    tmp_path: Path, text: str, environ: dict[str, str], warned: bool
) -> None:
    warnings = configure(tmp_path, ONE + text, environ).warnings
    assert [("always queues" in warning) for warning in warnings] == [True] * warned


def test_without_any_configuration_two_simulated_backends_stand_in(tmp_path: Path) -> None:
    configuration = configure(tmp_path, environ={"LIFEBOAT_LB_MODE": "superfast"})
    assert configuration.simulated_by_default
    assert [backend.name for backend in configuration.backends] == ["sim-a", "sim-b"]
    assert all(backend.embedded for backend in configuration.backends)
    assert configuration.settings.mode is Mode.SUPERFAST


def test_a_file_without_backends_is_taken_at_its_word(tmp_path: Path) -> None:
    configuration = configure(tmp_path, "mode: default\n")
    assert configuration.backends == ()
    assert not configuration.simulated_by_default
    assert "no backends" in configuration.warnings[0]


def test_the_file_may_be_named_and_must_then_be_there(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(ONE)
    by_variable = configure(tmp_path, environ={"LIFEBOAT_CONFIG": "other.yaml"})
    assert by_variable.path == by_variable.settings.config == tmp_path / "other.yaml"
    assert by_variable.settings.sources["config"] == "environment"
    assert len(faults(tmp_path, environ={"LIFEBOAT_CONFIG": "~nobody-of-that-name/x"})) == 1
    found = faults(tmp_path, flags={"config": "none.yaml"})
    assert found == ["flag: --config = 'none.yaml': is no file. Name a file that is there."]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: " + b" " * (9 << 20)])
def test_what_is_no_text_file_of_sane_size_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "backends.yaml").write_bytes(content)
    assert len(faults(tmp_path)) == 1


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "backends.yaml").write_bytes(b"\xef\xbb\xbf" + ONE.encode())
    assert configure(tmp_path).backends[0].url == "http://h:1"


# ---- secrets -------------------------------------------------------------------------------------


def test_keys_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one\ntwo\n")
    (tmp_path / "token").write_text("s3cret\n")
    environ = {"LIFEBOAT_API_KEYS_FILE": "keys"}
    settings = configure(tmp_path, f"{ONE}admin_token_file: token\n", environ).settings
    assert settings.api_keys == ("one", "two")
    assert settings.admin_token == "s3cret"
    assert settings.sources["api_keys"] == "environment"
    assert settings.sources["admin_token"] == "file"


def test_a_file_of_a_stronger_source_beats_a_value_of_a_weaker(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-flag")
    flags: dict[str, object] = {"admin_token_file": "token"}
    settings = configure(tmp_path, ONE, {"LIFEBOAT_ADMIN_TOKEN": "from-env"}, flags).settings
    assert (settings.admin_token, settings.sources["admin_token"]) == ("from-flag", "flag")


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"LIFEBOAT_API_KEYS": ""}, "is set but empty, which protects nothing"),
        ({"LIFEBOAT_ADMIN_TOKEN": "a b"}, "LIFEBOAT_ADMIN_TOKEN = (hidden): must be one key"),
        ({"LIFEBOAT_API_KEYS_FILE": "binary"}, "cannot be read: no path of a UTF-8 text"),
        ({"LIFEBOAT_API_KEYS_FILE": "none"}, "cannot be read: No such file"),
        ({"LIFEBOAT_API_KEYS_FILE": "empty"}, "LIFEBOAT_API_KEYS_FILE = (hidden): must be keys"),
        ({"LIFEBOAT_API_KEYS": "a", "LIFEBOAT_API_KEYS_FILE": "keys"}, "stands beside api_keys"),
    ],
)
def test_a_faulty_secret_stops_the_start_and_is_not_shown(
    tmp_path: Path, environ: dict[str, str], told: str
) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "keys").write_text("k")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    found = faults(tmp_path, ONE, environ)
    assert len(found) == 1
    assert told in found[0]
    assert "a b" not in found[0]


def test_no_secret_stands_in_the_settings_as_printed(tmp_path: Path) -> None:
    environ = {"LIFEBOAT_API_KEYS": "topsecret", "LIFEBOAT_ADMIN_TOKEN": "topsecret"}
    text = "backends: [{url: 'http://h:1', api_key: topsecret}]\n"
    assert "topsecret" not in repr(configure(tmp_path, text, environ))


# ---- values that only make sense together --------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"LIFEBOAT_ADMIN_ADDR": "127.0.0.1:8400"}, "is the address of the first listener"),
        ({"LIFEBOAT_STATE_FILE": "/nowhere/at/all/state"}, "lies in a folder that is not there"),
    ],
)
def test_values_that_cannot_stand_together_are_refused(
    tmp_path: Path, environ: dict[str, str], told: str
) -> None:
    found = faults(tmp_path, ONE, environ)
    assert len(found) == 1
    assert told in found[0]


def test_a_boost_that_never_comes_is_a_warning(tmp_path: Path) -> None:
    (warning,) = configure(tmp_path, f"{ONE}queue: {{ttl: 5s, boost: 5s}}\n").warnings
    assert "boosted" in warning
    assert configure(tmp_path, f"{ONE}queue: {{ttl: 1.5s}}\n").warnings == ()


def test_errors_carry_the_warnings_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors) as caught:
        configure(tmp_path, ONE, {"LIFEBOAT_PORT": "x", "LIFEBOAT_PORTS": "1"})
    assert len(caught.value.warnings) == 1
