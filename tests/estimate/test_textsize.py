"""The quick figure of a text: proved below, bounded above, linear."""

# ruff: noqa: E501, RUF001 - prose in other scripts
from __future__ import annotations

import base64
import inspect
import json.decoder
import json.encoder
import random
import string
import time
from pydoc_data.topics import topics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiktoken import Encoding

from bench import estimate_corpus
from lifeboat.core.textsize import FEATURES, NO_TEXT, count_features, size_text
from lifeboat.core.weights import DEFAULT_WEIGHTS, WEIGHTS
from lifeboat.counting import load_encoding

ENCODINGS: dict[str, Encoding] = {name: load_encoding(name) for name in WEIGHTS}

words = st.lists(st.text(string.ascii_letters + "'éà", max_size=12)).map(" ".join)
mixed = st.lists(
    st.sampled_from(
        ["don't", " 's", "'", "123456", "—.—", "　", "the ", "\n", "好", "a", "  ", "=="]
    )
).map("".join)


@pytest.mark.parametrize("name", WEIGHTS)
@given(text=st.text() | words | mixed | st.text(string.printable))
def test_the_true_count_lies_within_the_bounds(name: str, text: str) -> None:
    size = size_text(text, WEIGHTS[name])
    true = len(ENCODINGS[name].encode_ordinary(text))
    assert size.low <= max(true, 0) <= size.high, (size, true)


@pytest.mark.parametrize("text", [" don't", " it's", " I'm", " don't" * 100])
def test_a_contraction_that_is_one_token_breaks_no_minimum(text: str) -> None:
    for name, weights in WEIGHTS.items():
        true = len(ENCODINGS[name].encode_ordinary(text))
        assert size_text(text, weights).low <= true, name


@pytest.mark.parametrize("name", WEIGHTS)
def test_text_made_to_mislead_stays_within_the_bounds(name: str) -> None:
    rows = estimate_corpus.hostile(random.Random(3)) + estimate_corpus.synthetic(
        random.Random(4), 2
    )
    for family, text in rows:
        size = size_text(text, WEIGHTS[name])
        true = len(ENCODINGS[name].encode_ordinary(text))
        assert size.low <= true <= size.high, (family, size, true)


CHINESE = (
    "路由器收到请求以后，先看它要用哪一个模型，再看哪一台服务器还有空位。如果所有的服务器都在忙，请求就会排队等待，"
    "直到有位置空出来，或者等待的时间超过了上限。管理员可以随时调整每台服务器的并发数，新的限制马上生效，已经在运行的请求不受影响。"
    "我们建议先观察一段时间的实际负载，然后再决定要不要增加机器。今天天气很好，适合出去散步，也适合写一点文档。"
)
RUSSIAN = (
    "Маршрутизатор получает запрос, определяет нужную модель и выбирает сервер, у которого есть свободное место. "
    "Если все серверы заняты, запрос ждёт своей очереди, пока не освободится место или не истечёт время ожидания. "
    "Администратор может изменить ограничение в любое время, и новое значение начинает действовать сразу."
)


@pytest.mark.parametrize(
    "text",
    [
        topics["with"] + topics["import"] + topics["class"],
        inspect.getsource(json.decoder) + inspect.getsource(json.encoder),
        CHINESE,
        RUSSIAN,
        "1\n" * 30_000,
        base64.b64encode(random.Random(5).randbytes(6_000)).decode(),
        ", ".join(str(number * 7_919 % 100_003) for number in range(2_000)),
    ],
    ids=["English", "Python", "Chinese", "Russian", "one digit a line", "base64", "numbers"],
)
@pytest.mark.parametrize("name", WEIGHTS)
def test_the_figure_is_near_the_count_for_what_is_really_sent(name: str, text: str) -> None:
    true = len(ENCODINGS[name].encode_ordinary(text))
    # Wider than the held-out spread (0.72 to 1.25 for 98 of 100): these plain paragraphs are from
    # outside the corpus, and the Russian one comes out at 1.28 and 1.35, the Chinese at 1.33.
    assert 0.72 <= size_text(text, WEIGHTS[name]).tokens / true <= 1.4


def test_the_empty_text_is_nothing_and_a_lone_surrogate_is_something() -> None:
    assert size_text("", DEFAULT_WEIGHTS) == NO_TEXT
    assert size_text("\ud83d", DEFAULT_WEIGHTS).tokens >= 1


def test_every_feature_has_a_weight_and_ascii_text_counts_only_its_part() -> None:
    for weights in WEIGHTS.values():
        assert len(weights.by_feature) == len(FEATURES)
    assert len(count_features("any text é").by_feature) == len(FEATURES)
    assert len(count_features("any text").by_feature) < len(FEATURES)


def test_sizing_is_linear_in_the_text() -> None:
    def cost(text: str) -> float:
        best = 1e9
        for _ in range(3):
            began = time.process_time()
            size_text(text, DEFAULT_WEIGHTS)
            best = min(best, time.process_time() - began)
        return best

    for piece in ("hello world ", "好", "^", "\n", "[],"):
        small, large = piece * 50_000, piece * 400_000
        assert cost(large) < 8 * 3 * cost(small) + 0.005, piece
