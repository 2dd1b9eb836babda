"""Games whose replies raise, hang, are a megabyte long or contain special tokens, in a collector."""
import time

import pytest

from dizoo_llm import TASK_REGISTRY, Reply
from dizoo_llm.envs import TokenEnv
from tests.cases import long
from tests.collect.helper import make_collector
from tests.policies import make_policy
from tests.runs import completions
from tests.tasks import Game

TURNS = dict(max_new_tokens=2, max_turns=4, max_reply_tokens=3)
HARM = ['raise', 'hang', 'flood', 'special', 'half', 'list']
TOLD = {
    'raise': 'Hostile raised OSError: gone',
    'hang': 'Hostile raised TimeoutError',
    'special': "no token for ['<eos>'] in 'say <eos>' except special ones.",
    'half': r"a reply could not be encoded: TypeError: ",
    'list': 'replied with anchor = [1], must be hashable',
}


@TASK_REGISTRY.register('hostile_turns')
class Hostile(Game):
    """A turn says what happens. Without ``harm`` each turn is answered with ``say``."""
    weights, words, prompts = dict(length=1.0), ['say', *HARM], ('say ', 'say say ', 'say say say ')

    def __init__(self, harm):
        self.harm = harm

    def respond(self, problem, state, turn):
        what = turn.text.split()[0] if turn.text and self.harm else 'say'
        if what == 'raise':
            raise OSError('gone')
        if what == 'hang':
            time.sleep(60)
        text = dict(flood='say ' * 250_000, special='say <eos>', half='\ud800').get(what, 'say')
        return Reply(text, dict(length=1.0), anchor=[1] if what == 'list' else None)


def collected(think_answer, folder, manager, harm):
    """Of each row: its tokens, the first word of each turn, whether it failed and whether it was truncated."""
    main, create = think_answer
    main.env.update(TURNS, task=dict(type='hostile_turns', harm=harm))
    policy = make_policy(main, create, env=TokenEnv(**{key: main.env[key] for key in TURNS}, task=main.env.task))
    collector = make_collector(main, create, folder, manager, 16, policy=policy, max_failed=1.0, step_timeout=1)
    rows = []
    for sample in collector.collect(n_sample=6):
        for action, turn, n, failed, truncated in zip(*(sample[key] for key in ('action', 'turn', 'length', 'failed',
                                                                                'truncated'))):
            firsts = [action[turn == number][0] for number in range(int(turn.max()) + 1)]
            words = [dict(enumerate(Hostile.words)).get(int(token)) for token in firsts]
            rows.append((action[:n].tolist(), words, bool(failed), bool(truncated)))
    collector.close()
    return rows


@pytest.mark.envtest
@pytest.mark.parametrize('manager', ['base', long('subprocess')])
def test_harm_costs_its_row_alone(think_answer, tmp_path, manager, capsys):
    peaceful = collected(think_answer, tmp_path / 'a', 'base', False)
    capsys.readouterr()
    rows = collected(think_answer, tmp_path / 'b', manager, True)
    assert capsys.readouterr().out.count('completions could not be scored and are dropped') == 1
    for (action, words, failed, truncated), before in zip(rows, peaceful):
        if set(words) & set(HARM):
            assert words[-1] in HARM and action == before[0][:len(action)]  # the episode ends there
            # The reply to the last turn allowed is not read.
            assert failed == (words[-1] in ('raise', 'hang', 'list') or words[-1] in TOLD and len(words) < 4)
            assert truncated != failed
        else:
            assert (action, words, failed, truncated) == before
    assert len(rows) == 24 and set(HARM) <= {words[-1] for _, words, *_ in rows}
    for record in completions('exp')[-24:]:
        turns = record['turns']
        assert sum(len(turn['reply']) for turn in turns) < 100
        if record['failed'] is None:
            assert record['reward'] == len(turns)
        else:
            assert TOLD[turns[-1]['text'].split()[0]] in record['failed']
            assert '\n' not in record['failed'] and len(record['failed']) < 1000
