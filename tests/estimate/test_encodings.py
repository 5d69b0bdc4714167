"""The vocabulary files are what tiktoken would have fetched, and nothing is fetched."""

from __future__ import annotations

import gzip
import hashlib
import socket
from importlib.resources import files

import pytest

from lifeboat.core.weights import WEIGHTS
from lifeboat.counting import ENCODING_NAMES, load_encoding

SHA256 = {
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}
"""As tiktoken's own registry expects them (openai_public.py)."""


@pytest.mark.parametrize("name", ENCODING_NAMES)
def test_the_ranks_are_tiktokens_own(name: str) -> None:
    packed = files("lifeboat.counting").joinpath("vocabulary", f"{name}.tiktoken.gz").read_bytes()
    assert hashlib.sha256(gzip.decompress(packed)).hexdigest() == SHA256[name]
    assert name in WEIGHTS


@pytest.mark.parametrize(
    ("name", "ids"),
    [("cl100k_base", [15339, 1917]), ("o200k_base", [24912, 2375])],
)
def test_loading_reaches_no_network(
    name: str, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was tried")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert load_encoding(name).encode_ordinary("hello world") == ids


def test_text_that_looks_like_a_special_token_is_text() -> None:
    encoding = load_encoding("cl100k_base")
    assert len(encoding.encode_ordinary("compare <|endoftext|> and <|im_start|>")) > 8


def test_an_unknown_encoding_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        load_encoding("p50k_base")
