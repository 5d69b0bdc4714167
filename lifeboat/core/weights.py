"""The fitted weights of the quick figure, a set for each encoding.

Printed by `python -m bench.estimate CORPUS --fit` from 3,134 samples under 144 locale codes, code
and encodings (bench/estimate_corpus.py); docs/explanation/estimate.md has the errors. Refit when
the features of `textsize` change; do not tune by hand.
"""

from __future__ import annotations

from lifeboat.core.textsize import Weights

_HIGH_FACTOR = 2.0
"""The worst plausible family, words of random letters as frequent as in English, counts 1.8 times
its figure; the worst natural sample 1.6 times."""

CL100K = Weights(
    "cl100k_base",
    (
        0.12,  # vowel
        0.16,  # consonant
        1.383,  # rare_letter
        0.275,  # upper
        0.541,  # word
        0.346,  # digit
        1.005,  # digit_run
        0.225,  # punctuation
        0.0,  # punctuation_run
        0.031,  # newline
        0.849,  # newline_run
        3.178,  # control_run
        -0.5,  # th
        0.5,  # latin1_sign
        1.641,  # latin1_letter
        0.952,  # latin_extended
        2.047,  # phonetic
        0.917,  # greek
        0.425,  # cyrillic
        3.601,  # cyrillic_extended
        2.164,  # armenian
        1.009,  # hebrew
        0.831,  # arabic
        1.6,  # syriac
        1.045,  # devanagari
        1.317,  # bengali
        1.797,  # gurmukhi
        1.824,  # gujarati
        2.808,  # odia
        1.414,  # tamil
        1.861,  # telugu
        1.844,  # kannada
        1.683,  # malayalam
        1.974,  # sinhala
        0.904,  # thai
        2.119,  # lao
        2.0,  # e0_other
        1.099,  # vietnamese
        1.96,  # myanmar
        1.984,  # georgian
        2.7,  # ethiopic
        1.622,  # khmer
        2.765,  # e1_other
        0.6,  # symbol
        0.951,  # kana
        1.162,  # han
        0.943,  # hangul
        0.8,  # full_width
        2.835,  # astral
        0.901,  # foreign_word
    ),
    _HIGH_FACTOR,
)

O200K = Weights(
    "o200k_base",
    (
        0.12,  # vowel
        0.163,  # consonant
        1.124,  # rare_letter
        0.293,  # upper
        0.521,  # word
        0.327,  # digit
        1.165,  # digit_run
        0.287,  # punctuation
        0.0,  # punctuation_run
        0.087,  # newline
        0.627,  # newline_run
        3.209,  # control_run
        -0.5,  # th
        0.5,  # latin1_sign
        0.948,  # latin1_letter
        0.499,  # latin_extended
        1.183,  # phonetic
        0.431,  # greek
        0.333,  # cyrillic
        1.213,  # cyrillic_extended
        0.38,  # armenian
        0.464,  # hebrew
        0.458,  # arabic
        1.6,  # syriac
        0.428,  # devanagari
        0.473,  # bengali
        0.722,  # gurmukhi
        0.49,  # gujarati
        1.118,  # odia
        0.417,  # tamil
        0.485,  # telugu
        0.481,  # kannada
        0.426,  # malayalam
        0.653,  # sinhala
        0.434,  # thai
        1.902,  # lao
        2.0,  # e0_other
        0.349,  # vietnamese
        0.595,  # myanmar
        0.422,  # georgian
        2.119,  # ethiopic
        0.656,  # khmer
        3.138,  # e1_other
        0.6,  # symbol
        0.718,  # kana
        0.938,  # han
        0.725,  # hangul
        0.8,  # full_width
        2.184,  # astral
        0.179,  # foreign_word
    ),
    _HIGH_FACTOR,
)

WEIGHTS: dict[str, Weights] = {row.encoding: row for row in (CL100K, O200K)}
"""By the encoding's name."""

DEFAULT_WEIGHTS = CL100K
"""For the `quick` setting and wherever no encoding is named: the one with more tokens a text."""
