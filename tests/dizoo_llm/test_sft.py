import pytest
import torch
from click.testing import CliRunner
from easydict import EasyDict
from transformers import AutoModelForCausalLM, GenerationConfig

from ding_common import ConfigError, read_json_lines
from dizoo_llm.envs import TokenEnv
from dizoo_llm.models.generation import plain_generate
from dizoo_llm.sft import Examples, collate, evaluate, main, train
from dizoo_llm.tasks import GuessTask
from dizoo_llm.text.tokenizer import load_tokenizer

pytest.importorskip('accelerate')
TASK = '''
chars = '0123456789+='
def problems():
    return [dict(prompt=f'{a}+{b}=', answer=a + b) for a in range(5) for b in range(5)]
def score(problem, completion):
    return float(completion == str(problem['answer']))
'''
SIZES = dict(model_type='llama', hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
SHORT = dict(max_steps=2, eval_problems=1)


@pytest.fixture
def config(tmp_path, own_folder):
    (tmp_path / 'sums.py').write_text(TASK)
    return EasyDict(
        exp_name='run',
        env=dict(task=dict(type='file', path='sums.py'), max_new_tokens=3),
        model=dict(config=dict(SIZES)),
        train=dict(examples=25, batch_size=25, max_steps=120, learning_rate=5e-3, eval_freq=60, eval_problems=25),
    )


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


class TestSFT:

    def test_learns_and_writes_a_folder_that_answers(self, config):
        folder, value = train(config, seed=0)
        assert value > 0.9
        records = read_json_lines('run/evaluations.jsonl')
        assert [r['step'] for r in records] == [0, 60, 120] and records[0]['eval_episode_return'] < 0.3
        model, env = AutoModelForCausalLM.from_pretrained(folder), TokenEnv(**config.env, evaluation=True)
        assert evaluate(model, env, 25, batch_size=7) == value == records[-1]['eval_episode_return']
        assert load_tokenizer(folder).decode(load_tokenizer(folder).encode('1+2=')) == '1+2='
        # the model's own generation defaults change nothing
        own = GenerationConfig(repetition_penalty=50.0, no_repeat_ngram_size=1, top_k=1, max_new_tokens=1)
        model.generation_config = own
        assert evaluate(model, env, 25) == value and model.generation_config is own
        prompts, size = [env.encode(env.problems.checked_problem(3))] * 64, len(env.tokenizer)
        sampled = plain_generate(model, prompts, 3, env.eos_token_ids, size, temperature=100.0)
        assert len({row[0] for row in sampled}) > 5 and max(map(max, sampled)) < size
        # another run goes on from the folder, and ends within its time
        config.exp_name, config.model, config.env.tokenizer = 'more', dict(pretrained=folder), dict(pretrained=folder)
        config.train.update(max_steps=10 ** 6, max_seconds=1.0, eval_freq=10 ** 6, eval_problems=1)
        train(config, 0)
        last = read_json_lines('more/evaluations.jsonl')[-1]
        assert 1 <= last['seconds'] and last['step'] < 10 ** 5

    def test_a_seed_is_the_whole_run_and_a_run_takes_the_place_of_an_earlier_one(self, config):
        config.train.update(SHORT, max_steps=5)
        found = [weights(train(config, seed)[0]) for seed in (3, 3, 4)]
        assert [r['step'] for r in read_json_lines('run/evaluations.jsonl')] == [0, 5]
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
        assert any(not torch.equal(found[0][name], found[2][name]) for name in found[0])

    def test_only_answers_are_learned_and_they_end(self, config):
        env = TokenEnv(**config.env)
        rows = [Examples(env, 3, 4)[i] for i in (0, 3)]
        assert env.tokenizer.decode(rows[0]['input_ids']) == '0+3=3<eos>' and rows[0]['labels'][:4] == [-100] * 4
        assert env.tokenizer.decode(rows[0]['labels'][4:]) == '3<eos>'
        batch = collate(rows + [dict(input_ids=[1], labels=[1])])
        assert batch['input_ids'].shape == batch['labels'].shape == batch['attention_mask'].shape == (3, 6)
        assert batch['labels'][2].tolist() == [1] + [-100] * 5 and batch['attention_mask'][2].sum() == 1

    def test_what_is_shown_must_be_right(self, config, tmp_path):
        (tmp_path / 'sums.py').write_text(TASK.replace('completion == str', "completion == '#' + str"))
        with pytest.raises(ConfigError,
                           match="its scorer gives {'score': 0.0} for its own demonstration '0', must give"):
            train(config, 0)

    def test_demonstrations_from_elsewhere(self, config, tmp_path):
        env, path = TokenEnv(**config.env), tmp_path / 'teacher.py'
        teacher = 'def answer(problem, index):\n    return {}'
        path.write_text(teacher.format("f'{index}' + problem.answer"))
        assert env.tokenizer.decode(Examples(env, 3, 4, str(path))[1]['input_ids']) == '0+4=44<eos>'
        for text, message in (
            ('1 / 0', r'main_config.train.answers: answer\(problem, 3\) raised ZeroDivisionError'),
            ('None', r'main_config.train.answers: answer\(problem, 3\) = None: must be a string'),
            ("'000'", "env.max_new_tokens = 3: the answer '000' has 4 tokens"),
        ):
            path.write_text(teacher.format(text))
            with pytest.raises(ConfigError, match=message):
                Examples(env, 3, 4, str(path))[0]

    @pytest.mark.parametrize(
        'path, value, message', [
            ('train.answers', 'gone.py', "main_config.train.answers = 'gone.py': must be the path of a Python file"),
            ('train.example', 3, "main_config.train.example = 3: unknown key; did you mean 'examples'"),
            ('train.lr_scheduler', 'cosin', "main_config.train.lr_scheduler = 'cosin': must be one of"),
            ('model', dict(), 'main_config.model.config = None: set exactly one of them'),
            ('model.dtype', 'bfloat16', "main_config.model.dtype = 'bfloat16': must be one of pretrained"),
            ('model.config.vocab_size', 5, 'its vocabulary of 5 tokens is smaller than the 15 of the tokenizer'),
            ('model.config.model_type', 'lama', 'main_config.model.config.model_type'),
            ('env.max_new_token', 3, 'main_config.env.max_new_token = 3: unknown key'),
            ('exp_name', 'sums.py', 'main_config.exp_name = .*sums.py'),
        ]
    )
    def test_wrong_config(self, config, path, value, message):
        section = config
        *keys, last = path.split('.')
        for key in keys:
            section = section[key]
        section[last] = value
        with pytest.raises(ConfigError, match=message):
            train(config, 0)

    def test_command(self, config, tmp_path):
        config.train.update(SHORT)
        (tmp_path / 'my_config.py').write_text(f'main_config = {dict(config)!r}')
        result = CliRunner().invoke(main, ['-c', 'my_config.py', '-s', '1', '--exp-name', 'here'])
        assert result.exit_code == 0 and 'model: here/model' in result.output, result.output


class Always(GuessTask):
    """Demonstrates one guess; None raises."""

    def __init__(self, text):
        super().__init__()
        self.text = text

    def demonstration(self, problem, turns=()):
        return self.text.strip()


GUESS = dict(task=dict(type='guess'), max_new_tokens=2, max_turns=3, max_reply_tokens=2)


class TestGame:

    def test_only_the_policys_turns_are_learned(self):
        example = Examples(TokenEnv(**GUESS), 0, 7)[5]  # the secret is 6: 4 higher, 6
        assert example == dict(input_ids=[7, 3, 11, 8, 5, 11], labels=[-100, 3, 11, -100, 5, 11])

    @pytest.mark.parametrize(
        'text, told',
        [('1', 'its own demonstration of problem 3 the reward 0'), (None, 'demonstration raised AttributeError')]
    )
    def test_demonstrations_without_a_reward_are_refused(self, text, told):
        with pytest.raises(ConfigError, match=told):
            Examples(TokenEnv(**dict(GUESS, task=Always(text))), 3, 7)

    def test_a_later_demonstration_may_be_wrong(self):
        """A careless teacher is wrong now and then; that of the first problem shows that the scorer works."""
        examples = Examples(TokenEnv(**dict(GUESS, task=Always('4'))), 3, 7)
        assert examples[1]['labels'].count(3) == 3  # the secret 5: guessed 4 three times
