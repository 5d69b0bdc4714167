"""The fitted weights of the quick figure, a set for each encoding.

Printed by `python -m bench.estimate CORPUS --fit` from some 3,000 samples in 110 languages, code
and encodings (bench/estimate_corpus.py); docs/explanation/estimate.md has the errors. Refit when
the features of `textsize` change; do not tune by hand.
"""

from __future__ import annotations

from lifeboat.core.textsize import Weights

_HIGH_FACTOR = 1.7
"""The worst plausible held-out sample counted 1 / 0.61 of its figure, the worst of the made-up
families less; rounded up."""

CL100K = Weights(
    "cl100k_base",
    (
        0.124,  # vowel
        0.16,  # consonant
        1.414,  # rare_letter
        0.216,  # upper
        0.585,  # word
        0.3,  # digit
        1.317,  # digit_run
        0.238,  # punctuation
        0.0,  # punctuation_run
        0.02,  # newline
        0.518,  # newline_run
        3.222,  # control_run
        -0.3,  # th
        0.5,  # latin1_sign
        1.459,  # latin1_letter
        1.023,  # latin_extended
        1.988,  # phonetic
        0.878,  # greek
        0.466,  # cyrillic
        2.126,  # armenian
        0.965,  # hebrew
        0.788,  # arabic
        1.6,  # syriac
        1.014,  # devanagari
        1.289,  # bengali
        1.748,  # gurmukhi
        1.771,  # gujarati
        2.768,  # odia
        1.384,  # tamil
        1.813,  # telugu
        1.819,  # kannada
        1.659,  # malayalam
        1.927,  # sinhala
        0.892,  # thai
        2.091,  # lao
        2.0,  # e0_other
        1.106,  # vietnamese
        1.941,  # myanmar
        1.957,  # georgian
        2.66,  # ethiopic
        1.6,  # khmer
        2.632,  # e1_other
        0.6,  # symbol
        0.978,  # kana
        1.074,  # han
        0.924,  # hangul
        1.262,  # full_width
        2.834,  # astral
        1.168,  # foreign_word
    ),
    _HIGH_FACTOR,
)

O200K = Weights(
    "o200k_base",
    (
        0.12,  # vowel
        0.218,  # consonant
        1.121,  # rare_letter
        0.274,  # upper
        0.412,  # word
        0.292,  # digit
        1.361,  # digit_run
        0.308,  # punctuation
        0.0,  # punctuation_run
        0.02,  # newline
        0.418,  # newline_run
        3.173,  # control_run
        -0.3,  # th
        0.5,  # latin1_sign
        0.853,  # latin1_letter
        0.576,  # latin_extended
        1.236,  # phonetic
        0.39,  # greek
        0.337,  # cyrillic
        0.369,  # armenian
        0.423,  # hebrew
        0.41,  # arabic
        1.6,  # syriac
        0.392,  # devanagari
        0.442,  # bengali
        0.673,  # gurmukhi
        0.431,  # gujarati
        1.073,  # odia
        0.373,  # tamil
        0.447,  # telugu
        0.459,  # kannada
        0.417,  # malayalam
        0.643,  # sinhala
        0.431,  # thai
        1.883,  # lao
        2.0,  # e0_other
        0.454,  # vietnamese
        0.59,  # myanmar
        0.393,  # georgian
        2.072,  # ethiopic
        0.656,  # khmer
        3.004,  # e1_other
        0.6,  # symbol
        0.702,  # kana
        0.901,  # han
        0.678,  # hangul
        0.897,  # full_width
        2.183,  # astral
        0.455,  # foreign_word
    ),
    _HIGH_FACTOR,
)

WEIGHTS: dict[str, Weights] = {row.encoding: row for row in (CL100K, O200K)}
"""By the encoding's name."""

DEFAULT_WEIGHTS = CL100K
"""For the `quick` setting and wherever no encoding is named: the one with more tokens a text."""
