"""How GRPO acts and learns with a causal language model: an action is a whole completion."""
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Optional, Tuple, Union

import click
import numpy as np
import torch
from torch import Tensor

from ding_common import ConfigError, parallel
from ding_grpo.config.checks import check_for_tokens
from ding_grpo.config.sections.update import LOG_PROB_FNS
from ding_grpo.data.batch import Batch
from ding_grpo.data.diagnose import check_sampled, tokenizer_notice
from ding_grpo.data.equal_rows import merge_equal_rows, spread
from ding_grpo.data.row_generators import RowKey
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.model.autocast import EMULATED
from ding_grpo.model.sharding import reshard
from ding_grpo.rl_utils import entropy, linear_log_prob, sum_of_squares
from ding_grpo.rl_utils.log_probs.matrix_product import multiplies_bfloat16
from ding_grpo.rl_utils.on_device import on_device
from ding_grpo.rollout import EarlyStop, KeptSets, Sampling

from .actor import Actor, Forced, Reading, Wanted
from .critic import TokenCritic
from .kept_cache import version_of
from .sampler import ModelSampler, RowRequest, Sampler, make_sampler
from .sampling_rules import bind_sampling, find_sampling, kept_tokens, seen_tokens, token_rules
from .trees import Trees


class TokenActor(Actor):
    """``Actor`` of a ``CausalLM``: observations are prompts, actions are completions."""
    length_name = 'completion_length'
    rate_name = 'tokens_per_second'

    def __init__(self, model: CausalLM, sampling: Sampling, log_prob_fn: Callable, seed: int) -> None:
        """``log_prob_fn`` is ``linear_log_prob`` or a ``LogProbFunction``."""
        self._model, self._log_prob_fn = model, log_prob_fn
        self._sampling = self._unbound = sampling  # with and without what depends on the tokenizer
        self.reseed(seed)
        self.sampler: Sampler = ModelSampler(model)  # who turns prompts into rows
        self._loaded: Optional[int] = None  # version of the weights that the sampler has
        self._autocast, self._eval_autocast = False, True  # whether rows are sampled in bfloat16
        self._trained_with: Optional[str] = None  # hash of the vocabulary of a checkpoint

    @classmethod
    def of(cls, model: CausalLM, cfg: Dict, seed: int, sampler: Optional[Sampler] = None) -> 'TokenActor':
        """From the section ``policy`` of a config; ``sampler``: in place of that of the config."""
        self = cls(model, find_sampling(cfg.collect), LOG_PROB_FNS[cfg.learn.log_prob_fn], seed)
        self.sampler = make_sampler(cfg, model) if sampler is None else sampler
        self._autocast, self._eval_autocast = cfg.collect.autocast is not None, cfg.eval.autocast
        return self

    @property
    def exact(self) -> bool:
        return self._model.exact_arithmetic and not self._autocast and self.sampler.exact

    @property
    def has_adapters(self) -> bool:
        return self._model.has_adapters

    def without_adapters(self, model: CausalLM) -> ContextManager:
        return model.without_adapters()

    def check_learning(self, cfg: Dict) -> None:
        check_for_tokens(cfg)
        if self._log_prob_fn is linear_log_prob:
            self._model.output_head()  # raises if the output layer does not fit

    def bind(self, spec: Optional[NamedTuple], spaces: Optional[Tuple] = None) -> None:
        """See ``Actor.bind``. From a ``TokenSpec``, or what has its attributes, it learns how a completion ends."""
        if spec is None:
            raise ConfigError(
                'env.type: the environment has no token_spec, which a causal language model needs. Use token_env, or '
                "set policy.model.type to a model for other environments, such as 'vac'."
            )
        if spec.vocab_size > self._model.vocab_size:
            raise ConfigError(
                f'env.tokenizer: its vocabulary of {spec.vocab_size} tokens does not fit policy.model, which has '
                f'vocab_size = {self._model.vocab_size}. The model needs at least as many tokens.'
            )
        positions, longest = self._model.max_positions, spec.max_prompt_length + spec.max_tokens
        if positions is not None and longest > positions:
            turns = '' if spec.max_turns == 1 else f' and env.max_turns = {spec.max_turns}'
            raise ConfigError(
                f'env.max_prompt_length = {spec.max_prompt_length} with env.max_new_tokens = {spec.max_new_tokens}'
                f'{turns}: {longest} tokens are more than the {positions} positions of policy.model. Lower one of them'
                f"{', env.max_reply_tokens or env.max_tokens' if turns else ''}."
            )
        notices = [tokenizer_notice(self._model.lm.name_or_path, spec.tokenizer), self._model.arithmetic_notice()]
        if self._autocast and not multiplies_bfloat16(self._model.device.type):
            notices.append(f"policy.collect.autocast = 'bfloat16': {EMULATED[self._model.device.type]} Use None.")
        for notice in notices if parallel.rank() == 0 else ():
            if notice is not None:
                click.echo(notice)
        self._model.limit_vocabulary(spec.vocab_size)
        self._model.limit_length(longest)
        self._model.check_decoding()
        self._sampling = bind_sampling(self._unbound, spec, self._model.device)
        self.sampler.bind(spec, self._sampling)
        self.spec = spec
        self._check_vocabulary()

    def bind_reference(self, reference: CausalLM) -> None:
        reference.limit_vocabulary(self.spec.vocab_size)
        reference.limit_length(self.spec.max_prompt_length + self.spec.max_tokens)
        reference.load_way_state(self._model.way_state())

    def sample(
            self,
            obs: Dict[int, Any],
            row_keys: Optional[Dict[int, RowKey]] = None,
            forced: Dict[int, Forced] = {},
            enough: Optional[int] = None,
            trees: Optional[Trees] = None
    ) -> Dict[int, Dict[str, Any]]:
        """See ``Actor.sample``: a completion, or the next turn. The outputs have ``prompt`` (L, ), ``action`` and
        ``logp`` (S, ), and ``kept`` (S, K), or None, or a ``KeptSets`` where the sets have any size; with ``trees``
        also ``leader`` (S, ), see ``tree_advantage``."""
        spec, device, keys = self._known_spec, self._model.device, row_keys or {}
        stripped = [strip(spec.tokenizer.encode(o) if isinstance(o, str) else o) for o in obs.values()]
        room = [spec.max_prompt_length + spec.max_tokens - len(prompt) for prompt in stripped]
        limit = on_device(room, device) if min(room) < spec.max_new_tokens else None
        if enough is not None and any(len(key) < 3 for key in keys.values()):
            raise ConfigError(
                'policy.collect.extra_rows: needs the group collector, which tells which rows are a group. Set it to 0.'
            )
        early_stop = None if enough is None else EarlyStop([keys[i][1:3] for i in obs], enough, device)
        places = {(line, t): token for line, i in enumerate(obs) for t, token in forced.get(i, {}).items()}
        branching = None if trees is None else trees.branching(list(obs), keys, stripped, spec.tokenizer)
        uniform = None
        if row_keys is not None:
            numbers = [self._generators.of(i, row_keys[i]).random(spec.max_new_tokens) for i in obs]  # (B, T)
            uniform = on_device(np.stack(numbers), device)
        request = RowRequest(list(obs), stripped, keys, uniform, limit, places, early_stop, branching)
        autocast = self._autocast and row_keys is not None
        with torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext():
            self.prepare()
            rollout = self.sampler.sample(request)
        action, logp, kept, after = rollout.action.cpu(), rollout.logp.cpu(), rollout.kept, rollout.sampled_after
        if isinstance(kept, Tensor):
            kept = kept.cpu()
        check_sampled(logp.isfinite(), self._model, list(obs), keys, prompts=stripped)
        output = {}
        for line, (env_id, n) in enumerate(zip(obs, rollout.length.tolist())):
            output[env_id] = own = dict(
                prompt=stripped[line],
                action=action[line, :n],
                logp=logp[line, :n],
                kept=_first(None if kept is None else kept[line], n),
                sampled_after=_first(None if after is None else after[line], n),
                leader=None if branching is None else branching.of_tokens(line, n),
            )
            if getattr(spec, 'reads_logp', False):
                columns = [own['action'].numpy(), own['logp'].double().numpy()]
                own.update(tokens=own['action'], action=np.rec.fromarrays(columns, names='token,logp'))
        for i, counts in zip(obs, [] if early_stop is None else early_stop.counted(rollout.length)):
            output[i]['dropped'] = not counts
        return output

    def prepare(self) -> None:
        """Give the sampler the weights that the model has now."""
        version = version_of(self._model)
        if version != self._loaded:
            self.sampler.load(self._model.state_dict(), version)
            self._loaded = version_of(self._model)  # a sampler may try other weights

    def close(self) -> None:
        self.sampler.close()

    def evaluating(self) -> ContextManager:
        return nullcontext() if self._eval_autocast else self._model.without_autocast()

    def forget(self, env_ids: Optional[List[int]]) -> None:
        super().forget(env_ids)
        self.sampler.forget(env_ids)

    def transition(self, obs: Any, output: Dict[str, Any], timestep: Any) -> Dict[str, Any]:
        """One step of one environment, in the form that ``fold_group`` needs, with the tokens that it accepted."""
        taken = timestep.info['taken']
        reward = torch.zeros(taken)
        reward[-1] = np.asarray(timestep.reward).item()
        return dict(
            prompt=output['prompt'],
            action=output.get('tokens', output['action'])[:taken],
            logp=output['logp'][:taken],
            kept=_first(output['kept'], taken),
            sampled_after=_first(output.get('sampled_after'), taken),
            leader=_first(output.get('leader'), taken),
            reward=reward,
            turn=timestep.info.get('turn', 0),
            trajectory=timestep.info.get('trajectory'),
            rewards=timestep.info.get('rewards'),
            anchor=timestep.info.get('anchor'),
            reward_parts=timestep.info.get('reward_parts'),
            truncated=timestep.info.get('truncated'),
            failed=timestep.info.get('failed') is not None,
            done=bool(timestep.done),
        )

    def read(self, model: CausalLM, batch: Batch, wanted: Wanted = Wanted()) -> Reading:
        merged, kind = merge_equal_rows(batch)
        try:
            reading = self._read(model, merged, wanted)
        finally:
            reshard(model)
        return reading if kind is None else Reading(*(spread(x, kind, batch.action.shape[1]) for x in reading))

    def _read(self, model: CausalLM, batch: Batch, wanted: Wanted) -> Reading:
        prompts, critic = PromptBatch.of(batch.prompts, model.device), wanted.critic
        length, vocabulary = batch.length, model.output_tokens  # (B, )
        if self._log_prob_fn is linear_log_prob:
            states = model.completion_states(prompts, batch.action, length)
            logp, h, *rest = linear_log_prob(
                states.hidden,
                state=states.state,
                index=batch.action,
                mask=batch.weight,
                temperature=self._sampling.temperature,
                kept=batch.kept,
                return_entropy=True,
                return_squares=wanted.squares,
                rules=token_rules(self._sampling, batch, vocabulary),
                **model.output_head()._asdict()
            )
            reading = Reading(logp, h, squares=rest[0] if wanted.squares else None)
            if wanted.teacher is not None:
                temperature = self._sampling.temperature
                found = wanted.teacher.compare(batch, prompts, logp, states, model.output_head(), temperature)
                reading = reading._replace(divergence=found[0], teacher_kl=found[1])
            if critic is None:
                return reading
            of_own = critic.model is not None
            value = critic(model, prompts, batch.action, length) if of_own else critic.of_hidden(states.of_tokens())
            return reading._replace(value=value)
        logit = model.completion_logits(prompts, batch.action, length)  # (B, S, V)
        kept = batch.kept if batch.kept_words is None else kept_tokens(batch, vocabulary)
        logit, index = self._sampling.reuse(logit, batch.action, kept, seen_tokens(self._sampling, batch, vocabulary))
        value = None if critic is None else critic(model, prompts, batch.action, length)
        h = entropy(logit if wanted.train_entropy else logit.detach())
        return Reading(self._log_prob_fn(logit, index), h, value, sum_of_squares(logit) if wanted.squares else None)

    def make_critic(self, cfg: Dict) -> TokenCritic:
        return TokenCritic(self._model, cfg.critic.model)

    def value(self, model: CausalLM, batch: Batch, critic: TokenCritic) -> Tensor:
        return critic(model, PromptBatch.of(batch.prompts, model.device), batch.action, batch.length)

    @property
    def max_length(self) -> int:
        return self._known_spec.max_own_tokens

    @property
    def _known_spec(self) -> NamedTuple:
        if self.spec is None:
            raise ConfigError(
                'policy.type = grpo: the policy does not know how a completion ends. Use '
                "create_config.collector = dict(type='group') and an environment that has a token_spec; in a loop of "
                'your own, call policy.bind(env.token_spec) first.'
            )
        return self.spec

    def _check_vocabulary(self) -> None:
        if None not in (self.spec, self._trained_with) and self.spec.vocabulary != self._trained_with:
            raise ConfigError(
                f'env.tokenizer: its {self.spec.vocab_size} tokens are not those of the checkpoint, or have other '
                'ids, so tokens would change their meaning. Use the tokenizer of the run that wrote the checkpoint.'
            )

    def state_dict(self) -> Dict[str, Any]:
        known = {} if self.spec is None else dict(vocabulary=self.spec.vocabulary)
        return dict(known, reading=self._model.way_state())

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        if 'reading' in state:  # absent in checkpoints of older versions
            self._model.load_way_state(state['reading'])
        self._trained_with = state.get('vocabulary')
        self._check_vocabulary()

    def memory_advice(self, cfg: Dict) -> str:
        return (
            'Read fewer tokens at a time, for example policy.learn.micro_batch_tokens=1024, now '
            f'{cfg.learn.micro_batch_tokens!r}; it only changes memory and time. '
            'Or use policy.model.gradient_checkpointing=True or policy.model.lora.'
        )


def _first(of_tokens: Union[Tensor, KeptSets, None], n: int) -> Union[Tensor, KeptSets, None]:
    return of_tokens.first(n) if isinstance(of_tokens, KeptSets) else None if of_tokens is None else of_tokens[:n]


def strip(obs: Any) -> Tensor:
    """The token ids (L, ) of an observation (N, ), or of a batch of one, which has -1 after the last. DI-engine's
    workers may have cast it to float32, which is exact up to 2^24."""
    obs = torch.as_tensor(obs).long().flatten()
    return obs[obs >= 0]
