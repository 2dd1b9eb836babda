"""What the ``env`` section of a config may set: the keys of ``TokenEnv`` and ``DingTokenEnv``."""
from ding_common import MOST, Rule

ENV_OPTIONS = dict(
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
    # (bool) Whether the requests of agents are written to log/collector/records.jsonl. A replay then makes the same
    # requests in place of the agent.
    record_requests=False,
    # (List[dict]) Further parts of the reward from sequence-classification models, each with the keys of
    # ``DEFAULTS`` in ``dizoo_llm/models/reward_model.py``.
    reward_models=[],
    # (dict) Weights of parts of the reward, by name, in place of the task's. 0 for a part that is only reported.
    reward_weights=dict(),
    # (Optional[str]) Part of the reward that evaluation reports as the return: it is compared with ``stop_value``
    # and chooses the best model. None: the task's ``return_part``; without one, the reward. Set it when the reward
    # has bonus parts.
    return_part=None,
)
ENV_RULES = dict(
    task=Rule("a dict with the key 'type'", lambda v: isinstance(v, dict) and isinstance(v.get('type'), str)),
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
    record_requests=Rule.one_of(True, False),
    system_prompt=Rule('text', lambda v: isinstance(v, str)).or_none(),
    overlong_buffer=Rule.integer(1).or_none(),
    overlong_weight=Rule.number(0),
    return_part=Rule('a name', lambda v: isinstance(v, str)).or_none(),
    reward_models=Rule(
        'a list of dicts', lambda v: isinstance(v, (list, tuple)) and all(isinstance(m, dict) for m in v)
    ),
)
