"""A language model of 100 kB with random weights, in the file format that llama.cpp loads: what it says is noise.

Source: the GGUF specification in ggml's docs/gguf.md, version 3; tensor names of llama.cpp's "llama" architecture.
"""

import random
import struct
from pathlib import Path
from typing import Any

WIDTH, HEADS, HIDDEN, ALIGN = 64, 2, 64, 32
UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
KINDS = [UNKNOWN, CONTROL, CONTROL, *([BYTE] * 256), NORMAL]


def write_tiny_gguf(path: Path, seed: int = 0) -> Path:
    """Write the file."""
    dice = random.Random(seed)
    tensors = {
        name: (shape, struct.pack(f"<{_count(shape)}f", *(dice.gauss(mean, 0.1) for _ in range(_count(shape)))))
        for name, shape, mean in _list_tensors()
    }
    facts = _list_facts()
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(facts))
    head += b"".join(_pack_text(key) + _pack_value(kind, value) for key, kind, value in facts)
    offset = 0
    for name, (shape, data) in tensors.items():
        head += _pack_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
        offset += len(data) + -len(data) % ALIGN
    body = b"".join(data + b"\0" * (-len(data) % ALIGN) for _, data in tensors.values())
    path.write_bytes(head + b"\0" * (-len(head) % ALIGN) + body)
    return path


def _list_tensors() -> list[tuple[str, tuple[int, ...], float]]:
    square = (WIDTH, WIDTH)
    named = {f"blk.0.attn_{name}.weight": square for name in ("q", "k", "v", "output")}
    named |= {f"blk.0.ffn_{name}.weight": (WIDTH, HIDDEN) for name in ("gate", "up")}
    named |= {"blk.0.ffn_down.weight": (HIDDEN, WIDTH), "token_embd.weight": (WIDTH, len(TOKENS))}
    norms = ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight")
    return [*((name, shape, 0.0) for name, shape in named.items()), *((name, (WIDTH,), 1.0) for name in norms)]


def _list_facts() -> list[tuple[str, int, Any]]:
    return [
        ("general.architecture", STRING, "llama"),
        ("general.name", STRING, "tiny"),
        ("llama.context_length", UINT32, 2048),
        ("llama.embedding_length", UINT32, WIDTH),
        ("llama.block_count", UINT32, 1),
        ("llama.feed_forward_length", UINT32, HIDDEN),
        ("llama.attention.head_count", UINT32, HEADS),
        ("llama.attention.head_count_kv", UINT32, HEADS),
        ("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        ("llama.rope.dimension_count", UINT32, WIDTH // HEADS),
        ("tokenizer.ggml.model", STRING, "llama"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, TOKENS)),
        ("tokenizer.ggml.scores", ARRAY, (FLOAT32, [0.0] * len(TOKENS))),
        ("tokenizer.ggml.token_type", ARRAY, (INT32, KINDS)),
        ("tokenizer.ggml.bos_token_id", UINT32, 1),
        ("tokenizer.ggml.eos_token_id", UINT32, 2),
        ("tokenizer.ggml.unknown_token_id", UINT32, 0),
    ]


def _pack_value(kind: int, value: Any) -> bytes:
    if kind == ARRAY:
        item, values = value
        packed = b"".join(_pack_bare(item, one) for one in values)
        return struct.pack("<IIQ", ARRAY, item, len(values)) + packed
    return struct.pack("<I", kind) + _pack_bare(kind, value)


def _pack_bare(kind: int, value: Any) -> bytes:
    forms = {UINT32: "<I", INT32: "<i", FLOAT32: "<f"}
    return _pack_text(value) if kind == STRING else struct.pack(forms[kind], value)


def _pack_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
