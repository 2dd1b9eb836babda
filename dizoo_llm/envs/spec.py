"""What a policy needs to know of a token environment."""
import hashlib
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from transformers import PreTrainedTokenizerBase

from .contexts import Contexts
from .demonstrations import Demonstrations

NO_TOKEN = -1  # pads observations after the last token; never a token id


class TokenSpec(NamedTuple):
    """What a policy needs to know of a token environment: how a row ends, and the sizes that a model must fit."""
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: Tuple[int, ...]
    vocab_size: int
    max_prompt_length: int
    max_new_tokens: int  # of a turn
    reward_weights: Dict[str, float]
    max_turns: int
    max_tokens: int  # of an episode after its prompt, the policy's and the environment's
    ends: Optional[Callable[[Sequence[int]], bool]]  # whether a stop string ends a turn; None without stop strings
    return_part: Optional[str] = None  # the part that evaluation reports; None: the reward
    demonstrations: Optional[Demonstrations] = None  # of the training problems; None in evaluation
    trajectories: bool = False  # whether an episode may have several texts
    reads_logp: bool = False  # whether an action is an array of records ``token``, ``logp``, in place of token ids
    contexts: Optional[Contexts] = None  # of the training problems; None in evaluation

    @property
    def max_own_tokens(self) -> int:
        """Maximum number of tokens that the policy writes in an episode."""
        return min(self.max_turns * self.max_new_tokens, self.max_tokens)

    @property
    def return_name(self) -> str:
        """What evaluation reports as the return."""
        if self.return_part is not None:
            return repr(self.return_part)
        parts = ', '.join(self.reward_weights)
        return f'the reward of all parts ({parts}; env.return_part names one)' if ', ' in parts else 'the return'

    @property
    def vocabulary(self) -> str:
        """A hash of which token has which id."""
        tokens = sorted((i, token) for token, i in self.tokenizer.get_vocab().items())
        return hashlib.sha256(repr(tokens).encode(errors='surrogatepass')).hexdigest()
