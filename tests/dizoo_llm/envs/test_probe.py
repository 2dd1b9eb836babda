"""What the scorer pays for texts that no policy wrote."""
import pytest

from dizoo_llm.envs import DingTokenEnv, TokenEnv
from dizoo_llm.envs.probe import probe
from dizoo_llm.tasks import ThinkAnswerTask, create_task
from tests.dizoo_llm.helper import Prompts
from tests.tasks import in_batches


@pytest.fixture
def env():
    return TokenEnv(max_new_tokens=10)


def by_kind(env):
    return {p['kind']: p for p in probe(env, 1)}


class TestThinkAnswer:

    def test_the_demonstration_gets_everything_and_junk_nothing(self, env):
        found = by_kind(env)
        assert list(found) == ['demonstration', 'empty', 'prompt', 'junk', 'repeated']
        # answer 1, format 0.5, solved 0.5; seven tokens of text would be 6 and the end
        assert (found['demonstration']['reward'], found['demonstration']['value']) == (2, 1)
        assert found['demonstration']['text'] == '3 </think> <answer> 3 </answer>'
        assert found['demonstration']['tokens'] == 6
        assert [found[kind]['reward'] for kind in ('empty', 'junk', 'repeated')] == [0, 0, 0]
        assert found['empty']['text'] == '' and found['empty']['tokens'] == 1
        assert found['prompt']['text'] == '<think> 2 3 4 </think> <answer> 7 </answer> 1'
        assert all(p['ended'] and p['failed'] is None and p['prompt_tokens'] == 19 for p in found.values())
        assert len(set(found['repeated']['text'].split())) == 1 < len(set(found['junk']['text'].split()))
        ding = DingTokenEnv(dict(task=dict(type='think_answer'), max_new_tokens=10))
        assert [p['value'] for p in ding.probe(1)] == [1, 0, 0, 0, 0]

    def test_problems_are_spread_and_the_environment_does_not_change(self, env):
        env.reset(seed=3)
        before = (env.index, env.render(), env.np_random.bit_generator.state)
        assert {p['problem'] for p in probe(env, 2)} == {0, 2} and {p['problem'] for p in probe(env, 9)} == {0, 1, 2, 3}
        assert (env.index, env.render(), env.np_random.bit_generator.state) == before

    def test_a_demonstration_that_does_not_fit_is_told(self):
        found = by_kind(TokenEnv(max_new_tokens=4))
        assert found['demonstration']['value'] is None and 'env.max_new_tokens = 4' in found['demonstration']['failed']
        assert found['junk']['value'] == 0

    def test_a_task_that_scores_batches_is_called_once(self, env, monkeypatch):
        calls = in_batches(monkeypatch, ThinkAnswerTask)
        assert [p['reward'] for p in probe(env, 2)] == [2, 0, 0, 0, 0] * 2
        assert [len(completions) for _, completions in calls] == [10]


class TestOtherTasks:

    def test_without_a_demonstration_of_its_own_there_is_none_and_a_text_may_fail_alone(self):
        task = Prompts('ab', scorer=lambda problem, text: dict(right=1 / len(text)), chars='ab')
        found = by_kind(TokenEnv(task, max_new_tokens=4))
        assert list(found) == ['empty', 'prompt', 'junk', 'repeated'] and found['prompt']['value'] == 0.5
        assert found['empty']['value'] is None and 'ZeroDivisionError' in found['empty']['failed']

    @pytest.mark.parametrize('name', ['guess', 'key_and_door'])
    def test_several_turns(self, name):
        """Demonstrations of guess halve the numbers, and find each."""
        env = TokenEnv(create_task(dict(type=name)), max_new_tokens=4, max_turns=8)
        found = by_kind(env)
        shown = [p for p in probe(env, 9) if p['kind'] == 'demonstration']
        assert len(shown) == len(env.problems) and all(p['ended'] and p['value'] == 1 for p in shown)
        assert all(found[kind]['value'] < 1 for kind in ('empty', 'junk')) and not found['empty']['ended']
