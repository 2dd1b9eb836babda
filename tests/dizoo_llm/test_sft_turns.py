"""The warm start on dialogues."""
import pytest
from easydict import EasyDict

from dizoo_llm.envs import TokenEnv
from dizoo_llm.sft import train
from dizoo_llm.sft_examples import Examples
from dizoo_llm.tasks import GuessTask
from ding_common import ConfigError

ENV = dict(task=dict(type='guess'), max_new_tokens=2, max_turns=3, max_reply_tokens=2)


@pytest.mark.unittest
def test_only_the_policys_turns_are_learned():
    example = Examples(TokenEnv(**ENV), 0, 7)[5]  # the secret is 6: 4 higher, 6
    assert example == dict(input_ids=[7, 3, 11, 8, 5, 11], labels=[-100, 3, 11, -100, 5, 11])


@pytest.mark.unittest
def test_demonstrations_without_a_reward_are_refused(monkeypatch):
    monkeypatch.setattr(GuessTask, 'demonstration', lambda *args: '1')
    with pytest.raises(ConfigError, match='its own demonstration of problem 3 the reward 0'):
        Examples(TokenEnv(**ENV), 3, 7)
    monkeypatch.setattr(GuessTask, 'demonstration', lambda *args: 1 / 0)
    with pytest.raises(ConfigError, match='demonstration raised ZeroDivisionError'):
        Examples(TokenEnv(**ENV), 3, 7)


@pytest.mark.unittest
def test_a_later_demonstration_may_be_wrong(monkeypatch):
    """A careless teacher is wrong now and then; that of the first problem shows that the scorer works."""
    monkeypatch.setattr(GuessTask, 'demonstration', lambda *args: '4')
    examples = Examples(TokenEnv(**ENV), 3, 7)
    assert examples[1]['labels'].count(3) == 3  # the secret 5: guessed 4 three times


@pytest.mark.envtest
def test_a_game_is_learned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = dict(model_type='llama', hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    options = dict(examples=7, batch_size=7, max_steps=120, learning_rate=5e-3, eval_freq=60, eval_problems=7)
    config = dict(exp_name='run', env=ENV, model=dict(config=dict(model, max_position_embeddings=16)), train=options)
    _, value = train(EasyDict(config), 0)
    assert value == 1
