"""A world that is small enough to enumerate: its completions, their rewards, and the exact policy gradient."""
from itertools import product
from typing import List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor

END = 0  # the token that ends a completion


class World(NamedTuple):
    """All completions of P prompts, with the logits of the next token given the last one as policy. C is the number of
    completions of all prompts together, S the largest length, V the vocabulary. The policy has one row of logits for
    the start of each prompt, and one for each token that does not end a completion."""
    token: Tensor  # (C, S), 0 after the end
    state: Tensor  # (C, S): the row of the policy before each token
    weight: Tensor  # (C, S): 1 on tokens, including the one that ends the completion; 0 after it
    reward: Tensor  # (C, )
    prompt: Tensor  # (C, ) in 0 .. P - 1
    text: Tensor  # (C, S): number of the text to which each token belongs, where a completion has several

    @property
    def prompts(self) -> int:
        return int(self.prompt.max()) + 1

    @classmethod
    def make(
            cls,
            vocabulary: int,
            length: int,
            prompts: int,
            rewards: Sequence[float],
            generator: torch.Generator,
            several: bool = False
    ) -> 'World':
        """Enumerate all completions, and draw a reward for each from the values ``rewards``, equally likely, of which
        at least two differ. Every prompt has completions of the smallest and of the largest reward. ``vocabulary``,
        from 2 to 6, includes token 0, which ends a completion; ``length``, from 1 to 6, is the maximum of a completion.
        With ``several`` texts, token 1 ends a text of a completion, as an agent begins a conversation anew.
        """
        texts = _completions(vocabulary, length)
        token, state = torch.zeros(2, prompts, len(texts), length, dtype=torch.long)
        weight = torch.zeros(prompts, len(texts), length, dtype=torch.double)
        for prompt in range(prompts):
            for number, text in enumerate(texts):
                token[prompt, number, :len(text)] = torch.tensor(text)
                weight[prompt, number, :len(text)] = 1
                before = [prompt] + [prompts - 1 + last for last in text[:-1]]
                state[prompt, number, :len(text)] = torch.tensor(before)
        values = torch.tensor(rewards, dtype=torch.double)
        reward = values[torch.randint(len(values), (prompts, len(texts)), generator=generator)]
        ends = torch.rand(prompts, len(texts), generator=generator).argsort(1)[:, :2]  # two completions of each prompt
        reward.scatter_(1, ends, torch.stack([values.min(), values.max()]).expand(prompts, 2))
        number = torch.arange(prompts).unsqueeze(1).expand(prompts, len(texts))
        ends_text = (token == 1).flatten(0, 1) & several
        text = (ends_text.cumsum(1) - ends_text.int()) * weight.flatten(0, 1).long()
        return cls(
            token.flatten(0, 1), state.flatten(0, 1), weight.flatten(0, 1), reward.flatten(), number.flatten(), text
        )

    def with_reward_of(self, last: bool, rewards: Sequence[float], generator: torch.Generator) -> 'World':
        """The same completions, whose reward depends on the ``last`` two tokens alone, or on the first one alone. The
        values are as evenly distributed among these as possible."""
        length = self.weight.sum(1).long()
        place = torch.stack([length - 2, length - 1], dim=1) if last else torch.zeros(len(length), 1, dtype=torch.long)
        deciding = self.token.gather(1, place.clamp(min=0)).masked_fill(place < 0, -1)  # (C, 1 or 2)
        kinds, kind = torch.cat([self.prompt.unsqueeze(1), deciding], dim=1).unique(dim=0, return_inverse=True)
        order = torch.randperm(len(kinds), generator=generator)
        return self._replace(reward=torch.tensor(rewards, dtype=torch.double)[order % len(rewards)][kind])

    def log_prob(self, logits: Tensor) -> Tensor:
        """Log-probability of each token, 0 after the end: (rows of the policy, V) -> (C, S)."""
        return logits.log_softmax(-1)[self.state, self.token] * self.weight

    def score(self, logits: Tensor) -> Tensor:
        """Gradient of the log-probability of each token: (C, S, D), with D logits in all."""
        return torch.func.jacfwd(self.log_prob)(logits).flatten(2)

    def log_prob_of_rows(self, logits: Tensor) -> Tensor:
        """Log-probability of each completion given its prompt: (C, )."""
        return self.log_prob(logits).sum(1)

    def expected_reward(self, logits: Tensor) -> Tensor:
        return (self.log_prob_of_rows(logits).exp() * self.reward).sum() / self.prompts

    def gradient(self, logits: Tensor) -> Tensor:
        """The exact gradient of ``expected_reward``: (D, )."""
        logits = logits.detach().requires_grad_()
        return torch.autograd.grad(self.expected_reward(logits), logits)[0].flatten()

    def divergence(self, sampler: Tensor, learner: Tensor) -> Tensor:
        """KL(sampler || learner) of a completion, mean over the prompts."""
        old, new = self.log_prob_of_rows(sampler), self.log_prob_of_rows(learner)
        return (old.exp() * (old - new)).sum() / self.prompts

    def greedy(self, logits: Tensor) -> Tensor:
        """Reward of the greedy completion of each prompt: (P, )."""
        logp = logits.log_softmax(-1)
        likeliest = (self.token == logp.argmax(-1)[self.state]) | (self.weight == 0)  # (C, S)
        rows = likeliest.all(1).nonzero().squeeze(1)  # one for each prompt
        return torch.zeros(len(rows), dtype=torch.double).index_put((self.prompt[rows], ), self.reward[rows])

    def score_norm(self, logits: Tensor) -> Tensor:
        """Squared norm of the gradient of each token's log-probability with respect to its logits: (C, S)."""
        p = logits.softmax(-1)
        return (1 - 2 * p[self.state, self.token] + p.square().sum(-1)[self.state]) * self.weight


def _completions(vocabulary: int, length: int) -> List[Tuple[int, ...]]:
    """All texts of at most this length that end at the first 0, and those of this length without a 0."""
    others = range(1, vocabulary)
    ended = [(*text, END) for n in range(length) for text in product(others, repeat=n)]
    return ended + list(product(others, repeat=length))
