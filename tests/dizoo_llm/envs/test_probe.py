"""What the scorer pays for texts that no policy wrote."""
import pytest

from dizoo_llm.envs import DingTokenEnv, TokenEnv
from dizoo_llm.envs.probe import probe
from dizoo_llm.tasks import ThinkAnswerTask, create_task
from tests.tasks import in_batches

pytestmark = pytest.mark.unittest


def by_kind(env, problems=1):
    return {p['kind']: p for p in probe(env, problems)}


class TestThinkAnswer:

    def test_the_demonstration_gets_everything_and_junk_nothing(self):
        found = by_kind(TokenEnv(max_new_tokens=10))
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

    def test_problems_are_spread(self):
        env = TokenEnv(max_new_tokens=10)
        assert {p['problem'] for p in probe(env, 2)} == {0, 2} and {p['problem'] for p in probe(env, 9)} == {0, 1, 2, 3}

    def test_a_demonstration_that_does_not_fit_is_told(self):
        found = by_kind(TokenEnv(max_new_tokens=4))
        assert found['demonstration']['value'] is None and 'env.max_new_tokens = 4' in found['demonstration']['failed']
        assert found['junk']['value'] == 0

    def test_an_end_that_the_environment_does_not_know(self, monkeypatch):
        monkeypatch.setattr('dizoo_llm.text.encoder.end_ids', lambda tokenizer: (99, ))
        assert not any(p['ended'] for p in by_kind(TokenEnv(max_new_tokens=10)).values())

    def test_the_environment_does_not_change(self):
        env = TokenEnv(max_new_tokens=10)
        env.reset(seed=3)
        before = (env.index, env.render(), env.np_random.bit_generator.state)
        probe(env, 4)
        assert (env.index, env.render(), env.np_random.bit_generator.state) == before

    def test_a_scorer_that_raises_fails_its_texts_only(self, monkeypatch):
        score = ThinkAnswerTask.score

        def failing(self, problem, completion):
            if completion == '':
                raise KeyError('oh')
            return score(self, problem, completion)

        monkeypatch.setattr(ThinkAnswerTask, 'score', failing)
        found = by_kind(TokenEnv(max_new_tokens=10))
        assert found['empty']['value'] is None and 'oh' in found['empty']['failed']
        assert found['demonstration']['value'] == 1

    def test_a_task_that_scores_batches_is_called_once(self, monkeypatch):
        calls = in_batches(monkeypatch, ThinkAnswerTask)
        assert [p['reward'] for p in probe(TokenEnv(max_new_tokens=10), 2)] == [2, 0, 0, 0, 0] * 2
        assert [len(completions) for _, completions in calls] == [10]


class TestOtherTasks:

    def test_without_a_demonstration_of_its_own_there_is_none(self, tmp_path):
        (tmp_path / 'task.py').write_text(
            "def problems():\n    return [dict(prompt='ab', answer='b')]\n"
            "def score(problem, completion):\n    return float(completion == 'b')\nchars = 'ab'\n"
        )
        env = TokenEnv(dict(type='python', file=str(tmp_path / 'task.py')), max_new_tokens=4)
        assert list(by_kind(env)) == ['empty', 'prompt', 'junk', 'repeated']

    @pytest.mark.parametrize('name, options', [('guess', dict(max_turns=8)), ('key_and_door', dict(max_turns=8))])
    def test_several_turns(self, name, options):
        env = TokenEnv(create_task(dict(type=name)), max_new_tokens=4, **options)
        found = by_kind(env)
        assert found['demonstration']['ended'] and found['demonstration']['value'] == 1
        assert all(found[kind]['value'] < 1 for kind in ('empty', 'junk'))

    def test_through_di_engines_environment(self):
        env = DingTokenEnv(dict(task=dict(type='think_answer'), max_new_tokens=10))
        assert [p['value'] for p in env.probe(1)] == [1, 0, 0, 0, 0]
