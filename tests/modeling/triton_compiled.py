"""Our Triton kernels compiled for GPUs that are not here: prints the bytes of shared memory that each needs, as JSON.

python triton_compiled.py 80 90       # compute capabilities 8.0 and 9.0; needs Triton, no GPU
"""

import json
import sys

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from clozebert.modeling.triton_kernels import ALL_KERNELS
from clozebert.modeling.window_attention import _TILES, HEAD_SIZES

FLOATS = ("log_ptr", "product_ptr", "cos_ptr", "sin_ptr")


def type_of(name: str) -> str:
    if name == "document_ptr":
        return "*i32"
    if name.endswith("_ptr"):
        return "*fp32" if name in FLOATS else "*bf16"
    return "fp32" if name.startswith("scale") else "i32"


def shared_memory(kernel: str, size: int, capability: int, *, turns: bool) -> int:
    """Compile as `window_attention` launches: strides and addresses are multiples of 16."""
    function = ALL_KERNELS[kernel]
    names, (block, step, warps, stages) = function.arg_names, _TILES[kernel]
    constants = {"WINDOW": 64, "K": size, "BLOCK": block, "STEP": step, "TURNS": turns}
    constants = {name: value for name, value in constants.items() if name in names}
    is_aligned = [
        name.endswith(("_ptr", "_token")) or (name.endswith("_head") and name != "key_head") for name in names
    ]
    source = ASTSource(
        fn=function,
        signature={name: "constexpr" if name in constants else type_of(name) for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(index,): [["tt.divisibility", 16]] for index, aligned in enumerate(is_aligned) if aligned},
    )
    options = {"num_warps": warps, "num_stages": stages}
    return compile(source, target=GPUTarget("cuda", capability, 32), options=options).metadata.shared


if __name__ == "__main__":
    found = [
        [kernel, size, turns, capability, shared_memory(kernel, size, capability, turns=turns)]
        for capability in map(int, sys.argv[1:])
        for kernel in _TILES
        for size in HEAD_SIZES
        for turns in ((False,) if kernel == "forward" else (False, True))
    ]
    print(json.dumps(found))
