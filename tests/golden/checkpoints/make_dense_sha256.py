"""SHA-256 of every matrix of the dense checkpoints beside this file, as float32, little-endian, [out, in].

Independent of nano: the safetensors container is read with the safetensors package, bfloat16 is widened by
shifting. Usage: python make_dense_sha256.py > dense_sha256.json  (numpy 2, safetensors 0.5 or later)
"""
import hashlib
import json
import pathlib

import numpy as np
from safetensors import deserialize

here = pathlib.Path(__file__).parent
out = {}
for name in ("llama-bf16", "qwen2-bf16", "qwen3-bf16", "gemma3-bf16", "llama-fp32", "gemma3-fp32-sharded",
             "mistral-bf16", "smollm3-bf16"):
    sums = {}
    for file in sorted((here / name).glob("*.safetensors")):
        for tensor, info in deserialize(file.read_bytes()):
            if info["dtype"] == "BF16":
                x = (np.frombuffer(info["data"], "<u2").astype("<u4") << 16).view("<f4")
            else:
                assert info["dtype"] == "F32"
                x = np.frombuffer(info["data"], "<f4")
            sums[tensor] = hashlib.sha256(x.tobytes()).hexdigest()
    out[name] = dict(sorted(sums.items()))
print(json.dumps(out, indent=1))
