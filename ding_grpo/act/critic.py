"""The critic of ``learn.advantage='gae'``: values of states for generalized advantage estimation."""
from typing import Any, Dict, List, Optional

import click
import torch
from torch import Tensor, nn

from ding_common import ConfigError, check_arguments, config_errors, parallel
from ding_grpo.model import CausalLM, PromptBatch


class Critic(nn.Module):
    """The running standard deviation of returns, in whose units the values are with ``value_norm``, as in DI-engine's
    PPO. It is 1 until returns are observed."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in (('return_mean', 0.), ('return_var', 1.), ('return_count', 1e-4)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    @property
    def return_std(self) -> float:
        return self.return_var.add(1e-8).sqrt().item()

    def observe(self, returns: Tensor) -> None:
        """Include further returns (M, ) in mean and variance, https://doi.org/10.1007/978-3-642-51461-6_3."""
        returns = returns.to(self.return_mean)
        number, total = len(returns), len(returns) + self.return_count
        delta = returns.mean() - self.return_mean
        squares = self.return_var * self.return_count + returns.var(unbiased=False) * number
        self.return_var.copy_((squares + delta ** 2 * self.return_count * number / total) / total)
        self.return_mean.add_(delta * number / total)
        self.return_count.copy_(total)


class TokenCritic(Critic):
    """A linear value head on the last hidden state before each token: of the policy's model, which reads the row once
    for log-probabilities and values, or of a model of its own. The head starts at 0 and computes in float32."""

    def __init__(self, policy: CausalLM, arguments: Optional[Dict[str, Any]] = None) -> None:
        """``arguments`` of ``CausalLM`` for a model of the critic's own; None for the policy's."""
        super().__init__()
        for key in ('autocast_output', 'cuda_graphs'):
            if arguments is not None and arguments.get(key):
                raise ConfigError(f'policy.learn.critic.model.{key} = True: a critic does not sample. Set it to False.')
        self.model = None if arguments is None else own_model(arguments, 'policy.learn.critic.model', policy.device)
        size = (self.model or policy).lm.config.get_text_config().hidden_size
        self.head = nn.Linear(size, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def of_hidden(self, hidden: Tensor) -> Tensor:
        """Values (B, S) of hidden states (B, S, H)."""
        return self.head(hidden.float()).squeeze(-1)

    def forward(self, policy: CausalLM, prompts: PromptBatch, completion: Tensor, length: Tensor) -> Tensor:
        """Values (B, S) before each completion token; arguments as of ``CausalLM.completion_hidden``."""
        return self.of_hidden((self.model or policy).completion_hidden(prompts, completion, length))


class StepCritic(Critic):
    """The value head that a model such as ``vac`` contains. It has no weights of its own."""
    model = None


def head_of(policy: nn.Module, critic: nn.Module) -> List[nn.Parameter]:
    """The parameters that only the values depend on, which ``value_warmup`` trains."""
    if isinstance(critic, TokenCritic):
        return list(critic.parameters())
    shared = set(policy.actor.parameters())
    return [p for p in policy.critic.parameters() if p not in shared]


def own_model(arguments: Dict[str, Any], key: str, device: torch.device) -> CausalLM:
    """A language model beside the policy's. ``key`` is the config key that gives its arguments, for messages."""
    check_arguments(arguments, CausalLM, key)
    try:
        with config_errors(f'{key} = {arguments!r}: a causal language model cannot be built with them'):
            model = CausalLM(**arguments)
    except ConfigError as error:
        raise ConfigError(str(error).replace('policy.model', key)) from error
    notice = model.to(device).arithmetic_notice(key)
    if notice is not None and parallel.rank() == 0:
        click.echo(notice)
    return model
