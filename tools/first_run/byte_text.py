# SPDX-License-Identifier: Apache-2.0
"""The model and the text of tools/quickstart --offline, without a download: a small LLaMA configuration whose tokens
are bytes, and text that every Debian machine has. Uses Python's standard library only.

  byte_text.py gather DATA                       licences, documents and manual pages as train.npy and valid.npy
  byte_text.py model FOLDER                      a config.json; the weights are random (spillway train --init random)
  byte_text.py generate SPILLWAY FOLDER PROMPT   prints the prompt and the model's continuation
"""

import gzip
import json
import pathlib
import re
import struct
import subprocess
import sys

VOCAB_SIZE = 256
MOST_BYTES = 6 << 20
LEAST_BYTES = 128 << 10
CHUNK_BYTES = 8 << 10  # one chunk in twenty is used for validation
SOURCES = (
    ("/usr/share/common-licenses", "*"),
    ("/usr/share/doc", "*/README*"),
    ("/usr/share/man/man1", "*.gz"),
    ("/usr/share/man/man3", "*.gz"),
    ("/usr/share/man/man8", "*.gz"),
    ("/usr/share/doc", "*/copyright"),
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": VOCAB_SIZE,
    "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
    "torch_dtype": "float32",
}


def main():
    commands = {"gather": gather, "model": write_model, "generate": generate}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])


def gather(folder):
    text = bytearray()
    seen = set()
    for path in files():
        if len(text) >= MOST_BYTES:
            break
        content = read(path)
        if content and content not in seen:  # many packages share a licence
            seen.add(content)
            text += content + b"\n"
    if len(text) < LEAST_BYTES:
        sys.exit(f"tools/quickstart: only {len(text)} bytes of text were found under /usr/share; at least "
                 f"{LEAST_BYTES} are needed. apt-get install man-db, or run tools/quickstart without --offline")
    chunks = [bytes(text[begin : begin + CHUNK_BYTES]) for begin in range(0, min(len(text), MOST_BYTES), CHUNK_BYTES)]
    valid = chunks[10::20]
    train = [chunk for index, chunk in enumerate(chunks) if index % 20 != 10]
    write_data(pathlib.Path(folder), b"".join(train), b"".join(valid))
    print(f"  {len(text) / 2**20:.1f} MiB of text from {len(seen)} files", file=sys.stderr)


def files():
    for folder, pattern in SOURCES:
        yield from sorted(path for path in pathlib.Path(folder).glob(pattern) if path.is_file())


def read(path):
    """Returns the printable ASCII of a text file, without runs of blanks. Empty if it cannot be read or is not text."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, gzip.BadGzipFile):
        return b""
    text = re.sub(rb"[^\n\x20-\x7e]", b"", data.replace(b"\t", b" "))
    if len(text) < 0.9 * len(data):
        return b""
    return re.sub(rb"\n{3,}", b"\n\n", re.sub(rb" {3,}", b"  ", text)).strip()


def write_data(folder, train, valid):
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    write_npy(partial / "train.npy", train)
    write_npy(partial / "valid.npy", valid)
    (partial / "meta.json").write_text(json.dumps({"version": 1, "vocab_size": VOCAB_SIZE, "dtype": "uint16"}))
    partial.rename(folder)


def write_npy(path, text):
    """Writes a one-dimensional array of little-endian uint16 (numpy.lib.format, version 1.0)."""
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({len(text)},), }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        file.write(struct.pack(f"<{len(text)}H", *text))


def write_model(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")


def generate(spillway, folder, prompt):
    tokens = list(prompt.encode("ascii"))
    command = [spillway, "generate", "--model", folder, "--tokens", ",".join(map(str, tokens)), "--max-tokens", "120",
               "--temperature", "0.5", "--seed", "1", "--json"]
    finished = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if finished.returncode != 0:
        sys.exit(finished.returncode)
    text = tokens + json.loads(finished.stdout)["tokens"]
    print("".join(chr(byte) if byte == 10 or 32 <= byte < 127 else "." for byte in text))


if __name__ == "__main__":
    main()
