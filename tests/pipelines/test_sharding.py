"""Processes that divide a model by FSDP2 (``policy.shard``) make the run of one process with the whole model."""
import signal

import pytest
import torch
from ding.utils import deep_merge_dicts
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from transformers import AutoModelForCausalLM

from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.run.checkpoint import read_checkpoint
from tests.pipelines.test_processes import BUFFER, Run
from tests.processes import connected, run_ding
from tests.runs import evaluated
from tests.sharded import learn_all, measure_all
from tests.shipped import load

SHAPE = dict(hidden_size=32, intermediate_size=64)
LEARN = dict(batch_groups=3, epoch_per_collect=1, micro_batch_tokens=35)


def case(name, model={}, learn={}, collect={}, options={}, updates=5, **more):
    """Updates of a small policy; ``options`` are keys of ``policy.model`` beside its config."""
    policy = dict(
        group_size=4,
        model=dict(options, config=dict(SHAPE, **model)),
        learn=dict(LEARN, **learn),
        collect=dict(groups=6, **collect),
        **more.pop('policy', {})
    )
    return dict(name=name, policy=policy, updates=updates, **more)


SGD = dict(learn=dict(learning_rate=0.1, kl=dict(beta=0.1)), sgd=True)
# Options that gather over all rows, stop epochs, or read the model once more.
OPTIONS = [
    case('optimal_token_baseline', learn=dict(adv_method='optimal_token_baseline')),
    case('top_entropy', learn=dict(entropy=dict(top_share=0.2, weight=0.01))),
    case('target_kl', learn=dict(target_kl=1e-5, epoch_per_collect=4, learning_rate=1e-3)),
    case('kl_in_reward', learn=dict(kl=dict(in_reward=True, type='k1', beta=0.1, target=1e-3))),
    case('off_policy', learn=dict(epoch_per_collect=2, off_policy=dict(correction='token', mask=0.1))),
]
CASES = [
    case('sgd_tied', dict(tie_word_embeddings=True), dict(learning_rate=0.1), updates=20, sgd=True),
    case('adamw_untied_top_k', dict(tie_word_embeddings=False), collect=dict(top_k=7), updates=20),
    case('reference', learn=dict(epoch_per_collect=2, kl=dict(beta=0.1, ref_sync_freq=3, ref_sync_mixup=0.5))),
    case('checkpointed', options=dict(gradient_checkpointing=True), updates=2),
    case('empty_share', learn=dict(batch_groups=1), failed=3),  # one row in each mini-batch
    case('sgd_sampled_by_autocast', collect=dict(autocast='bfloat16'), **SGD),
    case('autocast', options=dict(autocast='bfloat16'), policy=dict(eval=dict(autocast=False)), **SGD),
    *OPTIONS,
    case('bfloat16', learn=dict(learning_rate=1e-3), options=dict(dtype='bfloat16')),
]
# In every run of the tests; the others among the long checks.
SHORT = ('sgd_tied', 'empty_share', 'lora', 'autocast')
# Many layers, so that the few that are whole at a time are a small share. Few tokens, so that activations are.
DEEP = case('deep', dict(hidden_size=128, intermediate_size=256, num_hidden_layers=36))
DEEP['policy']['model']['gradient_checkpointing'] = True
DEEP['policy']['collect']['groups'] = DEEP['policy']['learn']['batch_groups'] = 1


def of_shape(**more):
    return CausalLM(config=dict(load('think_answer_grpo')[0].policy.model.config, **dict(SHAPE, **more)))


def adapters(folder):
    """A case with LoRA, and its base model in a folder."""
    torch.manual_seed(1)
    of_shape().save_pretrained(str(folder / 'base'))
    found = case('lora', learn=dict(kl=dict(beta=0.1)))
    found['policy']['model'] = dict(pretrained=str(folder / 'base'), lora=dict(r=4))
    return found


def distance(a, b):
    """The largest distance of two weights, relative to their size."""
    return max(((a[name] - b[name]).norm() / a[name].norm().clamp(min=1e-9)).item() for name in a)


def learned(folder, cases, processes, machines=1):
    """What each process finds of each case, by name. Several machines have all parts each."""
    if machines > 1:
        cases = [dict(c, shard='machine') for c in cases]
    folders = [folder / str(rank) for rank in range(processes)]
    ended = [p.end(400) for p in connected(learn_all, cases, folders, machines)]  # bfloat16 may be emulated
    assert all(code == 0 for code, _ in ended), ended[0][1] + ended[-1][1]
    return {
        c['name']: [torch.load(folder / str(rank) / f"{c['name']}_{rank}.pt") for rank in range(processes)]
        for c in cases
    }


ALL = [
    pytest.param((processes, machines, False), marks=pytest.mark.algotest, id=f'{processes}-on-{machines}-all')
    for processes, machines in ((2, 1), (4, 1), (4, 2))
]


@pytest.fixture(scope='class', params=[pytest.param((2, 1, True), id='2-on-1-short'), *ALL])
def found(request, tmp_path_factory):
    """For each case, what one process found, what each of several did, and the number of machines."""
    processes, machines, short = request.param
    folder = tmp_path_factory.mktemp('sharding')
    cases = [*CASES, adapters(folder)]
    if short:
        cases = [dict(c, updates=min(4, c['updates'])) for c in cases if c['name'] in SHORT]
    one, many = learned(folder / 'one', cases, 1), learned(folder / 'many', cases, processes, machines)
    return {name: (one[name][0], many[name], machines) for name in one}


@pytest.fixture
def of_case(found):

    def results(*names):
        """Of the first of these cases that was run."""
        name = next((name for name in names if name in found), None)
        return found[name] if name else pytest.skip('among the long checks')

    return results


@pytest.mark.envtest
class TestLearning:

    @pytest.mark.parametrize(
        'name', [
            'sgd_tied', 'adamw_untied_top_k', 'reference', 'checkpointed', 'empty_share', 'sgd_sampled_by_autocast',
            'lora', *(c['name'] for c in OPTIONS)
        ]
    )
    def test_the_weights_of_one_process(self, of_case, name):
        one, many, _ = of_case(name)
        assert distance(one['start'], one['end']) > 1e-3  # it learns
        for other in many:
            assert torch.equal(one['start']['lm.model.norm.weight'], other['start']['lm.model.norm.weight'])
            assert distance(one['end'], other['end']) < (1e-6 if 'sgd' in name else 1e-5)

    def test_autocast_gathers_layers_in_its_type(self, of_case):
        """Gradients of other parts of a batch round differently."""
        one, many, _ = of_case('autocast')
        assert one['types'] == {torch.float32}
        for other in many:
            assert other['types'] == {torch.bfloat16}
            assert distance(one['end'], other['end']) < 0.005 * distance(one['start'], one['end'])

    def test_evaluation_without_autocast(self, of_case):
        one, many, _ = of_case('autocast')
        for each in (one, *many):
            model = of_shape()
            model.load_state_dict(each['end'])
            prompts = PromptBatch.of([torch.arange(1, 6)], torch.device('cpu'))
            with torch.no_grad():
                exact = model.completion_logits(prompts, torch.arange(6, 9).unsqueeze(0))
            assert torch.allclose(each['evaluated'], exact[..., :each['evaluated'].shape[-1]], atol=1e-6)

    def test_epochs_end_at_the_same_mini_batch(self, of_case):
        one, many, _ = of_case('target_kl')
        assert all(0 < steps < 8 for steps in one['steps'])  # two mini-batches, four epochs
        assert all(other['steps'] == one['steps'] for other in many)

    def test_weights_in_bfloat16(self, of_case):
        one, many, _ = of_case('bfloat16')
        assert {p.dtype for p in one['end'].values()} == {torch.bfloat16}
        for other in many:
            assert {p.dtype for p in other['end'].values()} == {torch.bfloat16}
            assert distance(one['end'], other['end']) < 0.1 * distance(one['start'], one['end'])

    @pytest.mark.parametrize('name', ['sgd_tied', 'empty_share'])
    def test_a_process_with_fewer_parts_keeps_step(self, of_case, name):
        assert sum(other['added'] for other in of_case(name)[1]) > 0

    def test_no_process_has_all_of_a_gradient_or_of_the_optimizer(self, of_case):
        one, many, machines = of_case('adamw_untied_top_k', 'lora')
        total = sum(one['sizes'])
        for kind, copies in (('weights', 1), ('gradients', 1), ('moments', 2)):
            held = [sum(other['kept'][kind]) for other in many]
            assert sum(held) == machines * copies * total and copies * total == sum(one['kept'][kind])
            assert max(held) < copies * total / (len(many) / machines) * 1.1  # uneven matrices

    @pytest.mark.parametrize('name', ['adamw_untied_top_k', 'lora'])
    def test_samples_from_the_weights_of_the_last_update(self, of_case, name):
        for other in of_case(name)[1]:
            assert all(torch.equal(other['sampled'][key], value) for key, value in other['end'].items())


TIED = dict(SHAPE, tie_word_embeddings=True)
RUN = dict(
    env=dict(collector_env_num=24),
    policy=dict(
        shard=True,
        group_size=4,
        model=dict(config=TIED),
        learn=dict(
            batch_groups=3, micro_batch_tokens=60, learner=dict(hook=dict(save_ckpt_after_iter=2)), kl=dict(beta=0.1)
        ),
        collect=dict(groups=6),
    ),
)
KILL = '''
import os, signal
from ding_grpo.run import sharded_checkpoint
class Writer(sharded_checkpoint.HuggingFaceStorageWriter):
    def write_data(self, plan, planner):
        if os.environ['RANK'] == '1' and 'iteration_4' in str(self.path):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write_data(plan, planner)
sharded_checkpoint.HuggingFaceStorageWriter = Writer
'''


class OnTwoMachines(Run):

    def start(self, folder, options, processes):
        self.processes = connected(run_ding, options, [folder] * processes, machines=min(2, processes))


def run(folder, name, updates, processes, code='', shard=True, **learn):
    changes = deep_merge_dicts(RUN, dict(policy=dict(shard=shard)))
    kind = OnTwoMachines if shard == 'machine' else Run
    return kind(folder, name, 'think_answer_grpo', changes, 'serial_onpolicy', updates, processes, code, **learn)


def names(run):
    return sorted(path.name for path in (run.folder / 'ckpt').iterdir())


@pytest.mark.envtest
class TestRuns:

    @pytest.mark.algotest
    @pytest.mark.parametrize('numbers, shard', [((2, 1, 2), True), ((4, 2, 4), True), ((4, 1, 4), 'machine')], ids=str)
    def test_killed_while_a_checkpoint_is_written_and_resumed_by_other_numbers(self, tmp_path, numbers, shard):
        first = run(tmp_path, 'run', 7, numbers[0], KILL, shard)
        ended = [process.end() for process in first.processes]
        assert ended[1][0] == -signal.SIGKILL
        assert all(code == 1 for code, _ in ended[:1] + ended[2:]), ended[0][1]
        assert 'of this run has exited' in ended[0][1]
        assert names(first) == [
            'ckpt_best.0.shards', 'ckpt_best.pth.tar', 'iteration_2.0.shards', 'iteration_2.pth.tar',
            'iteration_4.0.shards'
        ]
        for updates, processes in ((5, numbers[1]), (7, numbers[2])):
            resumed = run(tmp_path, 'run', updates, processes, shard=shard, resume_training=True)
            out = resumed.finish()
            assert f'resuming from run/ckpt/iteration_{2 if updates == 5 else 5}.pth.tar' in out
        # the folder that the kill left is deleted, and those of older checkpoints
        numbered = [name for name in names(resumed) if name.startswith('iteration')]
        assert numbered == [f'iteration_{n}.{end}' for n in (5, 6, 7) for end in ('0.shards', 'pth.tar')]
        plain = run(tmp_path, 'plain', 7, 1, shard=False)
        plain.finish()
        one, many = plain.weights(7), read_checkpoint(str(resumed.folder / 'ckpt/iteration_7.pth.tar'))
        assert distance(one, many['model']) < 1e-5
        assert evaluated(resumed.folder) == evaluated(plain.folder)
        # the exported folder is the whole model, for transformers alone
        lm = AutoModelForCausalLM.from_pretrained(resumed.folder / 'model/last')
        for name, value in many['model'].items():
            assert torch.equal(lm.state_dict()[name.removeprefix('lm.')], value)
        assert (resumed.folder / 'model/best').exists()
        kept = HuggingFaceStorageReader(str(resumed.folder / 'ckpt/iteration_7.0.shards')).read_metadata()
        assert 'model/lm.model.embed_tokens.weight' in kept.state_dict_metadata
        assert 'model/lm.lm_head.weight' not in kept.state_dict_metadata  # tied weights are written once
        ids = torch.arange(1, 8).unsqueeze(0)
        policy = of_shape(tie_word_embeddings=True)
        policy.load_state_dict(many['model'])
        assert torch.equal(lm(ids).logits, policy.lm(ids).logits)

    @pytest.mark.algotest
    def test_the_run_of_one_process_with_a_replay_buffer(self, tmp_path):
        config, divided = 'think_answer_grpo_serial', deep_merge_dicts(BUFFER, dict(policy=dict(shard=True)))
        one = Run(tmp_path, 'one', config, BUFFER, 'serial', 10, 1)
        many = Run(tmp_path, 'many', config, divided, 'serial', 10, 2)
        one.finish(), many.finish()
        found = read_checkpoint(str(many.folder / 'ckpt/iteration_10.pth.tar'))['model']
        assert distance(one.weights(10), found) < 1e-5

    def test_a_checkpoint_that_is_not_divided_is_refused(self, tmp_path):
        run(tmp_path, 'plain', 2, 1, shard=False).finish()
        hook = dict(hook=dict(load_ckpt_before_run='plain/ckpt/iteration_2.pth.tar'))
        code, out = run(tmp_path, 'run', 4, 2, learner=hook).end()
        assert code == 1
        assert 'Error: policy.shard = True: the run of the checkpoint' in out


@pytest.mark.algotest
def test_memory(tmp_path):
    """Relative to weights, gradients and two moments of one process: the copy for sampling is freed before learning."""
    found = {}
    for processes in (1, 2, 4):
        ended = [
            p.end(500) for p in connected(measure_all, DEEP, [tmp_path / f'{processes}{i}' for i in range(processes)])
        ]
        assert all(code == 0 for code, _ in ended), ended[0][1]
        found[processes] = torch.load(tmp_path / f'{processes}0' / 'memory.pt')
        print(processes, found[processes])
    whole = 4 * found[1][0]['weights']
    assert 0.95 * whole < found[1][0]['learning'] < 1.1 * whole  # the measurement sees all of them
    for processes, most in ((2, 0.6), (4, 0.35)):
        for other in found[processes]:
            assert other['learning'] < most * whole
            assert other['copy_while_learning'] == 0 and other['copy'] == other['weights']
