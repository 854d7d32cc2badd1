"""Random blocks of every GGML format and what gguf-py's dequantize makes of them: ggml_blocks.json.

Each format gets 2 rows of 512 elements. The bytes are random except for the f16 scales, which are drawn from normal,
subnormal and negative numbers (no infinity, no NaN). "bits" are the float32 bit patterns of the result.
Usage: python make_ggml_blocks.py > ggml_blocks.json   (gguf 0.19.0, numpy 2)
"""
import json

import gguf
import numpy as np

ROWS, K = 2, 512
# Where the f16 numbers of a block lie, in bytes.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
rng = np.random.default_rng(2024)
out = {"about": "gguf-py 0.19.0 quants.dequantize, see make_ggml_blocks.py", "rows": ROWS, "K": K, "formats": {}}
for name, halves in HALVES.items():
    kind = gguf.GGMLQuantizationType[name]
    elems, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS * K // elems, size), dtype=np.uint8)
    for at in halves:
        d = rng.normal(0, 0.05, len(blocks)).astype(np.float16)
        d[0] = np.float16(3e-7)   # subnormal
        d[-1] = np.float16(-1.5)
        blocks[:, at:at + 2] = d.view(np.uint8).reshape(-1, 2)
    values = gguf.quants.dequantize(blocks.reshape(ROWS, -1), kind).astype("<f4")
    assert values.shape == (ROWS, K) and np.isfinite(values).all()
    out["formats"][name] = {"bytes": blocks.tobytes().hex(), "bits": values.tobytes().hex()}
print(json.dumps(out, indent=1))
