"""Weights of half types: a run prints how many a step can move, and refuses those that a step would destroy."""
import pytest
import torch

from ding_common import ConfigError
from ding_grpo.extras.ppo_kl import PPOKLPolicy
from ding_grpo.learn.half_weights import movable_share
from ding_grpo.model import CausalLM, autocast
from dizoo_llm.envs import TokenEnv

from tests.policies import make_policy, sample_groups
from tests.learn.test_grpo import reward, vector

FLOAT16 = "policy.model.dtype = 'float16': would train lm.model.embed_tokens.weight in .*'bfloat16', or train adapters"


def with_dtype(think_answer, dtype, **model):
    main, create = think_answer
    main.policy.model.update(dtype=dtype, **model)
    return main, create


@pytest.mark.unittest
class TestFloat16:

    def test_steps_would_destroy_the_weights(self):
        """Why it is refused: the momentum of one gradient over ``eps``, 5,000 times the learning rate."""
        moved = {}
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            weight = torch.nn.Parameter(torch.zeros(1000, dtype=dtype))
            optimizer = torch.optim.AdamW([weight], lr=1e-6, fused=True)
            for gradient in (1e-4, 0.):
                weight.grad = torch.full_like(weight, gradient)
                optimizer.step()
            moved[dtype] = weight.detach().abs().max().item()
        assert moved[torch.float16] > 1e-3 and max(moved[torch.bfloat16], moved[torch.float32]) < 2e-6

    def test_trained_it_is_refused_at_the_start(self, think_answer):
        with pytest.raises(ConfigError, match=FLOAT16):
            make_policy(*with_dtype(think_answer, 'float16'))

    def test_of_a_model_made_in_memory_too(self, think_answer, tiny_model):
        with pytest.raises(ConfigError, match=FLOAT16):
            make_policy(*think_answer, model=tiny_model.lm.to(torch.float16))

    def test_evaluated_it_works(self, think_answer):
        policy = make_policy(*with_dtype(think_answer, 'float16'), field=['eval'])
        obs = TokenEnv(max_new_tokens=6).reset(options=dict(index=0))[0]
        assert policy._model.lm.dtype is torch.float16
        assert 1 <= len(policy.eval_mode.forward({0: obs})[0]['action']) <= 6

    @pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
    def test_adapters_are_float32_and_learn(self, think_answer, tiny_model, tmp_path, capsys, dtype):
        pytest.importorskip('peft')
        tiny_model.save_pretrained(str(tmp_path / 'base'))
        main, create = think_answer
        main.policy.model = dict(pretrained=str(tmp_path / 'base'), dtype=dtype, lora=dict(r=4))
        policy = make_policy(main, create)
        assert all(p.dtype is torch.float32
                   for p in policy._learning.updater.trained) and 'learning_rate' not in capsys.readouterr().out
        before = vector(policy._learning.updater.trained)
        assert policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))['optimizer_steps'] == 1
        assert not torch.equal(vector(policy._learning.updater.trained), before)

    def test_whole_layers_beside_adapters_are_not(self, think_answer, tiny_model, tmp_path):
        pytest.importorskip('peft')
        tiny_model.save_pretrained(str(tmp_path / 'base'))
        main, create = think_answer
        lora = dict(r=4, modules_to_save=['norm'])
        main.policy.model = dict(pretrained=str(tmp_path / 'base'), dtype='float16', lora=lora)
        with pytest.raises(ConfigError, match='would train .*norm.* in float16'):
            make_policy(main, create)

    def test_by_ppo_with_a_kl(self):
        from tests.extras.test_ppo_kl import make

        class Half(PPOKLPolicy):

            def _create_model(self, cfg, model=None):
                return super()._create_model(cfg, model).to(torch.float16)

        with pytest.raises(ConfigError, match="policy.model.dtype = 'float16': would train encoder"):
            make(Half)


@pytest.mark.unittest
class TestMovable:

    @pytest.mark.parametrize(
        'weight, step, moves',
        [
            (1., 0.0019, False),  # half the distance to the number below, 2^-8, is 0.00195
            (1., 0.0020, True),
            (1.5, 0.0038, False),  # 2^-7 to both sides
            (1.5, 0.0040, True),
            (-1.5, 0.0040, True),
            (0., 1e-30, True),
        ]
    )
    def test_by_hand(self, weight, step, moves):
        assert movable_share(dict(w=torch.tensor([weight]).bfloat16()), step) == moves

    @pytest.mark.parametrize('rate', [1e-3, 1e-4, 1e-5, 1e-6])
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

    def test_of_all_trained_weights(self):
        halves = dict(a=torch.full((3, ), 1.).bfloat16(), b=torch.full((1, ), 1.))
        assert movable_share(halves, 1e-6) == 0.25


@pytest.mark.unittest
class TestNotice:

    @pytest.fixture(autouse=True)
    def _native(self, monkeypatch):
        monkeypatch.setattr(autocast, 'multiplies_bfloat16', lambda device: True)

    def test_share_and_advice_once_at_the_start(self, think_answer, capsys):
        main, create = with_dtype(think_answer, 'bfloat16')
        main.policy.learn.learning_rate = 1e-5
        policy = make_policy(main, create)
        share = movable_share(dict(policy._model.named_parameters()), 1e-5)
        printed = capsys.readouterr().out
        assert 0.01 < share < 0.5 and printed.count('\n') == 1
        start = f"policy.model.dtype = 'bfloat16': a step of policy.learn.learning_rate = 1e-05 can move {share:.1%} of"
        assert printed.startswith(start) and "policy.model.autocast = 'auto'" in printed
        policy.learn_mode.forward(sample_groups(policy, [0, 1], reward=reward))
        assert capsys.readouterr().out == ''

    @pytest.mark.parametrize('model', [dict(), dict(autocast='bfloat16')], ids=str)
    def test_float32_weights_need_no_word(self, think_answer, capsys, model):
        make_policy(*with_dtype(think_answer, 'float32', **model))
        assert capsys.readouterr().out == ''

    def test_nor_does_an_evaluation(self, think_answer, capsys):
        make_policy(*with_dtype(think_answer, 'bfloat16'), field=['eval'])
        assert capsys.readouterr().out == ''

    def test_of_a_model_made_in_memory_too(self, think_answer, capsys):
        torch.manual_seed(0)
        lm = CausalLM(config=dict(think_answer[0].policy.model.config), dtype='bfloat16').lm
        make_policy(*think_answer, model=lm)
        assert "policy.model.dtype = 'bfloat16'" in capsys.readouterr().out
