"""
A run as one object:

    run = GRPO('smollm2-135m-instruct', data='train.jsonl', reward=correct, group_size=8).train(updates=50)
    run.evaluate()
    run.generate('What is 2 + 3?')
"""
import copy
import os
import signal
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence, Tuple, Union

import click
import numpy as np
import torch
from ding.utils import ENV_REGISTRY
from ding.worker import LearnerHook
from easydict import EasyDict

from ding_common import ConfigError, find_config, read_config_file
from ding_grpo.check import built
from ding_grpo.entry.pipeline import evaluated, running
from ding_grpo.evaluate.pass_at_k import interval_of_mean
from ding_grpo.instruments.findings import PAGE
from ding_grpo.loop import run
from ding_grpo.replay import command as replay
from ding_grpo.report import command as report
from ding_grpo.run.checkpoint import newest, number_of, numbered
from ding_grpo.run.parts import Limits, Parts
from ding_grpo.sharing.card import draw_and_write
from ding_grpo.sharing.config_file import Saved, read_config
from ding_grpo.sharing.hub import push

from .callbacks import Callbacks, OnNumbers
from .defaults import NEVER, hold_out, of_gymnasium, of_texts, of_this_script
from .ding_agent import TRAIN, DingAgent
from .files import kept, split_model, task_of, write_config
from .keywords import set_keywords


class GRPO(DingAgent):
    """Trains a policy by GRPO. It makes the ordinary configs, and calls the same loop as ``ding -m serial_onpolicy``.
    Its config is in the folder of the run, ``config.py``, and gives the same run from the command line."""

    def __init__(
            self,
            model: Any = None,
            tokenizer: Any = None,
            data: Any = None,
            eval_data: Any = None,
            reward: Any = None,
            task: Union[str, Dict[str, Any], None] = None,
            env: Optional[str] = None,
            seed: int = 0,
            exp_name: Optional[str] = None,
            env_id: Optional[str] = None,
            on_update: Union[OnNumbers, LearnerHook, None] = None,
            on_evaluation: Optional[OnNumbers] = None,
            on_checkpoint: Optional[Callable[['GRPO', str], Any]] = None,
            **keywords: Any,
    ) -> None:
        """
        Overview:
            Describe a run; nothing is trained yet. One of ``data``, ``task`` and ``env`` is needed.
        Arguments:
            - model (:obj:`Any`): Name or folder of a pretrained language model, a model of ``transformers`` or \
                ``peft``, or a dict, the section ``policy.model``. For ``env`` also a ``torch.nn.Module``.
            - tokenizer (:obj:`Any`): In place of that of the model's folder.
            - data, eval_data (:obj:`Any`): A file, several, a list of dicts, a ``datasets.Dataset``, ... (see \
                ``FileTask``). Without ``eval_data`` a tenth of the problems, at most 128, is held out.
            - reward (:obj:`Any`): What scores completions: a function of this project's, TRL's or verl's form, its \
                name, or several (see ``FileTask``).
            - task (:obj:`Union[str, dict]`): A registered task in place of ``data``, such as ``'guess'``.
            - env, env_id (:obj:`str`): Id of an environment of gymnasium; DI-engine's agents call it ``env_id``.
            - seed (:obj:`int`): Of the run.
            - exp_name (:obj:`Optional[str]`): Folder of the run, a relative path.
            - on_update, on_evaluation, on_checkpoint (:obj:`Callable`): Called with this object and a dict of numbers \
                after each update and each evaluation, and with the path of each checkpoint. ``on_update`` may also \
                be a ``LearnerHook`` of DI-engine. An exception ends the run, which is saved.
            - keywords: Keys of the config, see ``set_keywords``: ``group_size=8``, ``learn=dict(loss='dapo')``, \
                ``**{'learn.kl.beta': 0.1}``.
        """
        env = env if env is not None else env_id
        given = [name for name, value in dict(data=data, task=task, env=env).items() if value is not None]
        if len(given) != 1:
            raise ConfigError(f"GRPO(...): needs one of data, task and env; it has {' and '.join(given) or 'none'}.")
        if data is None and (reward is not None or eval_data is not None):
            raise ConfigError('GRPO(...): reward and eval_data need data.')
        section, self._module = split_model(model)
        section.update((key, keywords.pop(key)) for key in ('lora', 'config') if key in keywords)
        if data is not None:
            if not section:
                raise ConfigError('GRPO(data=...): needs a model, such as a folder or a name.')
            task = task_of(data, eval_data, reward)
        configs, told = of_gymnasium(env, section) if env is not None else of_texts(task, section)
        click.echo(told)
        self._begin(*configs, seed)
        if tokenizer is not None:
            self.main_config.env.tokenizer = dict(pretrained=kept(tokenizer))
        set_keywords(self.main_config, self.create_config, keywords)
        if data is not None and eval_data is None and 'eval_size' not in keywords:
            hold_out(self.main_config.env)
        short = env or os.path.basename(section.get('pretrained', '')) or self.main_config.env.task.type
        self.main_config.exp_name = exp_name or f'runs/{short}_grpo'.lower()
        self._callbacks = Callbacks(on_update, on_evaluation, on_checkpoint)

    def _begin(self, main_config: EasyDict, create_config: EasyDict, seed: int) -> None:
        self.main_config, self.create_config, self.seed = main_config, create_config, seed
        self.folder: Optional[str] = None  # of the run, once it has begun
        self.policy: Optional[Any] = None
        self._updates = 0
        self._spec: Optional[Any] = None
        self._module: Optional[torch.nn.Module] = getattr(self, '_module', None)
        self._callbacks = Callbacks()

    @classmethod
    def from_config(cls, config: str, /, seed: int = 0, **keywords: Any) -> 'GRPO':
        """
        Overview:
            A run of a config file, or of a shipped config by its name.
        Arguments:
            - keywords: Keys of the config, as of ``GRPO``.
        """
        self = cls.__new__(cls)
        path = find_config(config)
        name = os.path.basename(path).removesuffix('.py').removesuffix('_config')
        self._begin(*read_config_file(path, [f"exp_name={keywords.pop('exp_name', f'runs/{name}')}"]), seed)
        set_keywords(self.main_config, self.create_config, keywords)
        return self

    @classmethod
    def load(cls, folder: str) -> 'GRPO':
        """A run by its folder, to evaluate it, or to go on. Reward functions and tasks of its config are imported when
        they are needed."""
        self = cls.__new__(cls)
        saved = read_config(folder)
        self._begin(saved.main_config, saved.create_config, saved.seed)
        self.folder = self.main_config.exp_name = os.path.relpath(folder)
        done = numbered(os.path.join(self.folder, 'ckpt'))
        self._updates = number_of(done[0]) if done else 0  # fewer than the config says if it was stopped
        return self

    def train(self, updates: Optional[int] = None, step: Optional[int] = None, **keywords: Any) -> 'GRPO':
        """
        Overview:
            Train, or go on with more updates.
        Arguments:
            - updates (:obj:`Optional[int]`): Number of updates, in addition to those before. None: until \
                ``stop_value``, or one pass over the data.
            - step (:obj:`Optional[int]`): Number of environment steps, of the whole run, after which it ends.
            - keywords: Keys of the config from now on, as of ``GRPO``, and those that DI-engine's agents take here.
        """
        keywords = {TRAIN.get(name, name): value for name, value in keywords.items()}
        set_keywords(self.main_config, self.create_config, keywords)
        main_config = copy.deepcopy(self.main_config)
        run_section, before = main_config.policy.setdefault('run', EasyDict()), self._updates
        if updates is not None:
            run_section.num_updates = self._updates + updates
        if self.folder is not None:
            main_config.policy.setdefault('learn', EasyDict()).resume_training = True
        limits = Limits() if step is None else Limits(steps=step)
        with running((main_config, self.create_config), self.seed, None, self._module, limits) as parts:
            self._end_of(parts, run_section, step)
            self.folder = self.main_config.exp_name = os.path.normpath(parts.cfg.exp_name)
            self.main_config.policy.run = run_section
            self.policy, self._spec = parts.policy, parts.evaluator.token_spec
            command = write_config(self.folder, Saved(self.main_config, self.create_config, self.seed, step))
            self._callbacks.observe(self, parts)
            try:
                run(parts)
            except SystemExit as ended:  # after a signal, saved
                if ended.code != 128 + signal.SIGINT:
                    raise
                raise KeyboardInterrupt(f'saved after update {parts.learner.train_iter}; train() goes on') from None
            finally:
                self._updates = parts.learner.train_iter
        if self._updates == before:
            click.echo(f'train(): no update after the {before} before, as the run had reached its end')
        if parts.evaluator.best > parts.evaluator.last[0]:
            click.echo(f'best evaluation: {parts.evaluator.best:.4g}, not the last one; run.best loads its weights')
        if command is not None and self._module is None and not of_this_script(self.main_config.env):
            click.echo(f'{command}  # the same run again')
        return self

    def _end_of(self, parts: Parts, run_section: EasyDict, step: Optional[int]) -> None:
        """A run that nothing ends makes one pass over the problems."""
        ends = parts.limits.updates < float('inf') or step is not None or parts.cfg.env.stop_value < NEVER
        if ends:
            return
        problems = getattr(parts.collector_env.env_ref, 'num_problems', None)
        if problems is None:
            raise ConfigError('GRPO.train(): nothing would end this run. Give updates or step, or stop_value to GRPO.')
        run_section.num_updates = self._updates + -(-problems // parts.cfg.policy.collect.groups)
        click.echo(f'train(): {run_section.num_updates - self._updates} updates, one pass over {problems:,} problems')
        parts.limits = parts.limits._replace(updates=run_section.num_updates)

    def evaluate(self, samples: int = 0) -> Dict[str, Any]:
        """
        Overview:
            Evaluate the policy as it is, on the held-out problems, or in the environment.
        Arguments:
            - samples (:obj:`int`): Also sample so many completions of each problem, for pass@1 and pass@``samples``.
        Returns:
            - found (:obj:`Dict[str, Any]`): ``return``, the mean over the episodes; ``interval``, the 95 % interval \
                of this mean (Wilson where each return is 0 or 1, else bootstrap; None where all are equal); \
                ``episodes``, their number. Of a language model also the mean of each part of the reward by its name, \
                ``completion_length`` in tokens, ``truncated`` and ``failed``, fractions, and ``completions``, a dict \
                for each problem. With ``samples``: ``sampled_return``, and ``pass_at_1`` and so on, each a dict of \
                ``mean``, ``low`` and ``high``.
        """
        keys = dict(samples_per_start=samples, pass_at=sorted({1, samples})) if samples > 0 else {}
        info, record = self._evaluated(keys)
        returns = np.ravel(info['eval_episode_return']).astype(float)
        told = {key: value for key, value in record.items() if key not in ('train_iter', 'envstep', 'seconds')}
        told['return'] = round(told.pop('eval_episode_return'), 6)  # DI-engine's returns have 32 bits
        return dict(told, interval=interval_of_mean(returns), episodes=len(returns))

    def _evaluated(self,
                   keys: Dict[str, Any],
                   seed: Optional[int] = None,
                   replay_path: Optional[str] = None) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        main_config = copy.deepcopy(self.main_config)
        set_keywords(main_config, self.create_config, keys)
        self._build()
        model, state = self.policy.whole_model, self.policy.eval_mode.state_dict()
        configs = main_config, self.create_config
        return evaluated(configs, self.seed if seed is None else seed, None, model, state, replay_path=replay_path)

    def generate(
            self,
            prompts: Union[str, Sequence[str]],
            max_new_tokens: Optional[int] = None,
            temperature: float = 0.0
    ) -> Union[str, List[str]]:
        """Complete one prompt, or several, as they are read in the run: in the chat of the tokenizer, with the system
        prompt. Greedy at temperature 0."""
        complete = getattr(ENV_REGISTRY.get(self.create_config.env.type), 'complete', None)
        if complete is None:
            raise ConfigError('GRPO.generate(): only of language models.')
        asked = [prompts] if isinstance(prompts, str) else list(prompts)
        found = complete(self.model, self.tokenizer, asked, self.main_config.env, max_new_tokens, temperature)
        return found[0] if isinstance(prompts, str) else found

    @property
    def model(self) -> Any:
        """The model: of ``transformers``, with adapters of ``peft``, or a ``torch.nn.Module``."""
        self._build()
        model = self.policy.whole_model
        return getattr(model, 'peft', None) or getattr(model, 'lm', model)

    @property
    def tokenizer(self) -> Any:
        self._build()
        return None if self._spec is None else self._spec.tokenizer

    def save(self, folder: str) -> None:
        """Write the model as it is, for ``AutoModelForCausalLM.from_pretrained``, with tokenizer and limits. After
        training also a model card, ``README.md``, and what repeats the run. Of another model than a language model its
        weights are written to the file ``folder``, or into that folder."""
        self._build()
        spec, inside = self._spec, os.path.isdir(folder)
        if spec is None:
            torch.save(self.policy.whole_model.state_dict(), os.path.join(folder, 'model.pt') if inside else folder)
        else:
            self.policy.whole_model.save_pretrained(
                folder, tokenizer=spec.tokenizer, max_new_tokens=spec.max_new_tokens, eos_token_ids=spec.eos_token_ids
            )
        if self.folder is not None and os.path.isdir(folder):
            made = self.policy.observers['watch'].history.updates  # 0 of a run that was loaded
            draw_and_write(folder, self.folder, made or self._updates)

    def why(self) -> str:
        """What is known of why the run does not learn: its page of findings, which is printed."""
        with open(os.path.join(self._own_folder('why'), PAGE), encoding='utf-8') as f:
            text = f.read()
        click.echo(text)
        return text

    def report(self) -> str:
        """Write one HTML page about the run, and return its path."""
        folder = self._own_folder('report')
        report.main.callback((folder, ), None)
        return os.path.join(folder, report.NAME)

    def replay(self, update: int, group: int = 0, rows: Sequence[int] = (), fork: Optional[str] = None) -> None:
        """Sample a group again, as the run did after the checkpoint of an update, and print it, and what the update did
        to each token of some rows. With ``fork``, 'ROW:TOKEN', continue a row from a token on in other ways."""
        path = os.path.join(self._own_folder('replay'), 'ckpt', f'iteration_{update}.pth.tar')
        none: Tuple = ()
        replay.main.callback(path, group, tuple(rows), none, none, none, fork, alone=False, trust=True, run=None)

    def _own_folder(self, name: str) -> str:
        if self.folder is None:
            raise ConfigError(f'GRPO.{name}(): the run has not begun.')
        return self.folder

    def push_to_hub(self, repo_id: str, private: bool = True, **kwargs: Any) -> Any:
        """Upload what ``save`` writes; ``kwargs`` are those of ``huggingface_hub.HfApi``."""
        return push(self.save, repo_id, private, **kwargs)

    def _build(self) -> None:
        """The policy, before any training, or with the last weights of a run that was loaded."""
        if self.policy is not None:
            return
        found = None if self.folder is None else newest(os.path.join(self.folder, 'ckpt'))
        with self._built() as (self.policy, collector):
            self._spec = collector.token_spec
            if found is not None:
                self.policy.eval_mode.load_state_dict(found.state)

    def _built(self) -> ContextManager[Tuple[Any, Any]]:
        configs = copy.deepcopy((self.main_config, self.create_config))
        return built(*configs, seed=self.seed, model=self._module)
