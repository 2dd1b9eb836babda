import copy
import os
from typing import Any, Dict, List, Optional, Tuple

import click
import numpy as np
from ding.envs import BaseEnv, BaseEnvTimestep
from ding.utils import ENV_REGISTRY, deep_merge_dicts
from easydict import EasyDict
from gymnasium import spaces

from ding_common import MOST, Rule, TaskError
from ding_common.env_config import check_env_config, pop_number
from dizoo_llm.tasks import create_task

from .probe import probe
from .scorer import Scorer, as_reward
from .token_env import NO_TOKEN, TokenEnv
from .tokenizers import create_tokenizer


@ENV_REGISTRY.register('token_env')
class DingTokenEnv(BaseEnv):
    """
    Overview:
        ``TokenEnv`` with DI-engine's environment interface. A collector environment starts the problem that its seed
        selects. Evaluator environment i of E runs problems i, i + E, ... up to ``n_evaluator_episode`` and then starts
        over. Each evaluation therefore runs each of the first ``n_evaluator_episode`` problems exactly once.
    """

    config = dict(
        # (dict) Registered task: ``type``, ``import_names``, and the task's own arguments.
        task=dict(),
        # (Optional[dict]) dict(pretrained=folder or name), dict(words=[...]) or dict(chars='...'). None builds a
        # tokenizer from the task's words or characters.
        tokenizer=None,
        # (Optional[bool]) Whether a text prompt becomes a user message in the tokenizer's chat template. None applies
        # the template if the tokenizer has one. False is refused for prompts that are chat messages.
        chat=None,
        # (Optional[str]) System message at the start of every chat.
        system_prompt=None,
        # (dict) Additional variables that the chat template reads, such as enable_thinking.
        chat_options=dict(),
        # (int) Maximum length of a turn of the policy, its completion, in tokens. Lower it when completions ramble,
        # raise it when many are cut.
        max_new_tokens=16,
        # (int) Maximum number of turns of the policy. Above 1 for a ``MultiTurnTask``, which answers each turn.
        max_turns=1,
        # (int) Maximum number of tokens that the environment adds after a turn. A longer reply ends the episode.
        max_reply_tokens=16,
        # (Optional[int]) Maximum number of tokens of an episode after its prompt, the policy's and the environment's.
        # Lower it to bound memory. None: as many as the three limits above allow.
        max_tokens=None,
        # (List[str]) Stop strings: the token that completes one ends the turn, beside end-of-sequence tokens. For base
        # models, which write no end of turn.
        stop=[],
        # (Optional[int]) Maximum prompt length in tokens. None encodes all prompts to find the longest.
        max_prompt_length=None,
        # (str) What to do with longer prompts, which are searched for at the start: 'error', or 'drop' to leave out
        # their problems. They are dropped after the split into training and evaluation, so that no other problem
        # changes sides, and ``eval_size`` counts them.
        overlong_prompts='error',
        # (Optional[int]) Number of tokens before the length limit over which the reward part ``overlong`` falls from 0
        # to -1. Use it when completions ramble until they are cut.
        overlong_buffer=None,
        # (float) Weight of ``overlong`` in the reward.
        overlong_weight=1.0,
        # (List[dict]) Further parts of the reward from sequence-classification models, each with the keys of
        # ``DEFAULTS`` in ``dizoo_llm/reward_model.py``.
        reward_models=[],
        # (dict) Weights of parts of the reward, by name, in place of the task's. 0 for a part that is only reported.
        reward_weights=dict(),
        # (Optional[str]) Part of the reward that evaluation reports as the return: it is compared with ``stop_value``
        # and chooses the best model. None: the task's ``return_part``; without one, the reward. Set it when the reward
        # has bonus parts.
        return_part=None,
    )
    rules = dict(
        task=Rule("a dict with the key 'type'", lambda v: isinstance(v, dict) and isinstance(v.get('type'), str)),
        tokenizer=Rule('None or a dict', lambda v: v is None or isinstance(v, dict)),
        max_new_tokens=Rule.integer(1, MOST),
        max_turns=Rule.integer(1, MOST),
        max_reply_tokens=Rule.integer(1, MOST),
        max_tokens=Rule.integer(1, MOST).or_none(),
        stop=Rule(
            'a list of texts of at least one character',
            lambda v: isinstance(v, (list, tuple)) and all(isinstance(text, str) and text for text in v)
        ),
        max_prompt_length=Rule.integer(1, MOST).or_none(),
        overlong_prompts=Rule.one_of('error', 'drop'),
        chat=Rule.one_of(True, False).or_none(),
        system_prompt=Rule('text', lambda v: isinstance(v, str)).or_none(),
        overlong_buffer=Rule.integer(1).or_none(),
        overlong_weight=Rule.number(0),
        return_part=Rule('a name', lambda v: isinstance(v, str)).or_none(),
        reward_models=Rule(
            'a list of dicts', lambda v: isinstance(v, (list, tuple)) and all(isinstance(m, dict) for m in v)
        ),
    )

    @classmethod
    def default_config(cls) -> EasyDict:
        """The defaults that DI-engine merges with a user's config."""
        cfg = EasyDict(copy.deepcopy(cls.config))
        cfg.cfg_type = cls.__name__ + 'Dict'
        return cfg

    @classmethod
    def check(cls, cfg: Dict) -> None:
        """
        Overview:
            Check the ``env`` section of a config against the keys that this environment and DI-engine's pipelines read.
        Raises:
            - ConfigError: On the first key that is unknown or has an invalid value.
        """
        check_env_config(cfg, cls.config, cls.rules)

    @classmethod
    def num_problems_of(cls, cfg: Dict) -> int:
        """Number of evaluation problems, by the section ``env`` of a config."""
        cls.check(cfg)
        if cfg.get('overlong_prompts') == 'drop':
            return cls({**cfg, 'walk': [0]}).num_problems
        return len(create_task(cfg.get('task', {})).evaluation())

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
        cfg = deep_merge_dicts(self.default_config(), EasyDict(cfg))
        options = {key: cfg[key] for key in self.config}
        self._env = TokenEnv(evaluation=walk is not None, kept=cfg.get('kept'), **options)
        self._walk = walk
        self._walked = 0
        self._seed, self._dynamic_seed = None, True
        self._replay_path: Optional[str] = None
        self._failed: Optional[TaskError] = None
        self._scorer = Scorer(self._env, evaluates=walk is not None)
        self.observation_space = self._env.observation_space
        self.action_space = self._env.action_space
        reach = sum(abs(w) for w in self._env.weights.values())
        reach *= self._env.max_turns
        self.reward_space = spaces.Box(-np.float32(reach), np.float32(reach), (1, ), np.float32)

    @property
    def token_spec(self) -> Any:
        """The properties of this environment that a policy needs, see ``TokenSpec``."""
        return self._env.token_spec

    @property
    def scorer(self) -> Optional[Scorer]:
        """Scores the episodes that environments with ``reset(defer_score=True)`` left unscored. None: the task scores
        single completions, and its environments do so best."""
        return self._scorer if self._env.task.scores_batches else None

    def probe(self, problems: int) -> List[Dict[str, Any]]:
        """
        Overview:
            What the scorer pays for demonstrations and for junk, see ``probe``. The environment does not change.
        Arguments:
            - problems (:obj:`int`): Number of problems.
        """
        return probe(self._env, problems)

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """
        Overview:
            Set the seed. An evaluator environment starts again with its first problem.
        Arguments:
            - seed (:obj:`int`): Selects the problem.
            - dynamic_seed (:obj:`bool`): True: it is the seed of the next ``reset``, and later resets continue the \
                same random sequence. False: it is the seed of every ``reset``.
        """
        self._seed, self._dynamic_seed = seed, dynamic_seed
        self._walked = 0

    @property
    def num_problems(self) -> int:
        """Number of problems, by whose index ``reset`` selects one."""
        return len(self._env.problems)

    def reset(self, index: Optional[int] = None, defer_score: bool = False) -> np.ndarray:
        """
        Overview:
            Start a problem.
        Arguments:
            - index (:obj:`Optional[int]`): Of the problem. None: the next of an evaluator environment, otherwise the \
                one that the seed selects.
            - defer_score (:obj:`bool`): Whether to leave the score of this episode to the ``scorer`` of the env \
                manager's ``env_ref``. The info of its last step then contains ``unscored``.
        """
        if index is None and self._walk is not None:
            index = self._walk[self._walked % len(self._walk)]
        options = dict(index=index, defer_score=defer_score)
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

    def step(self, action: Any) -> BaseEnvTimestep:
        if self._failed is not None:
            raise self._failed
        obs, reward, terminated, truncated, info = self._env.step(action)
        done = terminated or truncated
        if done:
            # Here, not in ``reset``: DI-engine resets evaluator environments once more than it runs episodes.
            self._walked += 1
            if self._replay_path is not None:
                self._save_replay()
            if 'unscored' not in info:
                total = sum(turn['reward'] for turn in info['turns']) if 'turns' in info else reward
                self._scorer.finish(0, total, self._env.own_length, info)
        return BaseEnvTimestep(obs, as_reward(reward), done, info)

    def random_action(self) -> np.ndarray:
        """A random token id, of shape :math:`(1, )`."""
        return np.array([self.action_space.sample()])

    def render(self) -> str:
        """The prompt and the tokens after it, as text."""
        return self._env.render()

    def enable_save_replay(self, replay_path: Optional[str] = None) -> None:
        """
        Overview:
            Save the text of each episode that ends from now on.
        Arguments:
            - replay_path (:obj:`Optional[str]`): A folder, in which the episodes of problem i are appended to \
                ``problem_i.txt``. None: ``./video``, as in DI-engine's environments.
        """
        self._replay_path = replay_path or './video'

    def _save_replay(self) -> None:
        os.makedirs(self._replay_path, exist_ok=True)
        path = os.path.join(self._replay_path, f'problem_{self._env.index}.txt')
        with open(path, 'a', encoding='utf-8', errors='backslashreplace') as f:
            f.write(f'{self.render()}\n\n')

    def close(self) -> None:
        self._env.close()

    def __repr__(self) -> str:
        return f'DI-engine token environment, {type(self._env.task).__name__}'
