import copy
import os
from contextlib import suppress
from typing import Any, Dict, Iterator, List, Optional, Tuple

import click
import numpy as np
from ding.envs import BaseEnv, BaseEnvTimestep
from ding.utils import ENV_REGISTRY
from easydict import EasyDict
from gymnasium import spaces

from ding_common import TaskError
from ding_common.config.env_config import check_env_config, pop_number
from dizoo_llm.base import Task
from dizoo_llm.base.registry import create_task, task_class
from dizoo_llm.models.generation import complete
from dizoo_llm.preflight import Found, examine
from dizoo_llm.text.tokenizer import create_tokenizer

from .options import ENV_OPTIONS, ENV_RULES
from .probe import probe
from .scorer import Scorer, as_reward
from .spec import NO_TOKEN, TokenSpec
from .token_env import create_env


@ENV_REGISTRY.register('token_env')
class DingTokenEnv(BaseEnv):
    """
    ``TokenEnv`` with DI-engine's environment interface. A collector environment starts the problem that its seed
    selects. Evaluator environment i of E runs problems i, i + E, ... up to ``n_evaluator_episode`` and then starts
    over. Each evaluation therefore runs each of the first ``n_evaluator_episode`` problems exactly once.
    """

    config = ENV_OPTIONS
    rules = ENV_RULES

    @classmethod
    def default_config(cls) -> EasyDict:
        """The defaults that DI-engine merges with a user's config."""
        cfg = EasyDict(copy.deepcopy(cls.config))
        cfg.cfg_type = cls.__name__ + 'Dict'
        return cfg

    @classmethod
    def check(cls, cfg: Dict) -> None:
        """Check the ``env`` section of a config: the keys that this class and DI-engine's pipelines read."""
        check_env_config(cfg, cls.config, cls.rules)

    @classmethod
    def task_class(cls, cfg: Dict) -> type:
        """The class of the task, by the section ``env`` of a config. Its arguments are the keys of ``env.task``."""
        return task_class(cfg.get('task', {}))

    @classmethod
    def task_of(cls, cfg: Dict) -> Task:
        """The task of the section ``env`` of a config."""
        return create_task(cfg.get('task', {}))

    @classmethod
    def examine(cls, cfg: Dict, tokens: bool = True, scores: bool = True) -> Iterator[Tuple[str, Found]]:
        """What can be known before a run of the task of the section ``env`` of a config, see ``examine``."""
        return examine(cls.task_of(cfg), {**cls.config, **cfg}, tokens, scores)

    @classmethod
    def num_problems_of(cls, cfg: Dict) -> int:
        """Number of evaluation problems, by the section ``env`` of a config."""
        cls.check(cfg)
        if cfg.get('overlong_prompts') == 'drop':
            return cls({**cfg, 'walk': [0]}).num_problems
        return len(create_task(cfg.get('task', {})).evaluation())

    @staticmethod
    def complete(
            model: Any,
            tokenizer: Any,
            prompts: List[str],
            cfg: Dict,
            max_new_tokens: Optional[int] = None,
            temperature: float = 0.0
    ) -> List[str]:
        """Texts that a model of ``transformers`` writes, after prompts read as the section ``env`` of a config says."""
        chat = {key: cfg[key] for key in ('chat', 'system_prompt', 'chat_options') if key in cfg}
        longest = max_new_tokens or cfg.get('max_new_tokens', ENV_OPTIONS['max_new_tokens'])
        return complete(model, tokenizer, prompts, chat, longest, temperature)

    @classmethod
    def vocab_size_of(cls, cfg: Dict) -> int:
        """Number of tokens of the tokenizer, by the section ``env`` of a config."""
        cls.check(cfg)
        return len(create_tokenizer(cfg.get('tokenizer'), create_task(cfg.get('task', {}))))

    @classmethod
    def create_collector_env_cfg(cls, cfg: Dict) -> List[Dict]:
        cls.check(cfg)
        number = pop_number(cfg, 'collector_env_num')
        shared, _ = cls._measured(cfg)
        return [shared] * number

    @classmethod
    def create_evaluator_env_cfg(cls, cfg: Dict) -> List[Dict]:
        cls.check(cfg)
        number, episodes = pop_number(cfg, 'evaluator_env_num'), cfg['n_evaluator_episode']
        shared, problems = cls._measured(cfg, walk=[0])
        cfgs = [EasyDict({**shared, 'walk': list(range(i, episodes, number))}) for i in range(number)]
        if episodes % problems != 0 and episodes > problems:
            click.echo(
                f'env.n_evaluator_episode = {episodes}: there are {problems} problems for evaluation, so '
                f'{episodes % problems} of them count once more than the others. Set it to {problems}.'
            )
        return cfgs

    @classmethod
    def _measured(cls, cfg: Dict, **walk: Any) -> Tuple[Dict, int]:
        """The config with what one environment has found by encoding all prompts, and the number of problems."""
        env = cls({**cfg, **walk})
        cfg.max_prompt_length = env.token_spec.max_prompt_length
        return EasyDict({**cfg, 'kept': env._env.kept}), env.num_problems

    def __init__(self, cfg: Dict) -> None:
        walk = cfg.get('walk')
        self.check({key: value for key, value in cfg.items() if key not in ('walk', 'kept')})
        options = {key: cfg.get(key, default) for key, default in self.config.items()}
        self._env = create_env(evaluation=walk is not None, kept=cfg.get('kept'), **options)
        self.together = self._env.together
        self._walk = walk
        self._walked = 0
        self._seed, self._dynamic_seed = None, True
        self._replay_path: Optional[str] = None
        self._failed: Optional[TaskError] = None
        self._scorer = Scorer(self._env, evaluates=walk is not None)
        self.observation_space = self._env.observation_space
        self.action_space = self._env.action_space
        reach = self._env.max_turns * sum(abs(w) for w in self._env.weights.values())
        self.reward_space = spaces.Box(-np.float32(reach), np.float32(reach), (1, ), np.float32)

    @property
    def token_spec(self) -> TokenSpec:
        return self._env.token_spec

    @property
    def scorer(self) -> Optional[Scorer]:
        """Scores episodes of ``reset(defer_score=True)``; None if the environments do so best, one by one."""
        return self._scorer if self._env.scoring.in_batches else None

    def probe(self, problems: int) -> List[Dict[str, Any]]:
        """What the scorer pays for demonstrations and for junk, see ``probe``. The environment does not change."""
        return [] if self.together else probe(self._env, problems)  # an agent would run for each

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """
        With ``dynamic_seed`` the seed of the next ``reset``, whose random sequence later ones continue; otherwise of
        every ``reset``. An evaluator environment starts again with its first problem.
        """
        self._seed, self._dynamic_seed = seed, dynamic_seed
        self._walked = 0

    @property
    def num_problems(self) -> int:
        """Number of problems, by whose index ``reset`` selects one."""
        return len(self._env.problems)

    def reset(
            self,
            index: Optional[int] = None,
            defer_score: bool = False,
            recorded: Optional[List[Dict[str, Any]]] = None
    ) -> np.ndarray:
        """
        Overview:
            Start a problem.
        Arguments:
            - index (:obj:`Optional[int]`): Of the problem. None: the next of an evaluator environment, otherwise the \
                one that the seed selects.
            - defer_score (:obj:`bool`): Whether to leave the score of this episode to the ``scorer`` of the env \
                manager's ``env_ref``. The info of its last step then contains ``unscored``.
            - recorded (:obj:`Optional[List[Dict[str, Any]]]`): Requests of an episode, ``record`` in the info of its \
                last step, to make in place of the agent.
        """
        index = self._next(index)
        if self.together and index is None:  # a manager's launch, before the first problem is known
            return np.zeros(self.observation_space.shape, np.int64)
        options = dict(index=index, defer_score=defer_score, recorded=recorded)
        seed = self._seed
        if self._dynamic_seed:
            self._seed = None
        try:
            obs, _ = self._env.reset(seed=seed, options=options)
        except TaskError as error:
            # DI-engine resets in threads, whose errors leave the run waiting forever. ``step`` raises this one instead.
            self._failed = error
            obs = np.full(self.observation_space.shape, NO_TOKEN)
            obs[0] = 0
        return obs

    def _next(self, index: Optional[int]) -> Optional[int]:
        if index is None and self._walk is not None:
            return self._walk[self._walked % len(self._walk)]
        return index

    def begin_reset(self, index: Optional[int] = None, defer_score: bool = False, recorded: Any = None) -> None:
        """Begin what the next ``reset`` with these arguments waits for, see ``TogetherManager``."""
        index = self._next(index)
        if index is not None:
            with suppress(TaskError):  # which ``reset`` raises too
                self._env.begin_reset(index, recorded)

    def begin_step(self, action: Any) -> None:
        """Begin what the next ``step`` waits for."""
        self._env.begin_step(action)

    def step(self, action: Any) -> BaseEnvTimestep:
        if self._failed is not None:
            raise self._failed
        obs, reward, terminated, truncated, info = self._env.step(action)
        done = terminated or truncated
        if done:
            # Here, not in ``reset``: DI-engine resets evaluator environments once more than it runs episodes.
            self._walked += 1
            if self._replay_path is not None:
                os.makedirs(self._replay_path, exist_ok=True)
                path = os.path.join(self._replay_path, f'problem_{self._env.index}.txt')
                with open(path, 'a', encoding='utf-8', errors='backslashreplace') as f:
                    f.write(f'{self.render()}\n\n')
            if 'unscored' not in info:
                total = sum(turn['reward'] for turn in info['turns']) if 'turns' in info else reward
                self._scorer.finish(0, total, self._env.own_length, info)
        return BaseEnvTimestep(obs, as_reward(reward), done, info)

    def random_action(self) -> np.ndarray:
        return np.array([self.action_space.sample()])

    def render(self) -> str:
        return self._env.render()

    def enable_save_replay(self, replay_path: Optional[str] = None) -> None:
        """
        Append the text of each further episode of problem i to ``problem_i.txt`` in a folder, by default ``./video`` as
        in DI-engine's environments.
        """
        self._replay_path = replay_path or './video'

    def close(self) -> None:
        self._env.close()
        self._scorer.close()

    def __repr__(self) -> str:
        return f'DI-engine token environment, {type(self._env.task).__name__}'
