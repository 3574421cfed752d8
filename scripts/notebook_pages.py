"""Makes a page of the site from each notebook of docs/, with the outputs that are stored in it. Nothing is executed.

It is a hook of mkdocs, which mkdocs.yml names, so `make docs` runs it. Links to NAME.ipynb lead to the page on the
site, and to the notebook everywhere else.
"""

import json
import pathlib
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

LINK = re.compile(r"(\]\([\w/]+)\.ipynb\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each notebook; the notebook itself stays, to be downloaded."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        cells = json.loads(notebook.content_string)["cells"]
        download = f'\n\n<a href="{pathlib.PurePath(notebook.src_uri).name}" download>Download this notebook</a>\n'
        page = notebook.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, page, content="\n\n".join(map(_cell, cells)) + download))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Let links to notebooks lead to their pages."""
    return LINK.sub(r"\1.md)", markdown)


def _cell(cell: dict) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([_block(source, "python"), *map(_output, cell["outputs"])])


def _output(output: dict) -> str:
    """Return the richest form of an output that a page can show."""
    if output["output_type"] == "stream":
        return _block("".join(output["text"]), "text")
    data = {kind: "".join(content) for kind, content in output["data"].items()}
    if "image/png" in data:
        return f'<img alt="" src="data:image/png;base64,{data["image/png"].strip()}">'
    for kind in ("text/html", "text/markdown"):
        if kind in data:
            return data[kind]
    return _block(data["text/plain"], "text")


def _block(text: str, language: str) -> str:
    return f"~~~~{language}\n{text.rstrip()}\n~~~~"
