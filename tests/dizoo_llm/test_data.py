"""Large data files: read once, measured before a run, and shared by all environments."""
import copy
import json
import os
import pickle
import sys
import threading
import tracemalloc

import pytest
from easydict import EasyDict

from dizoo_llm.chat import encode_prompt, encode_prompts
from dizoo_llm.envs import DingTokenEnv, TokenEnv, encoding, fitting
from dizoo_llm.envs.encoding import Encoder
from dizoo_llm.envs.rewarded_task import RewardedTask
from dizoo_llm.rewards import CHECKS
from dizoo_llm.tasks import ListTask, MixtureTask, Problem, Reply, Task, create_task, listed, mixture
from dizoo_llm.tokenizer import build_char_tokenizer, build_word_tokenizer
from ding_common import ConfigError

CHARS = ''.join(map(chr, range(32, 127))) + '\n'


def write(path, rows):
    path.write_text('\n'.join(json.dumps(row) for row in rows), encoding='utf-8')
    return str(path)


def questions(number, long=()):
    return [dict(question=f'{n}?' + ' how' * 20 * (n in long), answer=str(n)) for n in range(number)]


def section(path, **changes):
    """The ``env`` section of a config."""
    return EasyDict(
        dict(
            task=dict(type='file', path=path, **changes.pop('task', {})),
            tokenizer=dict(chars=CHARS),
            collector_env_num=6,
            evaluator_env_num=3,
            n_evaluator_episode=3,
            **changes
        )
    )


def environments(cfg):
    """All environments of a run."""
    collects = [DingTokenEnv(c) for c in DingTokenEnv.create_collector_env_cfg(cfg)]
    return collects, [DingTokenEnv(c) for c in DingTokenEnv.create_evaluator_env_cfg(cfg)]


def texts(env):
    return [env.problems.problem(i).text for i in range(len(env.problems))]


@pytest.fixture
def reads(monkeypatch):
    """Paths of the files that are read, in a process that has read none."""
    found, rows = [], listed.read_rows
    monkeypatch.setattr(listed, 'read_rows', lambda key, path: found.append(path) or rows(key, path))
    monkeypatch.setattr(listed, '_READ', {})
    return found


@pytest.fixture
def checks(monkeypatch):
    """The answers that math-verify, in place of which is a comparison, has been asked about."""
    found = []

    def check(pairs):
        found.extend(answer for _, answer in pairs)
        return [float(given != 'bad') for given, _ in pairs]

    monkeypatch.setitem(CHECKS, 'math_verify', check)
    return found


@pytest.mark.unittest
class TestReading:

    def test_all_environments_read_a_file_once(self, tmp_path, reads):
        path, test = write(tmp_path / 'a.jsonl', questions(9)), write(tmp_path / 'b.jsonl', questions(2))
        collects, evaluates = environments(section(path, task=dict(eval_path=test)))
        assert sorted(reads) == [path, test]
        assert all(env.num_problems == 7 for env in collects) and all(env.num_problems == 2 for env in evaluates)

    def test_a_file_that_has_changed_is_read_again(self, tmp_path, reads):
        cfg = dict(type='file', path=write(tmp_path / 'a.jsonl', questions(4)))
        assert len(create_task(cfg)) == 4
        write(tmp_path / 'a.jsonl', questions(5))
        assert len(create_task(cfg)) == 5 and len(reads) == 2

    @pytest.mark.parametrize('options', [dict(seed=1), dict(template='{prompt}!'), dict(eval_size=4)])
    def test_other_options_are_another_reading(self, tmp_path, reads, options):
        cfg = dict(type='file', path=write(tmp_path / 'a.jsonl', questions(50)), eval_size=9)
        tasks = [create_task(c).evaluation() for c in (cfg, dict(cfg, **options), cfg)]
        texts = [[task.problem(i).text for i in range(len(task))] for task in tasks]
        assert texts[0] == texts[2] != texts[1] and len(reads) == 2

    def test_files_beyond_the_most_are_forgotten_and_read_again(self, tmp_path, reads, monkeypatch):
        monkeypatch.setattr(listed, '_MOST_READ', 2)
        cfgs = [dict(type='file', path=write(tmp_path / f'{n}.jsonl', questions(n + 1))) for n in range(3)]
        assert [len(create_task(cfg)) for cfg in [*cfgs, cfgs[0]]] == [1, 2, 3, 1] and len(reads) == 4

    def test_a_problem_is_each_environments_own(self, tmp_path):
        cfg = dict(type='file', path=write(tmp_path / 'a.jsonl', questions(3)))
        create_task(cfg).problem(0).metadata['solution'] = 'changed'
        assert create_task(cfg).problem(0).metadata == dict(solution='0')

    def test_memory_is_about_that_of_the_file(self, tmp_path):
        rows = [dict(question=f'{n} is the number of a question of usual length', answer=n) for n in range(5000)]
        path = write(tmp_path / 'a.jsonl', rows)
        tracemalloc.start()
        try:
            task = create_task(dict(type='file', path=path, eval_size=10))
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(task) == 4990 and size < 2.5 * os.path.getsize(path)  # as objects, about 7 times as much

    def test_math_verify_tries_a_sample_and_says_so(self, tmp_path, checks, capsys):
        rows = [dict(question=f'{n}?', answer=f'x{n}') for n in range(250)]
        cfg = dict(type='file', path=write(tmp_path / 'a.jsonl', rows), check='math_verify')
        create_task(cfg)
        assert checks == [f'x{n * 250 // 100}' for n in range(100)]
        said, = capsys.readouterr().out.splitlines()
        assert 'was tried on 100 of 250 reference answers' in said and 'check_rows=None' in said
        checks.clear()
        create_task(dict(cfg, check_rows=None))
        assert len(checks) == 250 and capsys.readouterr().out == ''

    def test_a_reference_of_the_sample_that_is_rejected(self, tmp_path, checks):
        rows = [dict(question=f'{n}?', answer='bad' if n == 125 else 'x') for n in range(250)]
        cfg = dict(type='file', path=write(tmp_path / 'a.jsonl', rows), check='math_verify')
        with pytest.raises(ConfigError, match="line 126: .*rejects the reference answer 'bad'"):
            create_task(cfg)

    def test_contradictions_are_a_sample_as_well(self, tmp_path, checks):
        rows = [dict(question='1?', answer=f'x{n}') for n in range(30)]
        create_task(dict(type='file', path=write(tmp_path / 'a.jsonl', rows), check='math_verify', check_rows=5))
        assert len(checks) == 10

    @pytest.mark.parametrize('error', [TimeoutError('took more than 5 s'), RuntimeError('exited')])
    def test_a_reference_that_cannot_be_evaluated_is_named(self, tmp_path, monkeypatch, error):
        monkeypatch.setitem(CHECKS, 'math_verify', lambda pairs: [error] * len(pairs))
        cfg = dict(type='file', path=write(tmp_path / 'a.jsonl', questions(1)), check='math_verify')
        with pytest.raises(ConfigError, match=f"line 1: .*cannot read the reference answer '0' .{error}"):
            create_task(cfg)

    @pytest.mark.parametrize('value', [0, -1, 'all', True])
    def test_a_sample_of_none_is_refused(self, tmp_path, value):
        cfg = dict(type='file', path=write(tmp_path / 'a.jsonl', questions(1)), check_rows=value)
        with pytest.raises(ConfigError, match='env.task.check_rows'):
            create_task(cfg)

    @pytest.mark.parametrize('at', [0, (1 << 20) - 2, (1 << 20) - 1, 1 << 20])
    def test_a_wrong_byte_has_the_line_of_the_file(self, tmp_path, at):
        """The file is read in parts of 1 MiB."""
        lines = b'{"question": "1", "answer": "1"}\n' * (at // 33) + b' ' * (at % 33)
        for wrong, message in ((b'\xe9"', 'is not valid UTF-8'), (b'\xe2\x82"', 'is not valid UTF-8'), (b'\0', 'NUL')):
            (tmp_path / 'a.jsonl').write_bytes(lines + wrong + b'\n{}')
            with pytest.raises(ConfigError, match=f'line {at // 33 + 1} .*{message}'):
                create_task(dict(type='file', path=str(tmp_path / 'a.jsonl')))

    def test_a_letter_between_two_parts_is_read(self, tmp_path):
        (tmp_path / 'a.jsonl').write_bytes(b' ' * ((1 << 20) - 15) + '{"question": "€", "answer": "1"}'.encode())
        assert create_task(dict(type='file', path=str(tmp_path / 'a.jsonl'))).problem(0).text == '€'


class Sized(Task):
    """Prompts of given numbers of characters."""

    weights = dict(right=1.0)

    def __init__(self, *sizes):
        self._sizes, self.asked = sizes, 0

    def __len__(self):
        return len(self._sizes)

    def problem(self, index):
        self.asked += 1
        return Problem('a' * self._sizes[index], str(index))

    def score(self, problem, completion):
        return dict(right=0.0)


class Listed(ListTask):
    """A list of prompts, text or chat messages."""

    weights = dict(right=1.0)

    def __init__(self, *prompts):
        super().__init__([Problem(prompt, str(i)) for i, prompt in enumerate(prompts)], None, 0, 0)

    def score(self, problem, completion):
        return dict(right=1.0)


@pytest.mark.envtest
class TestLongPrompts:

    @pytest.mark.parametrize('most', [20_000, 3])
    def test_are_found_before_the_run(self, tmp_path, monkeypatch, most):
        monkeypatch.setattr(fitting, 'MOST_READ', most)
        path = write(tmp_path / 'a.jsonl', questions(40, long=(7, 31)))
        with pytest.raises(ConfigError, match='10: 2 of 40 prompts for training have more than 10 tokens, .* has 83'):
            DingTokenEnv.create_collector_env_cfg(section(path, max_prompt_length=10))
        with pytest.raises(ConfigError, match="2 of 40 prompts for evaluation .*env.overlong_prompts='drop'"):
            DingTokenEnv.create_evaluator_env_cfg(section(path, max_prompt_length=10))

    def test_are_dropped_and_no_other_problem_changes_sides(self, tmp_path, capsys):
        path = write(tmp_path / 'a.jsonl', questions(40, long=range(0, 40, 4)))
        cfg = section(path, task=dict(eval_size=20))
        whole = [TokenEnv(cfg.task, tokenizer=cfg.tokenizer, evaluation=evaluation) for evaluation in (False, True)]
        cfg.update(max_prompt_length=10, overlong_prompts='drop')
        parts = environments(cfg)
        said = capsys.readouterr().out.splitlines()
        assert len(said) == 2 and all("env.overlong_prompts = 'drop': " in line for line in said)
        for before, envs in zip(whole, parts):
            expected = [text for text in texts(before) if 'how' not in text]
            assert all(texts(env._env) == expected for env in envs) and len(expected) < 20
            for i in range(len(expected)):
                assert envs[0].reset(index=i).shape == (10 + 16, )
                assert envs[0].step([0] * 16).info['index'] == i

    def test_no_problem_is_left(self, tmp_path):
        cfg = section(write(tmp_path / 'a.jsonl', questions(4)), max_prompt_length=1, overlong_prompts='drop')
        with pytest.raises(ConfigError, match='4 of 4 prompts for training'):
            DingTokenEnv.create_collector_env_cfg(cfg)

    def test_of_a_task_that_generates_are_measured_on_demand(self):
        task = Sized(3, 9, 2)
        assert TokenEnv(task, tokenizer=dict(chars='a'), max_prompt_length=4).kept == range(3) and task.asked == 0
        env = TokenEnv(task, tokenizer=dict(chars='a'), max_prompt_length=4, overlong_prompts='drop')
        assert [env.problems.problem(i).answer for i in range(len(env.problems))] == ['0', '2']

    def test_dropped_problems_are_not_demonstrated(self):
        cfg = dict(tokenizer=dict(chars='a0123456789'), max_prompt_length=4, overlong_prompts='drop')
        shown = TokenEnv(Listed('a', 'a' * 9, 'aa'), **cfg).token_spec.demonstrations
        assert [len(shown[i]['input_ids']) for i in range(len(shown))] == [3, 4]

    def test_a_prompt_that_cannot_be_encoded_is_found_as_well(self, tmp_path):
        path = write(tmp_path / 'a.jsonl', [*questions(30), dict(question='é?', answer='1')])
        with pytest.raises(ConfigError, match="no token for .'é'. in 'é"):
            DingTokenEnv.create_collector_env_cfg(section(path, max_prompt_length=10))

    def test_a_chat_is_measured_with_its_template(self, tmp_path, monkeypatch):
        tokenizer = build_char_tokenizer('a<u>')
        tokenizer.chat_template = "{% for m in messages %}<u>{{ m['content'] }}<u>{% endfor %}"
        tokenizer.save_pretrained(str(tmp_path))
        options = dict(tokenizer=dict(pretrained=str(tmp_path)))
        task = Listed(*([dict(role='user', content='a' * n)] for n in (3, 5)))
        assert TokenEnv(task, **options).max_prompt_length == 11
        for most in (20_000, 1):
            monkeypatch.setattr(fitting, 'MOST_READ', most)
            TokenEnv(task, max_prompt_length=11, **options)
            with pytest.raises(ConfigError, match='1 of 2 prompts for training .* has 11'):
                TokenEnv(task, max_prompt_length=10, **options)

    def test_of_many_prompts_only_those_that_may_be_long_are_encoded(self, monkeypatch):
        monkeypatch.setattr(fitting, 'MOST_READ', 3)
        encoded = []

        def encode(tokenizer, prompts, *chat):
            encoded.extend(map(len, prompts))
            return encode_prompts(tokenizer, prompts, *chat)

        monkeypatch.setattr(encoding, 'encode_prompts', encode)
        task = Listed('a' * 50, 'a' * 7, 'a' * 40, 'é' * 7)
        TokenEnv(task, tokenizer=dict(chars='aé'), max_prompt_length=50)
        assert encoded == [50, 7]  # the second number is that of letters beyond ASCII

    @pytest.mark.parametrize('template', [None, "{% for m in messages %}b{{ m['content'] }}{% endfor %}"])
    @pytest.mark.parametrize(
        'prompts', [['a', '', 'ab a', 'a' * 70], ['a', 'a<eos>b', 'b'], [[dict(role='user', content='a')]]]
    )
    def test_together_they_are_encoded_as_alone(self, prompts, template):
        for tokenizer in (build_char_tokenizer('ab <eos>'), build_word_tokenizer(['a', 'b'])):
            tokenizer.chat_template = template

            def result(encode):
                try:
                    return encode()
                except ConfigError as error:
                    return error.message

            alone = result(lambda: [encode_prompt(tokenizer, prompt) for prompt in prompts])
            assert result(lambda: encode_prompts(tokenizer, prompts)) == alone
            for options in (dict(chat=False), dict(chat=True), dict(system_prompt='a'), dict(chat_options=dict(b=1))):
                alone = result(lambda: [encode_prompt(tokenizer, prompt, **options) for prompt in prompts])
                assert result(lambda: encode_prompts(tokenizer, prompts, **options)) == alone


@pytest.mark.unittest
class TestShared:

    def test_resets_in_threads_share_the_encoded_prompts(self, monkeypatch):
        monkeypatch.setattr(encoding, 'MOST_ENCODED', 2)
        monkeypatch.setattr(encoding, '_ENCODED', {})
        encoder = Encoder(Sized(1), dict(chars='ab<eos>'), 16, 4, None, None, {})
        prompts, errors = ['a', 'b', 'aa', 'a<eos>', 'bb'], []
        expected = [encode_prompt(encoder.tokenizer, prompt) for prompt in prompts]

        def reset(number):
            try:
                for i in range(number, number + 300):
                    assert encoder.prompt(Problem(prompts[i % 5])) == expected[i % 5]
            except Exception as error:
                errors.append(repr(error))

        threads, interval = [threading.Thread(target=reset, args=(n, )) for n in range(16)], sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        assert errors == []

    def test_problems_and_replies_have_a_dict_of_their_own(self):
        one, other = Problem('a'), Problem('a')
        one.metadata['kind'] = 'x'
        assert other.metadata == {} and Problem('b').metadata == {}
        Reply('a').parts['right'] = 1.0
        assert Reply('a').parts == {}
        assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one == Problem('a', '', dict(kind='x'))
        assert one._replace(answer='2') == Problem('a', '2', dict(kind='x')) and type(one._replace()) is Problem
        assert Problem('a', metadata=None).metadata is None  # a mistake is not covered up

    def test_reward_models_keep_all_else_of_a_task(self):

        class Tools(Sized):
            tools = [dict(type='function', function=dict(name='f'))]
            return_part, must_end, chars, words, listed = 'right', True, 'ab', ['c'], True
            own = 3

        task = RewardedTask(Tools(1), [])
        for name in (*Task.__annotations__, 'own', 'asked'):
            assert getattr(task, name) == getattr(Tools(1), name)
        assert copy.copy(task).own == copy.deepcopy(task).own == 3
        with pytest.raises(AttributeError):
            task.missing

    def test_a_mixture_offers_the_tools_of_its_parts(self, monkeypatch):

        class Offering(Sized):

            def __init__(self, name):
                super().__init__(1)
                self.tools = [dict(type='function', function=dict(name=name))]

        monkeypatch.setattr(mixture, 'create_task', lambda cfg: Offering(**cfg))
        one, other = dict(name='a'), dict(name='b')
        assert MixtureTask([one, one]).tools == Offering('a').tools
        with pytest.raises(ConfigError, match='Offering has tools = .*they must be equal'):
            MixtureTask([one, other])
