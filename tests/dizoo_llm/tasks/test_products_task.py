import pytest

from ding_common import ConfigError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.envs.demonstrations import Demonstrations
from dizoo_llm.tasks import ProductsTask, create_task
from dizoo_llm.tasks.products import NUMBERS
from tests.shipped import load

CALL = '<tool_call>{"name":"calc","arguments":{"expression":"%s"}}</tool_call>'


@pytest.mark.unittest
class TestProducts:

    def test_every_product_once(self):
        task = ProductsTask(eval_size=100)
        held_out = task.evaluation()
        trained, kept = ({part.problem(i).prompt for i in range(len(part))} for part in (task, held_out))
        assert (len(trained), len(kept)) == (len(task), 100) and not trained & kept
        exchanged = {'*'.join(reversed(prompt[:-1].split('*'))) + '=' for prompt in kept}
        assert trained == {f'{a}*{b}=' for a in NUMBERS for b in NUMBERS} - kept - exchanged

    @pytest.mark.parametrize(
        'text, right', [('1904', 1), ('', 0), ('1904 ', 0), ('01904', 0), ('190', 0), ('34*56', 0)]
    )
    def test_the_number_and_nothing_else(self, text, right):
        task = ProductsTask()
        index = next(i for i in range(len(task)) if task.problem(i).prompt == '34*56=')
        assert task.checked_score(task.problem(index), text) == dict(right=right)

    @pytest.mark.parametrize('eval_size', [0, 4624])
    def test_one_for_each_side(self, eval_size):
        with pytest.raises(ConfigError, match=f'env.task.eval_size = {eval_size}: must be from 1 to 4623'):
            create_task(dict(type='products', eval_size=eval_size))

    def test_every_second_demonstration_is_right(self):
        main = load('calculator_grpo')[0]
        task = dict(main.env.task, demonstration='dizoo_llm.tasks.products:half_right')
        env = TokenEnv(task, max_turns=2, max_new_tokens=76, max_reply_tokens=64)
        examples, rewards = Demonstrations(env), []
        for index in range(200):
            row, reward = examples.played(index)
            own = [i for i in row['labels'] if i >= 0]
            problem, text = env.task.problem(index), env.tokenizer.decode(own)
            if index % 2 == 0:
                assert text == f'{CALL % problem.prompt[:-1]}<eos>{problem.answer}<eos>' and reward == 1
            else:
                assert text[:-len('<eos>')].isdigit() and len(text) == 4 + len('<eos>')
            rewards.append(reward)
        assert rewards[::2] == [1] * 100 and sum(rewards[1::2]) <= 2
