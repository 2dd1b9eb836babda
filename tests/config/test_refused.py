"""Configs that are refused when the policy is made, with a message of one line."""
import pytest

from ding_common import ConfigError
from ding_grpo.entry.build import compiled
from dizoo_llm.envs import TokenEnv
from tests.policies import CONTINUOUS, DISCRETE, PRESET, Chatter, step_policy, token_policy
from tests.shipped import small

DPPO = dict(surrogate='dppo_tv')
RPP = dict(adv_method='reinforce_plus_plus')
OTB = dict(adv_method='optimal_token_baseline')
GAE = dict(advantage='gae', adv_method=None)
BY_PART = dict(adv_method='grpo', reward_aggregation='normalize_then_sum')
ALONE = dict(adv_method=None, policy=dict(group_size=1))
STEP_CRITIC = dict(advantage='gae', critic=dict(model=dict(config={})))
SHOWN = dict(demonstrations=dict(share=1.))
IN_REWARD = dict(beta=0.1, in_reward=True)
TOP, NO_TOP = dict(entropy=dict(top_share=0.2)), 'entropy.top_share = 0.2: not available with surrogate'
REPLACING = dict(collector=dict(max_replacements=1))
WITHIN_9 = dict(num_training_steps=9)
POOLS = dict(problem_order='pools')
SHARD = dict(multi_gpu=True, shard=True)
DIVIDED = dict(policy=SHARD)


def one_line(make, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert '\n' not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    'path, value, message', [
        ('learn.lerning_rate', 0.1, "did you mean 'learning_rate'"),
        ('lern', {}, "did you mean 'learn'"),
        ('learn.learner.hook.save_ckpt_after_itr', 5, "did you mean 'save_ckpt_after_iter'"),
        ('learn.learner.hook.save_ckpt_after_iter', 0, 'an integer of at least 1'),
        ('model', 5, 'must be a dict'),
        ('learn.learner.log_polciy', True, "did you mean 'log_policy'"),
        ('collect.collector.table_frq', 5, "did you mean 'table_freq'"),
        ('eval.evaluator.eval_frequency', 5, "did you mean 'eval_freq'"),
        ('model.pretraned', 'x', "did you mean 'pretrained'"),
        ('model.config.hidden_sze', 5, "did you mean 'hidden_size'"),
        ('other.replay_buffer.replay_bufer_size', 5, 'replay_buffer_size'),
        ('learn.clip.ratio', 1.5, r'a number in \(0, 1\]'),
        ('learn.kl.beta', -0.1, 'a number in'),
        ('learn.kl.type', 'k4', "'k1', 'k2', 'k3'"),
        ('learn.loss', 'gpro', "'grpo', 'bnpo', 'dr_grpo'"),
        ('learn.surrogate', 'clipp', "did you mean 'clip'. Allowed: .*module:function"),
        ('learn.surrogate', 5, 'must be the name of a surrogate, or None'),
        ('learn.reduction', 'mean', "'sequence', 'token'"),
        ('learn.clip.delta', 0.5, r'a number in \(1, inf\), or None'),
        ('learn.clip.delta', 1.1, 'greater than 1 . the clipping range above 1, 1.2'),
        ('learn.log_prob_fn', 'fast', "'linear_log_prob'"),
        ('learn.learning_rate', '1e-3', 'a number'),
        ('learn.max_ratio', 1, r'in \(1, inf\)'),
        ('learn.off_policy.correction', 'row', "must be one of 'token', 'sequence', or None"),
        ('instruments.shadow', ['dapo', 'dap'], "must be 'all' or a list of presets"),
        ('instruments.shadow', 'dapo', "must be 'all' or a list of presets"),
        ('learn.surrogate_options', 3, 'must be a dict'),
        ('learn.demonstrations.shares', 1, "did you mean 'share'"),
        ('learn.distillation.divergence', 'kl', "must be one of 'reverse_kl', 'forward_kl', 'jsd'"),
        ('learn.distillation.mix', 1., r'a number in \(0, 1\)'),
        ('collect.extra_rows', -1, 'an integer of at least 0'),
        ('collect.collector.reward_range', (0.9, 0.1), 'must be two numbers'),
        ('collect.top_k', 0, 'an integer of at least 1, or None'),
        ('collect.processors', dict(type='min_p', p=0.1), 'must be a list of dicts with the key type'),
        ('collect.processors', [dict(p=0.1)], 'must be a list of dicts with the key type'),
        ('collect.autocast', 'float16', "one of 'bfloat16', or None"),
        ('group_size', 0, 'an integer of at least 1'),
        ('learn.adv_method', 'std', "'grpo', 'no_std'"),
        ('learn.learning_rate', 0, 'a number'),
        ('learn.batch_groups', 0, 'an integer of at least 1'),
        ('learn.lr_scheduler.type', 'linea', "'linear'"),
        ('learn.target_kl', 0, 'must be a number in'),
        ('learn.max_bad_updates', 0, 'an int'),
        ('instruments.tokens_every', 0, 'must be'),
        ('learn.entropy.top_share', 1.5, r'a number in \(0, 1\]'),
        ('learn.off_policy.mask', 0.0, 'must be'),
        ('instruments.shadow_every', -1, 'must be'),
        ('learn.demonstrations.share', -1, r'a number in \[0'),
        ('learn.distillation.weight', 0, r'a number in \(0'),
        ('collect.pools.easy_share', 0, r'a number in \(0, 1\]'),
        ('collect.temperature', 0, 'a number in'),
        ('collect.top_p', 0, 'a number in'),
        ('multi_gpu', 2, 'must be True or False'),
        ('cuda', 'yes', 'must be True or False'),
    ]
)
def test_a_wrong_value_is_shown_with_its_key_and_what_is_allowed(path, value, message):
    changes = value
    for key in reversed(path.split('.')):
        changes = {key: changes}
    assert f'policy.{path} = {value!r}: ' in one_line(lambda: token_policy(changes), message)


@pytest.mark.parametrize(
    'learn, message',
    [
        (dict(kl=dict(ref_sync_freq=2)), 'kl.ref_sync_freq = 2: only available with policy.learn.kl.beta above 0'),
        (dict(kl=dict(target=0.1)), 'kl.target = 0.1: only available with policy.learn.kl.beta above 0'),
        (dict(kl=dict(horizon=5)), 'kl.horizon = 5: only available with policy.learn.kl.target'),
        (dict(entropy=dict(step=0.1)), 'entropy.step = 0.1: only available with policy.learn.entropy.target'),
        (dict(kl=dict(IN_REWARD, ratio_correction=True)), 'kl.ratio_correction = True: must be False with'),
        (dict(**BY_PART, kl=IN_REWARD), 'reward_aggregation = .*must be'),
        *((dict(PRESET, **TOP, loss=loss), NO_TOP) for loss in ('gmpo', 'dro', 'clip_cov', 'kl_cov')),
        (dict(TOP, loss='cpgd', surrogate_options=dict(drift=0.1)), f"{NO_TOP} 'cpgd'"),
        (dict(BY_PART, adv_method='no_std'), "adv_method = 'no_std': must be 'grpo'"),
        (dict(BY_PART, adv_method=None, loss='dr_grpo'), "must be 'grpo', not 'no_std'"),
        (dict(BY_PART, advantage='return_to_go'), "policy.learn.advantage = 'return_to_go': must be 'outcome'"),
        (dict(BY_PART, collect=dict(discount_factor=0.9)), 'policy.collect.discount_factor = 0.9: must be 1'),
        (dict(off_policy=dict(bound=3.0)), 'off_policy.bound = 3.0: only available with'),
        (dict(PRESET, loss='dro', off_policy=dict(correction='token')), "with surrogate 'dro'"),
        (dict(PRESET, loss='gmpo', off_policy=dict(mask=0.1)), "with surrogate 'geo_mean'"),
        (dict(instruments=dict(shadow_every=5)), 'shadow_every = 5: needs losses to compare'),
        (dict(loss='cispo', clip=dict(delta=3.0)), "delta = 3.0: must be None for surrogate 'cispo'"),
        (dict(kl=dict(in_reward=True)), 'kl.in_reward = True: only available with policy.learn.kl.beta above 0'),
        (dict(kl=dict(target=0., beta=0.1)), r'kl.target = 0.0: must be a number in \(0'),
        (dict(off_policy=dict(correction='token', bound=0.9)), 'off_policy.bound = 0.9: must be'),
        (dict(surrogate_options=dict(dual_clip=0.5)), r"surrogate_options\['dual_clip'\] = 0.5: .* above 1"),
        (dict(critic=dict(value_warmup=3)), 'policy.learn.critic.value_warmup = 3: only available with'),
        # a model that is divided among processes
        (dict(policy=dict(shard=True)), 'policy.shard = True: needs policy.multi_gpu = True'),
        (dict(policy=dict(shard='machine')), "policy.shard = 'machine': needs policy.multi_gpu = True"),
        (dict(DIVIDED, advantage='gae'), "policy.learn.advantage = 'gae': not available with policy.shard"),
        (dict(DIVIDED, log_prob_fn='naive_method'), "log_prob_fn = 'naive_method': not available with policy.shard"),
        (dict(DIVIDED, demonstrations=dict(share=0.5)), 'share = 0.5: not available with policy.shard'),
        (dict(DIVIDED, instruments=dict(shadow=['dapo'])), r"shadow = \['dapo'\]: not available with policy.shard"),
        (dict(DIVIDED, instruments=dict(noise_every=3)), 'noise_every = 3: not available with policy.shard'),
        (dict(policy=dict(SHARD, teacher=dict(pretrained='a'))), 'teacher = .*: not available with policy.shard'),
        (dict(TOP, instruments=dict(shadow=['gmpo'])), "this run cannot have 'gmpo'"),
        (dict(RPP, drop_equal_groups=True), 'drop_equal_groups = True: must be False with policy.learn.adv_method'),
        (dict(RPP, advantage='return_to_go_by_step'), "adv_method = 'reinforce_plus_plus': with advantage"),
        (dict(RPP, advantage='gae'), "adv_method = 'reinforce_plus_plus': with advantage 'gae'"),
        (dict(RPP, collect=REPLACING), 'max_replacements = 1: must be 0 with policy.learn.adv_method'),
        (dict(OTB, policy=dict(group_size=1)), 'policy.group_size = 1'),
        (dict(anchor_weight=2.), "anchor_weight = 2.0: only available with .* 'anchor'"),
        (dict(surrogate='dro', surrogate_options=dict(bta=1.)), "'bta' is not an option of 'dro'; .* are beta"),
        (dict(loss='clip_cov', surrogate_options=dict(generator=None)), 'from the seed of the run. Remove it.'),
        (dict(loss='gspo', surrogate='gpg'), "ratio = 'sequence': must be 'token' for surrogate 'gpg'"),
        (dict(loss='gmpo', reduction='token'), "reduction = 'token': must be 'sequence' with surrogate 'geo_mean'"),
        # schedules
        (dict(lr_scheduler=dict(type='linear')), 'num_training_steps'),
        (dict(lr_scheduler=dict(WITHIN_9, type='cosine_with_min_lr')), 'min_lr'),
        (dict(lr_scheduler=dict(WITHIN_9, type='linear', specific=dict(sped=3))), 'sped'),
        (dict(lr_scheduler=dict(type='reduce_lr_on_plateau')), "must be one of 'linear'"),
        (dict(lr_scheduler=dict(WITHIN_9, type='polynomial', num_warmup_steps=9)), 'division by zero'),  # at update 9
        # a critic
        (ALONE, "policy.group_size = 1: .*or set policy.learn.advantage to 'gae'"),
        (dict(critic=dict(gae_lambda=0.9)), 'policy.learn.critic.gae_lambda = 0.9: only available with'),
        (dict(critic=dict(value_weight=0.2)), "critic.value_weight = 0.2: .*policy.learn.advantage = 'gae'"),
        (dict(GAE, adv_method='rloo'), "adv_method = 'rloo': with advantage 'gae'"),
        (dict(GAE, drop_equal_groups=True), 'policy.learn.drop_equal_groups = True'),
        (dict(GAE, critic=dict(model=dict(layers=1))), 'policy.learn.critic.model.layers'),
        (dict(GAE, critic=dict(model=dict())), 'policy.learn.critic.model'),
        (dict(GAE, collect=REPLACING), 'max_replacements = 1: must be 0'),
        # demonstrations, and a teacher
        (dict(demonstrations=dict(weight=0.5)), 'demonstrations.weight = 0.5: only available with'),
        (dict(advantage='none', adv_method=None), "policy.learn.advantage = 'none': nothing would be learned"),
        (dict(distillation=dict(mix=0.2)), 'distillation.mix = 0.2: only avail'),
        # the order of problems
        (dict(collect=dict(pools=dict(easy_from=0.5))), "easy_from = 0.5: only available with .*problem_order = 'po"),
        (dict(collect=dict(POOLS, pools=dict(hard_to=0.9))), 'hard_to = 0.9: must be below easy_from = 0.9'),
    ],
    ids=str
)
def test_choices_that_do_not_go_together(learn, message):
    one_line(lambda: token_policy(**learn), message)


def test_cpgd_without_a_drift_vanishes_with_the_advantage():
    assert token_policy(**TOP, loss='cpgd')


@pytest.mark.parametrize(
    'processors, message', [
        ([dict(type='logit_bias', bias=[('to be', 1.)])], "the text 'to be' is not one token"),
        ([dict(type='logit_bias', bias=[(10 ** 6, 1.)])], 'token 1000000 does not exist'),
        ([dict(type='min_p', p=0)], r'min_p.p = 0: must be a number in \(0, 1\]'),
        ([dict(type='typical_p')], r'typical_p.p = None: must be a number in'),
        ([dict(type='min_p', p=.1, q=2)], 'min_p.q = 2: unknown key'),
        ([dict(type='repetition_penalty', penalty=0)], 'penalty = 0: must be'),
        ([dict(type='logit_bias', bias=[3])], 'must be a list of pairs'),
        ([dict(type='logit_bias', bias=[(1, float('nan'))])], 'a list of pairs'),
        ([dict(type='grammar')], "type = 'grammar': unknown processor; "),
        ([dict(type='allowed_tokens')], "type = 'allowed_tokens': unknown processor; "),
        ([dict(type='min_p', p=.1), dict(type='min_p', p=.2)], 'there are two of them'),
    ]
)
def test_processors(processors, message):
    one_line(lambda: token_policy(collect=dict(processors=processors)), message)


def test_rows_that_are_dropped_by_length_have_one_turn():
    env = TokenEnv(Chatter(), max_turns=3, max_new_tokens=4, max_reply_tokens=10)
    message = 'policy.collect.extra_rows = 1: not available with env.max_turns = 3'
    one_line(lambda: token_policy(env=env, collect=dict(extra_rows=1)), message)


@pytest.mark.parametrize(
    'model, sections, message', [
        (DISCRETE, dict(ratio='sequence', batch_steps=4), 'batch_steps = 4: not available with policy.learn.ratio'),
        (DISCRETE, dict(loss='gspo', batch_steps=4), 'batch_steps = 4: not available with policy.learn.ratio'),
        (DISCRETE, dict(loss='vespo', batch_steps=4), "batch_steps = 4: .* surrogate 'vespo', which needs"),
        (CONTINUOUS, DPPO, "surrogate = 'dppo_tv': .* have densities"),
        (CONTINUOUS, OTB, 'have densities, no probabilities'),
        (DISCRETE, dict(adv_method='opo', advantage='return_to_go_by_step'), "method = 'opo': with advantage 'return"),
        (DISCRETE, dict(extend_truncated=True), 'extend_truncated = True.*discount_factor'),
        (DISCRETE, dict(micro_batch_tokens=30), 'policy.learn.micro_batch_tokens = 30: only available with'),
        (DISCRETE, dict(micro_batch_tokens='Auto'), "micro_batch_tokens = 'Auto': must be .*'auto' or None"),
        (dict(DISCRETE, type='pg'), dict(advantage='gae'), "PG, has no value head. Use model type 'vac'"),
        (DISCRETE, STEP_CRITIC, 'policy.learn.critic.model = .*only available for language models'),
        (DISCRETE, SHOWN, 'demonstrations.share = 1.0: only available with language models'),
    ],
    ids=str
)
def test_what_policies_of_steps_cannot_have(model, sections, message):
    one_line(lambda: step_policy(model, learn=sections), message)


def test_policies_of_steps_may_say_that_no_mini_batch_is_divided():
    """As ``total_config.py`` of their older runs does."""
    assert step_policy(DISCRETE, learn=dict(micro_batch_tokens=None)).cfg.learn.micro_batch_tokens is None


@pytest.mark.parametrize(
    'sections, message', [
        (dict(teacher=dict(pretrained='a')), 'policy.teacher = .*only available with language models'),
        (dict(collect=dict(extra_rows=1)), 'policy.collect.extra_rows = 1: only available with language models'),
        (SHARD, "policy.shard = True: needs policy.model.type = 'causal_lm', not 'vac'"),
    ],
    ids=str
)
def test_sections_that_policies_of_steps_cannot_have(sections, message):
    one_line(lambda: step_policy(DISCRETE, **sections), message)


@pytest.mark.parametrize('kind, what', [('obs_norm', 'observations'), ('reward_norm', 'rewards')])
def test_wrappers_whose_statistics_are_those_of_one_environment(kind, what):
    wrappers = dict(env_wrapper=[dict(type=kind), dict(type='eval_episode_return')])
    message = f"env.env_wrapper.type = '{kind}': its statistics are those of one environment, so that equal {what}"
    one_line(lambda: compiled(small('cartpole_grpo', env=wrappers), 0, save_cfg=False), message)
    assert compiled(small('cartpole_ppo', env=wrappers), 0, save_cfg=False).env.env_wrapper  # others may
