"""Executes notebooks in an empty folder each, and writes their outputs: python tools/notebooks.py notebooks/*.ipynb."""
import sys
import tempfile

import nbformat
from nbclient import NotebookClient


def executed(path: str, folder: str) -> nbformat.NotebookNode:
    """
    Overview:
        A notebook with new outputs, in which each stream of a cell is one output.
    Arguments:
        - path (:obj:`str`): The notebook, which is not changed.
        - folder (:obj:`str`): The current folder of its cells.
    Returns:
        - notebook (:obj:`nbformat.NotebookNode`): The notebook with its outputs.
    Raises:
        - CellExecutionError: A cell has failed.
    """
    notebook = nbformat.read(path, 4)
    resources = dict(metadata=dict(path=folder))
    NotebookClient(notebook, timeout=1800, resources=resources, coalesce_streams=True, record_timing=False).execute()
    return notebook


if __name__ == '__main__':
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as empty:
            nbformat.write(executed(name, empty), name)
