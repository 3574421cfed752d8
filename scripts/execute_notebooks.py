"""Executes notebooks and writes their outputs into them.

    cd docs && python ../scripts/execute_notebooks.py MODEL NOTEBOOK…     # ../runs/demo *.ipynb

MODEL: what the notebooks load, as seen from the directory that they lie in; relative, because outputs name it. Without
an accelerator, whatever the machine has. Needs the requirements of the tests.
"""

import os
import pathlib
import sys
import tempfile

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(file: pathlib.Path, model: str, timeout: float = 600) -> nbformat.NotebookNode:
    """The notebook with the outputs of this execution, in the directory of `file`, which stays as it is.

    Raises:
      CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(file, as_version=4)
    # No installed kernel is looked for: the one that is left is the interpreter that runs this.
    kernels = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
    client = NotebookClient(
        notebook, km=kernels, timeout=timeout, record_timing=False, resources={"metadata": {"path": str(file.parent)}}
    )
    with tempfile.TemporaryDirectory() as settings:  # a user's own IPython start-up files stay out of it
        own = {"BERT_JAX_MODEL": model, "JAX_PLATFORMS": "cpu", "IPYTHONDIR": settings}
        client.execute(cleanup_kc=True, env={**os.environ, **own})
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


def main(model: str, *files: str) -> None:
    for file in map(pathlib.Path, files):
        nbformat.write(execute(file.resolve(), model), file)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
