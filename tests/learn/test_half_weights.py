"""Weights of half types: a run prints how many a step can move, and refuses those that a step would destroy."""
import pytest
import torch

from ding_common import ConfigError
from ding_grpo.extras.ppo_kl import PPOKLPolicy
from ding_grpo.learn.half_weights import movable_share
from dizoo_llm.envs import TokenEnv
from tests.extras.test_ppo_kl import make
from tests.policies import token_policy, update, vector

FLOAT16 = "policy.model.dtype = 'float16': would train lm.model.embed_tokens.weight in .*'bfloat16', or train adapters"


def with_dtype(dtype, field=None, base=None, learn={}, **model):
    return token_policy(dict(model=dict(model, dtype=dtype)), field=field, base=base, **learn)


@pytest.fixture
def base(tiny_model, tmp_path):
    pytest.importorskip('peft')
    tiny_model.save_pretrained(str(tmp_path))
    return tmp_path


class TestFloat16:

    def test_trained_it_is_refused_at_the_start(self, tiny_model):
        with pytest.raises(ConfigError, match=FLOAT16):
            with_dtype('float16')
        with pytest.raises(ConfigError, match=FLOAT16):
            token_policy(model=tiny_model.lm.to(torch.float16))

    def test_evaluated_it_works(self):
        policy = with_dtype('float16', field=['eval'])
        obs = TokenEnv(max_new_tokens=6).reset(options=dict(index=0))[0]
        assert policy.model.lm.dtype is torch.float16
        assert 1 <= len(policy.eval_mode.forward({0: obs})[0]['action']) <= 6

    @pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
    def test_adapters_are_float32_and_learn(self, base, capsys, dtype):
        policy = with_dtype(dtype, base=base, lora=dict(r=4))
        trained = policy.updater.trained
        assert all(p.dtype is torch.float32 for p in trained) and 'learning_rate' not in capsys.readouterr().out
        before = vector(trained)
        metrics = update(policy)
        assert metrics['optimizer_steps'] == 1 and not torch.equal(vector(trained), before)
        assert metrics['ratio_max'] == 1 and metrics['sampler_gap_max'] > 0

    def test_whole_layers_beside_adapters_are_not(self, base):
        with pytest.raises(ConfigError, match='would train .*norm.* in float16'):
            with_dtype('float16', base=base, lora=dict(r=4, modules_to_save=['norm']))

    def test_by_ppo_with_a_kl(self):

        class Half(PPOKLPolicy):

            def _create_model(self, cfg, model=None):
                return super()._create_model(cfg, model).to(torch.float16)

        with pytest.raises(ConfigError, match="policy.model.dtype = 'float16': would train encoder"):
            make(Half)


class TestMovable:

    @pytest.mark.parametrize(
        'weight, step, moves',
        [
            (1., 0.0019, 0),  # half the distance to the number below, 2^-8, is 0.00195
            (1., 0.0020, 0.75),
            (1.5, 0.0038, 0),  # 2^-7 to both sides
            (-1.5, 0.0040, 0.75),
            (0., 1e-30, 0.75),
        ]
    )
    def test_by_hand(self, weight, step, moves):
        """Of three such weights, and one of float32, which every step moves."""
        weights = dict(a=torch.full((3, ), weight).bfloat16(), b=torch.zeros(1))
        assert movable_share(weights, step) == moves + 0.25

    @pytest.mark.parametrize('rate', [1e-3, 1e-5])
    def test_is_what_a_step_of_adamw_moves(self, rate):
        torch.manual_seed(0)
        start = (torch.randn(20000) * 0.02).bfloat16()
        moved = torch.zeros(20000, dtype=torch.bool)
        for sign in (1, -1):
            weight = torch.nn.Parameter(start.clone())
            weight.grad = torch.full_like(weight, sign)
            torch.optim.AdamW([weight], lr=rate, weight_decay=0.01, fused=True).step()
            moved |= weight.detach() != start
        assert movable_share(dict(w=start), rate) == pytest.approx(moved.float().mean().item(), abs=2e-3)
        assert 0 < moved.float().mean() <= 1


class TestNotice:

    @pytest.fixture(autouse=True)
    def _native(self, multiplies_bfloat16):
        multiplies_bfloat16('cpu')

    def test_share_and_advice_once_at_the_start(self, capsys):
        policy = with_dtype('bfloat16', learn=dict(learning_rate=1e-5))
        share = movable_share(dict(policy.model.named_parameters()), 1e-5)
        printed = capsys.readouterr().out
        assert 0.01 < share < 0.5 and printed.count('\n') == 1
        start = f"policy.model.dtype = 'bfloat16': a step of policy.learn.learning_rate = 1e-05 can move {share:.1%} of"
        assert printed.startswith(start) and "policy.model.autocast = 'auto'" in printed
        update(policy)
        assert capsys.readouterr().out == ''

    @pytest.mark.parametrize(
        'options', [dict(dtype='float32'), dict(dtype='float32', autocast='bfloat16'),
                    dict(dtype='bfloat16', field=['eval'])], ids=str
    )  # yapf: disable
    def test_float32_weights_and_evaluations_need_none(self, capsys, options):
        with_dtype(**options)
        assert capsys.readouterr().out == ''
