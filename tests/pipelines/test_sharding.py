"""Processes that divide a model by FSDP2 (``policy.shard``) make the run of one process with the whole model."""
import pytest
import torch

from ding_grpo.model import CausalLM

from tests.processes import connected
from tests.sharded import learn_all
from tests.shipped import load

SHAPE = dict(hidden_size=32, intermediate_size=64)
LEARN = dict(batch_size=3, epoch_per_collect=1, micro_batch_tokens=35)


def case(name, model={}, learn={}, collect={}, updates=5, **more):
    policy = dict(
        group_size=4,
        model=dict(config=dict(SHAPE, **model)),
        learn=dict(LEARN, **learn),
        collect=dict(n_sample=6, **collect)
    )
    return dict(dict(name=name, policy=policy, updates=updates), **more)


CASES = [
    case('sgd_tied', dict(tie_word_embeddings=True), dict(learning_rate=0.1), updates=20, sgd=True),
    case('adamw_untied_top_k', dict(tie_word_embeddings=False), collect=dict(top_k=7), updates=20),
    case('reference', learn=dict(beta=0.1, ref_sync_freq=3, ref_sync_mixup=0.5, epoch_per_collect=2)),
    case('empty_share', learn=dict(batch_size=1), failed=3),  # one row in each mini-batch
]


def adapters(folder):
    """A case with LoRA, and its base model in a folder."""
    model = dict(load('think_answer_grpo')[0].policy.model.config, **SHAPE)
    torch.manual_seed(1)
    CausalLM(config=model).save_pretrained(str(folder / 'base'))
    found = case('lora', learn=dict(beta=0.1))
    found['policy']['model'] = dict(pretrained=str(folder / 'base'), lora=dict(r=4))
    return found


def distance(a, b):
    """The largest distance of two weights, relative to their size."""
    return max(((a[name] - b[name]).norm() / a[name].norm().clamp(min=1e-9)).item() for name in a)


def learned(folder, cases, processes):
    """What each process finds of each case, by name."""
    ended = [p.end() for p in connected(learn_all, cases, [folder / str(rank) for rank in range(processes)])]
    assert all(code == 0 for code, _ in ended), ended[0][1] + ended[-1][1]
    return {
        c['name']: [torch.load(folder / str(rank) / f"{c['name']}_{rank}.pt") for rank in range(processes)]
        for c in cases
    }


@pytest.fixture(scope='class', params=[2, pytest.param(4, marks=pytest.mark.algotest)])
def found(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp('sharding')
    cases = [*CASES, adapters(folder)]
    one, many = learned(folder / 'one', cases, 1), learned(folder / 'many', cases, request.param)
    return {name: (one[name][0], many[name]) for name in one}


@pytest.mark.envtest
class TestLearning:

    @pytest.mark.parametrize('name', ['sgd_tied', 'adamw_untied_top_k', 'reference', 'empty_share', 'lora'])
    def test_the_weights_of_one_process(self, found, name):
        one, many = found[name]
        assert distance(one['start'], one['end']) > 1e-3  # it learns
        for other in many:
            assert torch.equal(one['start']['lm.model.norm.weight'], other['start']['lm.model.norm.weight'])
            assert distance(one['end'], other['end']) < (1e-6 if 'sgd' in name else 1e-5)

    @pytest.mark.parametrize('name', ['sgd_tied', 'empty_share'])
    def test_a_process_with_fewer_parts_keeps_step(self, found, name):
        assert sum(other['added'] for other in found[name][1]) > 0

    def test_no_process_has_all_of_a_gradient_or_of_the_optimizer(self, found):
        one, many = found['adamw_untied_top_k']
        total = sum(one['sizes'])
        for kind, copies in (('weights', 1), ('gradients', 1), ('moments', 2)):
            held = [sum(other['kept'][kind]) for other in many]
            assert sum(held) == copies * total == sum(one['kept'][kind])
            assert max(held) < copies * total / len(many) * 1.1  # uneven matrices

    @pytest.mark.parametrize('name', ['adamw_untied_top_k', 'lora'])
    def test_samples_from_the_weights_of_the_last_update(self, found, name):
        for other in found[name][1]:
            assert all(torch.equal(other['sampled'][key], value) for key, value in other['end'].items())
