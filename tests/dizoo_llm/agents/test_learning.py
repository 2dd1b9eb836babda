"""Small models with random weights learn in environments of others, from rewards alone."""
import pytest
from ding.entry import serial_pipeline_onpolicy
from easydict import EasyDict

from ding_common import read_json_lines
from ding_grpo.entry import complete
from dizoo_llm.text.tokenizer import build_word_tokenizer
from tests.cases import long
from tests.dizoo_llm.agents.test_openenv import numbers, server

CALL = '<tool_call>{"name":"open","arguments":{"number":%d}}</tool_call>'
WORDS = [*(CALL % n for n in (1, 2, 3)), *'1 2 3 to higher lower right invalid open user assistant tool'.split()]
TEMPLATE = (
    '{% for t in tools or [] %}{{ t.function.name }} {% endfor %}'
    '{% for m in messages %}{{ m.role }} {{ m.content }}{% if m.role == "assistant" %}<eos>{% endif %} {% endfor %}'
    '{% if add_generation_prompt %}assistant {% endif %}'
)


class Boxes:
    """The model has to open the box that the row names."""

    def reset(self, number, **columns):
        self.opened = None

    def open(self, number: int) -> str:
        """
        Open a box.

        Args:
            number: Of the box.
        """
        self.opened = number
        return str(number)


def named(environments, number, **columns):
    return [float(environments[0].opened == number[0])]


def hint(observation):
    return observation['hint']


def learn(task, groups, seed, **options):
    """Mean reward of the sampled episodes of the first three updates and of the last three, of 30."""
    made = build_word_tokenizer(WORDS)
    made.chat_template = TEMPLATE
    made.save_pretrained('tokenizer')
    llama = dict(model_type='llama', hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    limits = dict(max_prompt_length=8, max_turns=2, max_new_tokens=1, max_reply_tokens=6, stop_value=1e9)
    main = EasyDict(
        exp_name=f'run {seed}',
        env=dict(task=task, tokenizer=dict(pretrained='tokenizer'), **limits),
        policy=dict(
            group_size=16,
            model=dict(config=dict(llama, max_position_embeddings=64)),
            learn=dict(
                batch_groups=groups, learning_rate=1e-2, adv_method='no_std', entropy=dict(weight=0.02), **options
            ),
            collect=dict(groups=groups),
            eval=dict(evaluator=dict(eval_freq=1000)),
        ),
    )
    create = complete(main, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo')))
    serial_pipeline_onpolicy((main, create), seed=seed, max_train_iter=30)
    rewards = [line['reward_mean'] for line in read_json_lines(f'run {seed}/log/learner/metrics.jsonl')]
    return sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3


@pytest.mark.parametrize('seed', [0, long(1)])
def test_an_environment_class_of_trl(own_folder, seed):
    """Which of three boxes. A call is one word of the model, and names the right box in 1 of 10 episodes at first."""
    rows = [dict(prompt=str(n), number=n) for n in (1, 2, 3)]
    task = dict(type='environment', factory=Boxes, problems=rows, reward=named, max_tool_calling_iterations=1)
    first, last = learn(task, 3, seed)
    assert first < 0.2 and last > 0.8


@pytest.mark.parametrize('seed', [0, long(1)])
def test_an_openenv_server(own_folder, seed):
    """1 or 2, in two guesses: 1 for the right one, -0.1 for another. A policy that reads the reply gets 0.95."""
    with server('guess', 64) as url:
        task = dict(type='openenv', **numbers(url, problems=[dict(seed=i, high=2) for i in range(2)]))
        first, last = learn(dict(task, text=f'{__name__}:hint'), 2, seed, advantage='return_to_go_by_step')
    assert first < 0.3 and last > 0.75
