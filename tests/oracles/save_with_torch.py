"""Save arrays of all types, views, parameters and attributes in the forms that torch has; needs torch.

python save_with_torch.py DIRECTORY ADVICE

ADVICE is a Python program that is to make renewed.bin of old.bin, which has the form before torch 1.6.
"""

import collections
import pathlib
import subprocess
import sys

import numpy as np
import torch

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
WHOLE = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool")


def arrays() -> collections.OrderedDict:
    torch.manual_seed(0)
    base, tagged = torch.randn(6, 8), torch.nn.Parameter(torch.randn(3))
    tagged.tag = 3
    found = collections.OrderedDict({name: torch.randn(4, 3).to(getattr(torch, name)) for name in FLOATS})
    found |= {name: torch.arange(5).to(getattr(torch, name)) for name in WHOLE}
    found |= {"whole": base, "rows": base[1:4], "transposed": base.t(), "columns": base[:, 2:5], "same": base}
    found |= {"strided": base[::2, ::3], "permuted": torch.randn(2, 3, 4).permute(2, 0, 1)}
    found |= {"expanded": torch.ones(1, 3).expand(4, 3), "scalar": torch.tensor(3.5), "none": torch.zeros(0, 4)}
    found |= {
        "halves": torch.randn(4, 6).bfloat16()[1:, ::2],
        "parameter": torch.nn.Parameter(base[0]),
        "tagged": tagged,
    }
    found._metadata = collections.OrderedDict({"": {"version": 1}})
    return found


def main(directory: pathlib.Path, advice: str) -> None:
    state = arrays()
    np.savez(directory / "expected.npz", **{name: value.detach().float().numpy() for name, value in state.items()})
    for protocol in (2, 3, 4, 5):
        torch.save(state, directory / f"protocol{protocol}.bin", pickle_protocol=protocol)
    torch.save(dict(state), directory / "dict.bin")
    usual = {name: value for name, value in state.items() if not name.startswith(("uint", "float8")) or name == "uint8"}
    torch.save(usual, directory / "old.bin", _use_new_zipfile_serialization=False)
    subprocess.run([sys.executable, "-c", advice], check=True, cwd=directory)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2])
