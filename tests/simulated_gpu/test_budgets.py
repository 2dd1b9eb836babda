"""What a GPU would have to do must not grow: launches and waits of four architectures, counted without a GPU."""
import pytest
import torch

from ding_grpo.model import CausalLM, PromptBatch
from tests.cases import brief
from tests.model.helper import set_way
from tools.gpu_counts import KINDS, Found, copies, copies_of_run, count, peak_of_keys, waits_of_update

# At most, with prompts of uneven lengths: see docs/results/gpu_counts.md.
BUDGETS = dict(
    llama=Found(24, 25.3, 49, 1, 46, 96, 107, 3),
    qwen3=Found(26, 27.3, 49, 1, 48, 98, 107, 3),
    gemma3_text=Found(34, 35.3, 52, 1, 56, 99, 112, 3),
    mixtral=Found(39, 40.3, 49, 3, 62, 116, 107, 5),
)


@pytest.mark.parametrize('kind', brief(BUDGETS, ['llama']))
def test_launches_and_waits(kind):
    found = count(kind, 'uneven')
    over = {name: (x, most) for name, x, most in zip(Found._fields, found, BUDGETS[kind]) if x > most}
    assert not over, f'{kind}: counted and at most'


def test_waits_of_an_update():
    most_updates, first_ones = waits_of_update()
    assert most_updates <= 10 and first_ones <= 26


def test_copies_to_the_gpu():
    """None is waited for; rows as small as these need no pinned memory."""
    found = copies('uneven') + copies_of_run()
    assert all(x.pinned == x.blocking == 0 for x in found)
    assert all(x.pageable <= most for x, most in zip(found, (22 / 32, 11, 48, 211)))


@pytest.mark.parametrize('repeat', [1, 2], ids=['one prompt', 'two'])
def test_keys_of_prompts_hold_no_queries(repeat, gpu):
    model = CausalLM(config=dict(KINDS['llama'], model_type='llama', num_hidden_layers=1)).to('cuda')
    assert model.shares_prompts
    with torch.no_grad():
        decoding = model.start(PromptBatch.of([torch.arange(9)] * 2 * repeat, torch.device('cuda')))
        packed = decoding._growing._packed[0]
        assert all(x.untyped_storage().nbytes() == x.nbytes for x in packed)


@pytest.mark.parametrize('way', ['padded', 'by_length'])
def test_lines_of_other_ways_are_not_waited_for(way, gpu):
    model = CausalLM(config=dict(KINDS['llama'], model_type='llama', num_hidden_layers=2)).to('cuda')
    set_way(model, way)
    with torch.no_grad():
        decoding = model.start(PromptBatch.of([torch.arange(9)] * 4, torch.device('cuda')))
        decoding.step(torch.zeros(4, dtype=torch.long, device='cuda'))
        gpu.counts.reset()
        decoding.keep(torch.tensor([0, 2]))
    assert gpu.counts.copies['blocking'] == 0


@pytest.mark.algotest
def test_there_is_never_a_second_set_of_keys():
    assert peak_of_keys() < 1.1
