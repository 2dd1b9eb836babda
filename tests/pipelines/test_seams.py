"""Runs in which a part is another one than the built-in: who samples, where groups come from, how a run starts."""
import copy
import os
import signal
import threading
import time

import pytest
import torch
from ding.entry import eval as evaluate
from ding.entry import serial_pipeline_onpolicy
from ding.envs import BaseEnvTimestep
from ding.utils import SERIAL_COLLECTOR_REGISTRY

from ding_grpo.act.sampler import Sampler
from ding_grpo.act.token_actor import TokenActor
from ding_grpo.collect import GroupCollector
from ding_grpo.collect.group import Group, Sampled
from ding_grpo.data.capability import group_policy
from ding_grpo.model import CausalLM
from ding_grpo.policy import make_actor
from ding_grpo.rollout import Rollout
from ding_grpo.rollout.sampling import draw
from dizoo_llm.envs import TokenEnv
from tests.runs import completions, metrics, train, weights
from tests.shipped import small

pytestmark = [pytest.mark.envtest, pytest.mark.usefixtures('own_folder')]


class Engine(Sampler):
    """A sampler with a copy of the weights, which reads every row whole by plain ``transformers``."""

    def __init__(self, model):
        self.lm, self.versions, self.closed = copy.deepcopy(model.lm), [], False

    def bind(self, spec, sampling):
        self.spec, self.sampling = spec, sampling

    def load(self, weights, version):
        self.lm.load_state_dict({name.removeprefix('lm.'): value for name, value in weights.items()})
        self.versions.append(version)

    @torch.no_grad()
    def sample(self, request):
        rows, most = len(request.prompts), self.spec.max_new_tokens
        action, logp = torch.full((rows, most), -1), torch.zeros(rows, most)
        for row, prompt in enumerate(request.prompts):
            for t in range(most):
                ids = torch.cat([prompt, action[row, :t]])
                logits = self.lm(ids[None]).logits[:, -1, :len(self.spec.tokenizer)]
                if request.uniform is None:
                    action[row, t] = logits.argmax()
                else:
                    distribution, _ = self.sampling.restrict(logits)
                    action[row, t], logp[row, t] = draw(distribution, request.uniform[row:row + 1, t])
                if action[row, t] in self.spec.eos_token_ids:
                    break
        return Rollout(action, (action >= 0).sum(1), logp, None)

    def forget(self, env_ids):
        pass

    def close(self):
        self.closed = True


class Served(CausalLM):
    """A model whose rows an engine samples."""


@make_actor.register(Served)
def served(model, cfg, seed):
    model.engine = (Engine(model), )  # a tuple hides it from nn.Module
    return TokenActor.of(model, cfg, seed, *model.engine)


def test_an_engine_that_samples_is_given_the_weights_of_each_update(tiny_model):
    """Its rows, and what is learned from them, are those of the model that samples itself."""
    found = {}
    for name, kind in dict(own=CausalLM, engine=Served).items():
        main, create = small('think_answer_grpo')
        main.exp_name = name
        model = kind.from_model(copy.deepcopy(tiny_model.lm))
        policy = serial_pipeline_onpolicy((main, create), seed=0, model=model, max_train_iter=3)
        found[name] = [[row['completion'] for row in completions(name)], weights(policy)]
    engine, = model.engine
    assert len(set(engine.versions)) == len(engine.versions) == 4 and engine.closed  # at the start and after 3 updates
    assert found['own'][0] == found['engine'][0]
    for name, weight in found['own'][1].items():
        torch.testing.assert_close(weight, found['engine'][1][name], rtol=1e-4, atol=1e-6)
    values = []
    for kind in (CausalLM, Served):
        model = kind.from_model(copy.deepcopy(tiny_model.lm))
        values.append(evaluate((main, create), model=model, state_dict=policy.eval_mode.state_dict()))
    assert values[0] == values[1] and model.engine[0].closed


def agent(policy, problem, group, place, rewards):
    """Drives one row in an environment of its own: it yields an observation, and is sent what the policy does."""
    env = TokenEnv('think_answer', max_new_tokens=10)
    obs, _ = env.reset(seed=0, options=dict(index=problem))
    done = False
    while not done:
        output = yield obs
        following, reward, terminated, truncated, info = env.step(output['action'].numpy())
        done = terminated or truncated
        timestep = BaseEnvTimestep(following, reward, done, dict(info, eval_episode_return=reward))
        group.append(policy, place, obs, output, timestep)
        obs = following
    rewards.append(reward)


class AgentGroups:
    """Groups of rows that agents drive."""
    envstep, collect_iter = 0, None

    def __init__(self, policy):
        self.policy, self.rewards = policy, []

    def sample(self, target, train_iter):
        start, self.collect_iter, size = time.perf_counter(), train_iter, group_policy(self.policy).cfg.group_size
        groups = [Group(n, list(range(n * size, (n + 1) * size))) for n in range(target)]
        agents = {i: agent(self.policy, g.number % 4, g, i, self.rewards) for g in groups for i in g.env_ids}
        waiting = {i: next(each) for i, each in agents.items()}
        while waiting:
            keys = {i: g.row_key(train_iter, i) for g in groups for i in g.env_ids if i in waiting}
            outputs, waiting = self.policy.forward(waiting, row_keys=keys), {}
            for i, output in outputs.items():
                try:
                    waiting[i] = agents[i].send(output)
                except StopIteration:
                    self.policy.reset([i])
        for group in groups:
            group.steps = sum(len(step['action']) for steps in group.episodes.values() for step in steps)
        self.envstep += sum(group.steps for group in groups)
        done = [group.fold(self.policy, train_iter) for group in groups]
        for group in done:
            group.filter(None)
        return Sampled(done, [], dict(sampling=time.perf_counter() - start, scoring=0.), {})

    def sizes(self):
        return dict(agents=1.)

    def state_dict(self, waits=True):
        return dict(envstep=self.envstep, collect_iter=self.collect_iter)

    def load_state_dict(self, state):
        self.envstep, self.collect_iter = state['envstep'], state['collect_iter']

    def close(self):
        pass


@SERIAL_COLLECTOR_REGISTRY.register('of_agents')
class AgentCollector(GroupCollector):

    def make_source(self):
        AgentCollector.source = AgentGroups(self._policy)
        return AgentCollector.source


def test_agents_may_drive_the_rows():
    main, create = small('think_answer_grpo')
    create.collector.type = 'of_agents'
    train((main, create), updates=2, name='agents')
    logged, source = metrics('agents'), AgentCollector.source
    half = len(source.rewards) // 2
    for record, rewards in zip(logged, (source.rewards[:half], source.rewards[half:])):
        assert record['reward_mean'] == pytest.approx(sum(rewards) / half, abs=1e-6)
    assert sum(source.rewards) > 0 and logged[-1]['grad_norm'] > 0
    train((main, create), updates=3, name='agents', resume_training=True)
    assert [record['train_iter'] for record in metrics('agents')] == [0, 1, 2]


def test_plain_dicts_run_in_a_thread_and_twice_in_a_process():
    """The same weights both times, and nothing is left behind in the process."""
    shape = dict(model_type='llama', hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    learn, collect = dict(batch_groups=2), dict(groups=2)
    policy = dict(group_size=4, model=dict(config=shape), collect=collect, learn=learn)
    main = dict(env=dict(task=dict(type='think_answer'), max_new_tokens=10), policy=policy)
    create = dict(env=dict(type='token_env'), policy=dict(type='grpo'))
    before = copy.deepcopy((main, create))
    found = {}

    def go(name):
        configs = dict(main, exp_name=name), create
        found[name] = weights(serial_pipeline_onpolicy(configs, seed=0, max_train_iter=2))

    def whole():
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        return dict(os.environ), os.getcwd(), handlers, torch.get_default_dtype()

    go('first')
    left, threads = whole(), set(threading.enumerate())
    thread = threading.Thread(target=go, args=('thread', ))
    thread.start()
    thread.join()
    for other in set(threading.enumerate()) - threads:  # of writers that are still closing their files
        other.join(10)
        assert not other.is_alive(), other
    assert whole() == left and (main, create) == before
    assert all(torch.equal(weight, found['first'][key]) for key, weight in found['thread'].items())
