"""``policy.learn.optimizer``: each learns, has the steps of torch's own, and goes on from a checkpoint."""
import copy

import pytest
import torch

from ding_common import ConfigError
from ding_grpo.config.optimizer import OPTIMIZERS, MuonWithAdamW, check_optimizer, hidden_matrices, make_optimizer
from tests.cases import brief, long
from tests.policies import token_policy, update
from tests.same import same

ARGUMENTS = dict(SGD=dict(momentum=0.9), AdamW=dict(betas=(0.8, 0.9)), RMSprop=dict(alpha=0.5))
PACKAGES = ('bitsandbytes', 'torchao')  # not among those of the tests
MODULE = '''
import torch


class Signs(torch.optim.Optimizer):

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group['params']:
                p.sub_(group['lr'] * p.grad.sign())


def nothing(params, lr):
    return None
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / 'signs.py').write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def with_optimizer(kind, rate=1e-2, cuda=False, **args):
    return token_policy(dict(cuda=cuda), optimizer=dict(type=kind, **args), learning_rate=rate)


def weights(policy):
    return copy.deepcopy(policy.model.state_dict())


@pytest.mark.parametrize(
    'kind', [
        *brief(OPTIMIZERS,
               ('AdamW', 'Muon', 'SGD')), 'signs:Signs', *(f'{module}.optim:AdamW8bit' for module in PACKAGES)
    ]
)
def test_learns_and_goes_on_from_a_checkpoint(kind, module):
    if kind.startswith(PACKAGES):
        pytest.importorskip(kind.partition('.')[0])
    args = ARGUMENTS.get(kind, {})
    whole = with_optimizer(kind, **args)
    before = weights(whole)
    update(whole)
    saved = copy.deepcopy(whole.learn_mode.state_dict())
    assert not torch.equal(before['lm.lm_head.weight'], saved['model']['lm.lm_head.weight'])
    update(whole, collect=1)
    again = with_optimizer(kind, **args)
    again.learn_mode.load_state_dict(saved)
    update(again, collect=1)
    same(weights(again), weights(whole))


def test_muon_has_the_matrices_of_hidden_layers():
    policy = with_optimizer('Muon', momentum=0.5)
    optimizer, names = policy.learning.optimizer, {id(p): name for name, p in policy.model.named_parameters()}
    muon, adamw = ([names[id(p)] for p in group['params']] for group in optimizer.param_groups)
    assert optimizer.param_groups[0]['momentum'] == 0.5 and 'betas' in optimizer.param_groups[1]
    assert all('_proj.weight' in name for name in muon) and len(muon) == 7 * len(policy.model.lm.model.layers)
    assert 'lm.model.embed_tokens.weight' in adamw and 'lm.lm_head.weight' in adamw and 'lm.model.norm.weight' in adamw


def test_its_steps_are_those_of_both():
    torch.manual_seed(0)
    matrix, vector = (torch.nn.Parameter(torch.randn(*shape)) for shape in ((4, 3), (5, )))
    copies = copy.deepcopy((matrix, vector))
    both = MuonWithAdamW([matrix], [vector], lr=0.1, weight_decay=0.0)
    apart = [
        torch.optim.Muon([copies[0]], lr=0.1, weight_decay=0.0, adjust_lr_fn='match_rms_adamw'),
        torch.optim.AdamW([copies[1]], lr=0.1, weight_decay=0.0, fused=True)
    ]
    for _ in range(3):
        for p, own in zip((matrix, vector), copies):
            own.grad = p.grad = torch.randn_like(p)
        for optimizer in (both, *apart):
            optimizer.step()
    assert torch.equal(matrix, copies[0]) and torch.equal(vector, copies[1])


def test_hidden_matrices_of_a_network_of_steps():
    net = torch.nn.Sequential(torch.nn.Embedding(3, 4), torch.nn.Linear(4, 5), torch.nn.LayerNorm(5))
    assert [p.shape for p in hidden_matrices(net)] == [(5, 4)]


def test_settings_of_the_config_count_after_a_checkpoint():
    first = with_optimizer('SGD', momentum=0.9)
    update(first)
    second = with_optimizer('SGD', momentum=0.5)
    second.learn_mode.load_state_dict(first.learn_mode.state_dict())
    assert second.learning.optimizer.param_groups[0]['momentum'] == 0.5
    with pytest.raises(ConfigError, match="type = 'AdamW': the checkpoint is of a run with another optimizer .SGD."):
        token_policy().learn_mode.load_state_dict(first.learn_mode.state_dict())


@pytest.mark.parametrize(
    'optimizer, message', [
        (dict(type='AdaW'), "optimizer.type = 'AdaW': unknown optimizer; did you mean 'AdamW'. Allowed: Adafactor, "),
        (dict(type='AdamW', beta=0.9), "optimizer.beta = 0.9: unknown key; did you mean 'betas'"),
        (dict(type='AdamW', betas=(2, 0.9)), 'Invalid beta parameter'),
        (dict(type='SGD', lr=1.0), 'optimizer.lr = 1.0: set policy.learn.learning_rate instead'),
        (dict(type='SGD', weight_decay=1.0), 'optimizer.weight_decay = 1.0: set policy.learn.weight_decay instead'),
        (dict(type='signs:nothing'), "type = 'signs:nothing': must be a subclass of torch.optim.Optimizer"),
        (dict(type='signs:Sings'), "the module has no 'Sings'; did you mean 'Signs'"),
        (dict(type='no_such:Class'), "there is no module 'no_such' that can be imported"),
        (dict(momentum=1), 'optimizer.momentum = 1: unknown key; Allowed: amsgrad, betas, .* maximize, offload.$'),
        (dict(type='AdamW', offload=True), 'optimizer.offload = True: needs policy.cuda = True'),
        (dict(type='AdamW', offload=1), 'optimizer.offload = 1: must be True or False'),
        (dict(type=3), 'optimizer.type = 3: must be a name'),
        ('SGD', "optimizer = 'SGD': must be a dict with 'type'"),
    ],
    ids=str
)
def test_one_line_for_wrong_ones(optimizer, message, module):
    with pytest.raises(ConfigError, match=message):
        token_policy(optimizer=optimizer)


def test_a_weight_decay_that_the_class_does_not_have(module):
    with pytest.raises(ConfigError, match='policy.learn.weight_decay = 0.1: signs:Signs has none. Set it to 0'):
        token_policy(optimizer=dict(type='signs:Signs'), weight_decay=0.1)


def test_a_step_is_fused_unless_another_kind_of_step_is_asked_for():
    weight = torch.nn.Parameter(torch.zeros(2))
    for more, fused in ((dict(), True), (dict(foreach=True), None), (dict(foreach=False), True)):
        learn = dict(optimizer=dict(type='AdamW', **more), learning_rate=0.1, weight_decay=0.0)
        assert make_optimizer(learn, [weight]).param_groups[0]['fused'] is fused
    learn['optimizer'] = dict(type='torch.optim:AdamW')  # a class of the user has its own default
    assert make_optimizer(learn, [weight]).param_groups[0]['fused'] is None


def test_a_checkpoint_of_steps_that_were_not_fused(gpu):
    """Its count of steps lies on the CPU; a fused step reads it on the GPU."""
    policy, other = (with_optimizer('AdamW', cuda=True) for _ in range(2))
    update(policy)
    state = copy.deepcopy(policy.learn_mode.state_dict())
    for group in state['optimizer']['param_groups']:
        group['fused'] = None
    for kept in state['optimizer']['state'].values():
        kept['step'] = kept['step'].cpu()
    other.learn_mode.load_state_dict(state)
    assert all(kept['step'].is_cuda for kept in other.learn_mode.state_dict()['optimizer']['state'].values())
    for each in (policy, other):
        update(each, collect=1)
    same(weights(other), weights(policy))


def test_not_every_one_is_divided():
    learn = dict(optimizer=dict(type='Muon'), learning_rate=0.1, weight_decay=0.0)
    weight = torch.nn.Parameter(torch.zeros(2))
    assert isinstance(make_optimizer(learn, [weight]), MuonWithAdamW)
    with pytest.raises(ConfigError, match="optimizer.type = 'Muon': must be one of AdamW, Adam, SGD with policy.shard"):
        check_optimizer(learn, cuda=False, sharded=True)


@pytest.mark.parametrize('kind', [long('AdamW'), 'Muon', long('SGD')])
def test_states_on_the_host(kind, gpu):
    """The same steps and checkpoints, and no state on the GPU."""
    args, policies = ARGUMENTS.get(kind, {}), []
    for offload in (False, True):
        policies.append(with_optimizer(kind, cuda=True, offload=offload, **args))
        for collect in range(2):
            update(policies[-1], collect=collect)
    plain, offloaded = policies
    same(weights(offloaded), weights(plain))
    states = offloaded.learn_mode.state_dict()['optimizer']['state'].values()
    assert not any(x.is_cuda for state in states for x in state.values() if torch.is_tensor(x))
    again = with_optimizer(kind, cuda=True, **args)
    again.learn_mode.load_state_dict(copy.deepcopy(offloaded.learn_mode.state_dict()))
    back = with_optimizer(kind, cuda=True, offload=True, **args)
    back.learn_mode.load_state_dict(copy.deepcopy(plain.learn_mode.state_dict()))
    for policy in (*policies, again, back):
        update(policy, collect=2)
        same(weights(policy), weights(plain))
