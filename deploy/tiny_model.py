"""Makes a tiny model with random weights, for a vLLM server that needs no download.

What it says is noise; its server behaves like any other. Runs in .venv-vllm.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 2048
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate(["<s>", "</s>", *alphabet])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    made.chat_template = CHAT_TEMPLATE
    return made


def main() -> None:
    """Write the model into the directory that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    words = tokenizer()
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32,
        max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(7)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    words.save_pretrained(directory)


if __name__ == "__main__":
    main()
