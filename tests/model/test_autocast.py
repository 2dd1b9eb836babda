"""``policy.model.autocast``: layers in bfloat16, everything that is kept in float32."""
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ding_common import ConfigError
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.model.fast_linear import FastConv1D, FastLinear
from ding_grpo.rl_utils import linear_log_prob
from ding_grpo.rl_utils.log_probs.matrix_product import linear, rounded_product
from ding_grpo.rl_utils.log_probs.token_rules import TokenRules
from ding_grpo.rollout import Sampling, draw, generate
from ding_grpo.rollout.kept_sets import KeptSets
from dizoo_llm.envs import TokenEnv
from tests.model.helper import CPU, learned, make, uniform
from tests.policies import make_policy
from tests.shipped import small

PROMPTS = [torch.tensor([1, 2, 3, 4, 5])] * 3 + [torch.tensor([6, 7])] * 3
of_each_model = pytest.mark.parametrize('name', ['llama', 'gpt2'])


class Types(TorchDispatchMode):
    """Records the types that attention reads and is differentiated in, and counts conversions of parameters."""

    def __init__(self, model):
        super().__init__()
        self.places = {p.data_ptr() for p in model.parameters() if p.dim() > 1}
        self.casts, self.attention, self.read = 0, [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and args[0].data_ptr() in self.places:
            self.casts += 1
        if 'attention' in func.name():
            found = self.attention if 'backward' in func.name() else self.read
            found.append({x.dtype for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()})
        return func(*args, **(kwargs or {}))


class TestLayers:

    @pytest.mark.parametrize('name, attention', [('llama', None), ('gpt2', None), ('gpt2', 'eager')])
    def test_log_probabilities_and_gradients_are_near_those_of_float32(self, name, attention):
        completion, found = torch.randint(0, 40, (6, 7), generator=torch.Generator().manual_seed(0)), []
        for options in (dict(), dict(autocast='bfloat16')):
            model = make(name, 1, attn_implementation=attention, **options)
            assert model.shares_prompts
            logp = learned(model, PromptBatch.of(PROMPTS, CPU), completion)
            with Types(model) as used:
                logp.sum().backward()
            assert len(used.attention) >= 2 and all(types == {torch.float32} for types in used.attention)
            found.append([logp.detach(), *(p.grad for p in model.parameters())])
            assert {x.dtype for x in (*found[-1], *model.parameters())} == {torch.float32}
        for full, half in zip(*found):
            assert (full - half).norm() <= 0.03 * full.norm()  # bfloat16 has 8 bits
        assert 0 < (found[0][0] - found[1][0]).abs().max()  # it does something

    @of_each_model
    def test_what_is_sampled_is_what_is_learned(self, name):
        model, batch = make(name, 1, autocast='bfloat16'), PromptBatch.of(PROMPTS[:1] * 4, CPU)
        out = generate(model, batch, 9, [-1], Sampling(), uniform(4, 9))
        assert out.logp.dtype is torch.float32
        assert (learned(model, batch, out.action).exp() / out.logp.exp() - 1).abs().max() < 0.03

    @of_each_model
    def test_single_tokens_read_keys_in_float32(self, name):
        """The attention of few queries is slower in bfloat16 on a processor."""
        model = make(name, autocast='bfloat16')
        batch = PromptBatch.of(PROMPTS, CPU)
        with torch.no_grad(), model.arithmetic():
            decoding = model.start(batch)
            for _ in range(2):
                with Types(model) as used:
                    decoding.step(torch.arange(6))
                assert used.read == [{torch.float32}] * len(used.read) and len(used.read) >= 2 * 2

    @of_each_model
    @pytest.mark.parametrize('lora', [None, dict(r=2, target_modules='all-linear')], ids=['weights', 'adapters'])
    def test_a_token_converts_no_weights(self, name, lora, tmp_path):
        make(name).save_pretrained(str(tmp_path))
        model = CausalLM(pretrained=str(tmp_path), autocast='bfloat16', lora=lora)
        batch = PromptBatch.of([torch.arange(5)] * 3, CPU)
        assert model.shares_prompts
        with torch.no_grad(), model.arithmetic():
            decoding = model.start(batch)
            with Types(model) as used:
                logit = decoding.step(torch.arange(3))
        assert used.casts == 0
        if lora is not None:  # a weight that has changed is converted again
            layer = next(x for x in model.trunk.modules() if isinstance(x, (FastConv1D, FastLinear)))
            with torch.no_grad():
                layer.weight.mul_(2)
                with model.arithmetic():
                    assert not torch.equal(model.start(batch).step(torch.arange(3)), logit)


@pytest.mark.parametrize(
    'options, message', [
        *((dict(autocast=value), "autocast = .*: must be None, 'auto' or 'bfloat16'") for value in (True, 'float16')),
        (dict(autocast_output=True), 'autocast_output = True: needs policy.model.autocast'),
    ],
    ids=str
)
def test_wrong_values(options, message):
    with pytest.raises(ConfigError, match=f'policy.model.{message}'):
        make('llama', **options)


class TestEvaluation:

    def test_of_other_models(self):
        main, create = small('cartpole_grpo')
        main.policy.eval.autocast = False
        with pytest.raises(ConfigError, match='policy.eval.autocast = False: only available with language models'):
            make_policy(main, create)

    def test_in_the_type_of_the_weights(self, think_answer):
        main, create = think_answer
        found = {}
        for name, trained, in_eval in (('exact', None, True), ('half', 'bfloat16', True), ('asked', 'bfloat16', False)):
            main.policy.model.autocast, main.policy.eval.autocast = trained, in_eval
            policy = make_policy(main, create, field=['eval', 'collect'])
            obs = {i: TokenEnv().reset(options=dict(index=i % 4))[0] for i in range(4)}
            sampled = policy.eval_mode.forward(obs, row_keys={i: (0, 0, i) for i in obs})
            greedy = [out['action'].tolist() for out in policy.eval_mode.forward(obs).values()]
            found[name] = torch.cat([sampled[i]['logp'] for i in obs]), greedy
        assert torch.equal(found['asked'][0], found['exact'][0]) and found['asked'][1] == found['exact'][1]
        assert not torch.equal(found['half'][0], found['exact'][0])


class TestAuto:

    @pytest.mark.parametrize(
        'given, native, dtype, part',
        [
            (dict(), False, None, None),
            (dict(autocast='auto'), True, torch.bfloat16, "autocast = 'auto': layers compute in bfloat16."),
            (dict(autocast='auto', onednn=False), False, None, "autocast = 'auto': layers compute in float32."),
            (dict(autocast='bfloat16'), True, torch.bfloat16, None),
            (dict(autocast='bfloat16'), False, torch.bfloat16, "autocast = 'bfloat16': this processor emulates"),
            (dict(dtype='bfloat16'), True, None, None),
            (dict(dtype='bfloat16'), False, None, "dtype = 'bfloat16': this processor emulates"),
        ],
    )
    def test_it_uses_bfloat16_where_the_device_multiplies_it(self, multiplies_bfloat16, given, native, dtype, part):
        multiplies_bfloat16(*['cpu'] * native)
        model = make('llama', **given)
        assert model.autocast_dtype is dtype
        assert model.exact_arithmetic is (dtype is None and 'dtype' not in given)
        notice = model.arithmetic_notice('policy.teacher')
        assert notice is None if part is None else notice.startswith(f'policy.teacher.{part}')
        with model.without_autocast():
            assert model.autocast_dtype is None
        layers = {layer.onednn for layer in model.modules() if isinstance(layer, FastLinear)}
        assert layers == {given.get('onednn', True)}

    @pytest.mark.parametrize(
        'section, autocast, start', [
            ('model', 'auto', "policy.model.autocast = 'auto': layers compute in float32."),
            ('collect', 'bfloat16', "policy.collect.autocast = 'bfloat16': this processor emulates"),
        ]
    )
    def test_the_log_of_a_run_on_a_device_without_it(
        self, multiplies_bfloat16, think_answer, capsys, section, autocast, start
    ):
        multiplies_bfloat16()
        main, create = think_answer
        main.policy[section].autocast = autocast
        make_policy(main, create)
        assert capsys.readouterr().out.startswith(start)

    def test_a_model_that_is_still_on_the_cpu(self, multiplies_bfloat16):
        multiplies_bfloat16('cuda')
        model = make('llama', autocast='auto')
        assert model.autocast_dtype is None and model.autocast.dtype_on('cuda') is torch.bfloat16


class TestOutputLayer:

    @pytest.mark.parametrize('options', [dict(), dict(top_k=5), dict(top_p=0.9)], ids=str)
    def test_sampler_and_learner_round_the_same_factors(self, options):
        """With hidden states in float32, both round the same factors, so that their results agree as without it."""
        plain, model = make('llama', 1), make('llama', 1, autocast='bfloat16', autocast_output=True)
        # the trial computes in float64, in which a GPU has no product of rounded factors
        assert model.shares_prompts and not plain.output_head().rounded
        head = model.output_head()
        assert head.rounded
        with model.without_autocast():
            assert not model.output_head().rounded
        hidden = torch.randn(6, 7, 32)
        sampling = Sampling(temperature=0.9, **options)
        distribution, kept = sampling.restrict(head.logits(hidden).flatten(0, 1))
        token, logp = draw(distribution, uniform(42, 1).squeeze(1))
        rules = None
        if kept is not None and kept.dtype == torch.bool:
            rules, kept = TokenRules(kept_bits=KeptSets.of(kept).bits(40).unflatten(0, (6, 7))), None
        elif kept is not None:
            token, kept = kept.gather(1, token.unsqueeze(1)).squeeze(1), kept.unflatten(0, (6, 7))
        given = dict(index=token.view(6, 7), temperature=0.9, kept=kept, rules=rules)
        found, exact = (linear_log_prob(hidden, **given, **x._asdict()) for x in (head, plain.output_head()))
        assert torch.allclose(found.flatten(), logp, atol=2e-6)
        assert 1e-5 < (found - exact).abs().max() < 0.05

    def test_on_a_gpu(self):
        """Tensors without contents: torch checks the call of its product with sums in float32."""
        with FakeTensorMode(), torch.device('cuda'), torch.no_grad():
            hidden, weight, bias = torch.randn(3, 5, 64), torch.randn(30, 64), torch.randn(30)
            out = linear(hidden, weight, bias, rounded=True)
            assert out.dtype is torch.float32 and out.shape == (3, 5, 30)
            for a, b in ((out, weight.t()), (out.transpose(1, 2), hidden.transpose(1, 2))):
                product = rounded_product(a[0], b if b.dim() == 2 else b[0])  # as in the backward pass
                assert product.dtype is torch.float32 and product.shape == (len(a[0]), 64)
