"""The fitted weights of the quick figure, a set for each encoding.

Printed by `python -m bench.estimate CORPUS --fit` from some 3,000 samples in 110 languages, code
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
        1.389,  # rare_letter
        0.266,  # upper
        0.531,  # word
        0.342,  # digit
        1.014,  # digit_run
        0.231,  # punctuation
        0.0,  # punctuation_run
        0.02,  # newline
        0.843,  # newline_run
        3.228,  # control_run
        -0.5,  # th
        0.5,  # latin1_sign
        1.652,  # latin1_letter
        0.913,  # latin_extended
        1.943,  # phonetic
        0.864,  # greek
        0.44,  # cyrillic
        2.118,  # armenian
        0.932,  # hebrew
        0.766,  # arabic
        1.6,  # syriac
        0.988,  # devanagari
        1.257,  # bengali
        1.723,  # gurmukhi
        1.762,  # gujarati
        2.748,  # odia
        1.369,  # tamil
        1.81,  # telugu
        1.788,  # kannada
        1.639,  # malayalam
        1.906,  # sinhala
        0.873,  # thai
        2.082,  # lao
        2.0,  # e0_other
        1.039,  # vietnamese
        1.923,  # myanmar
        1.934,  # georgian
        2.606,  # ethiopic
        1.593,  # khmer
        2.683,  # e1_other
        0.6,  # symbol
        0.925,  # kana
        1.119,  # han
        0.855,  # hangul
        0.8,  # full_width
        2.835,  # astral
        1.227,  # foreign_word
    ),
    _HIGH_FACTOR,
)

O200K = Weights(
    "o200k_base",
    (
        0.12,  # vowel
        0.16,  # consonant
        1.124,  # rare_letter
        0.291,  # upper
        0.525,  # word
        0.327,  # digit
        1.142,  # digit_run
        0.294,  # punctuation
        0.0,  # punctuation_run
        0.02,  # newline
        0.689,  # newline_run
        3.198,  # control_run
        -0.5,  # th
        0.791,  # latin1_sign
        1.016,  # latin1_letter
        0.478,  # latin_extended
        1.124,  # phonetic
        0.421,  # greek
        0.351,  # cyrillic
        0.372,  # armenian
        0.45,  # hebrew
        0.442,  # arabic
        1.6,  # syriac
        0.424,  # devanagari
        0.461,  # bengali
        0.709,  # gurmukhi
        0.48,  # gujarati
        1.108,  # odia
        0.409,  # tamil
        0.476,  # telugu
        0.471,  # kannada
        0.419,  # malayalam
        0.641,  # sinhala
        0.429,  # thai
        1.896,  # lao
        2.0,  # e0_other
        0.311,  # vietnamese
        0.588,  # myanmar
        0.413,  # georgian
        2.102,  # ethiopic
        0.649,  # khmer
        3.122,  # e1_other
        0.6,  # symbol
        0.713,  # kana
        0.947,  # han
        0.724,  # hangul
        0.8,  # full_width
        2.184,  # astral
        0.24,  # foreign_word
    ),
    _HIGH_FACTOR,
)

WEIGHTS: dict[str, Weights] = {row.encoding: row for row in (CL100K, O200K)}
"""By the encoding's name."""

DEFAULT_WEIGHTS = CL100K
"""For the `quick` setting and wherever no encoding is named: the one with more tokens a text."""
