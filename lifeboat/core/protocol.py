"""The request protocols that Lifeboat understands, and where each carries its input.

One table: protocol -> field -> what the field is. The endpoints table names a protocol per path;
`shape` reads bodies by this table; fields that are not listed never reach a prompt and weigh
nothing. Sources: the OpenAI, Anthropic, Cohere/Jina rerank, vLLM and llama.cpp request schemas.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto


class Protocol(StrEnum):
    """What a request body means."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    LLAMA_COMPLETION = "llama_completion"
    LLAMA_EMBEDDING = "llama_embedding"
    INFILL = "infill"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    APPLY_TEMPLATE = "apply_template"
    IMAGE = "image"
    SPEECH = "speech"
    VIDEO = "video"
    TRANSCRIPTION = "transcription"


class Role(Enum):
    """How the value of a field is read."""

    MESSAGES = auto()
    """A list of messages, each with the template's allowance."""
    CONTENT = auto()
    """A string, or parts, blocks or items at any depth: text, tool calls, media."""
    SCHEMA = auto()
    """JSON that is printed into the prompt: keys, punctuation and all."""
    FORMAT = auto()
    """An output format, of which only the schema is printed."""
    PROMPTS = auto()
    """One prompt or a batch: string, ids, list of strings, list of ids, mixed."""
    SHARED = auto()
    """Text that every sequence of the batch repeats (the query of a rerank)."""
    PAIRED = auto()
    """The left side of score pairs: one text for all, or one per right side."""


_CHAT = {
    "messages": Role.MESSAGES,
    "tools": Role.SCHEMA,
    "functions": Role.SCHEMA,
    "response_format": Role.FORMAT,
    "documents": Role.CONTENT,
}

INPUT_FIELDS: dict[Protocol, dict[str, Role]] = {
    Protocol.CHAT: _CHAT,
    Protocol.APPLY_TEMPLATE: _CHAT,
    Protocol.COMPLETIONS: {"prompt": Role.PROMPTS, "suffix": Role.SHARED},
    Protocol.RESPONSES: {
        "input": Role.MESSAGES,
        "instructions": Role.CONTENT,
        "prompt": Role.CONTENT,
        "tools": Role.SCHEMA,
        "text": Role.FORMAT,
    },
    Protocol.MESSAGES: {
        "system": Role.CONTENT,
        "messages": Role.MESSAGES,
        "tools": Role.SCHEMA,
        "output_format": Role.FORMAT,
        "output_config": Role.FORMAT,
    },
    Protocol.EMBEDDINGS: {"input": Role.PROMPTS, "messages": Role.MESSAGES},
    Protocol.RERANK: {"query": Role.SHARED, "documents": Role.PROMPTS, "texts": Role.PROMPTS},
    Protocol.SCORE: {
        "text_1": Role.PAIRED,
        "text_2": Role.PROMPTS,
        "queries": Role.PAIRED,
        "query": Role.PAIRED,
        "documents": Role.PROMPTS,
        "items": Role.PROMPTS,
    },
    Protocol.LLAMA_COMPLETION: {"prompt": Role.PROMPTS},
    Protocol.LLAMA_EMBEDDING: {"content": Role.PROMPTS, "input": Role.PROMPTS},
    Protocol.INFILL: {
        "input_prefix": Role.CONTENT,
        "input_suffix": Role.CONTENT,
        "input_extra": Role.CONTENT,
        "prompt": Role.CONTENT,
    },
    Protocol.TOKENIZE: {
        "content": Role.CONTENT, "prompt": Role.CONTENT, "messages": Role.MESSAGES,
        "tools": Role.SCHEMA,
    },
    Protocol.DETOKENIZE: {"tokens": Role.PROMPTS},
    Protocol.IMAGE: {"prompt": Role.CONTENT, "negative_prompt": Role.CONTENT},
    Protocol.SPEECH: {"input": Role.CONTENT, "instructions": Role.CONTENT},
    Protocol.VIDEO: {"prompt": Role.CONTENT, "input_reference": Role.CONTENT},
    Protocol.TRANSCRIPTION: {"prompt": Role.CONTENT},
}  # fmt: skip
