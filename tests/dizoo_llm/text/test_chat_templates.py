"""
What the policy reads in a chat is what ``apply_chat_template`` gives for the conversation as a whole: the prompt, and
after each of its turns the end of the turn, the reply and the start of the next one. The templates are in the style of
those of model families. ``tools/chat_templates.py`` does the same with the files of a folder.
"""
import re

import pytest
from transformers import GenerationConfig

from ding_common import ConfigError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import Problem
from dizoo_llm.text.chat import apply_templates, encode_dialogue, encode_prompt
from dizoo_llm.train_reward_model import read_pairs
from tests.dizoo_llm.functions import tools
from tests.dizoo_llm.helper import file_task, play, pretrained, python_task, read, write
from tools.chat_templates import CASES, WAYS, Conversation, check, make_tokenizer, needless, rendered


def each(turn, opens='', before='', messages='messages'):
    """A template: a turn for each message, then what opens the turn that the policy writes."""
    opens = '{% if add_generation_prompt %}' + opens + '{% endif %}' if opens else ''
    return before + '{% for m in ' + messages + ' %}' + turn + '{% endfor %}' + opens


BOS, NO_SYSTEM = '{{ bos_token }}', "messages if m.role != 'system'"
ALTERNATE = each(
    "{% if (m.role == 'user') != (loop.index % 2 == 1) %}"
    "{{ raise_exception('user and assistant must take turns') }}{% endif %}",
    messages=NO_SYSTEM
)
TEMPLATES = dict(
    chatml=each('<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n', '<|im_start|>assistant\n'),
    # the system prompt is a part of the first user turn
    llama2=each(
        "{% if m.role == 'user' %}<s>[INST] {{ first if loop.first else '' }}{{ m.content | trim }} [/INST]"
        "{% else %} {{ m.content | trim }} </s>{% endif %}",
        before=ALTERNATE + "{% if messages[0].role == 'system' %}{% set first = "
        "'<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}{% else %}{% set first = '' %}{% endif %}",
        messages=NO_SYSTEM
    ),
    # no system role, the assistant has another name
    gemma=each(
        "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}<start_of_turn>"
        "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n",
        '<start_of_turn>model\n', ALTERNATE + BOS
    ),
    # nothing opens a turn of the assistant
    mistral=each(
        "{% if m.role == 'assistant' %} {{ m.content }}</s>"
        "{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]"
        "{% elif m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
        "{% else %}[INST] {{ m.content }}[/INST]{% endif %}",
        before=BOS
    ),
    # the end of the sequence follows where nothing is generated; no place for the result of a function
    phi=each(
        '<|{{ m.role }}|>\n{{ m.content }}<|end|>\n', messages="messages if m.role in ('system', 'user', 'assistant')"
    ) + "{{ '<|assistant|>\n' if add_generation_prompt else eos_token }}",
    # two tokens end a turn; a result of a function leaves its marks only
    cohere=each(
        "<|START_OF_TURN_TOKEN|>{% if m.role == 'user' %}<|USER_TOKEN|>{{ m.content }}{% elif m.role == 'assistant' %}"
        "<|CHATBOT_TOKEN|><|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% elif m.role == 'system' %}"
        "<|SYSTEM_TOKEN|>{{ m.content }}{% endif %}<|END_OF_TURN_TOKEN|>",
        '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>', BOS
    ),
    # nothing ends a turn: the policy writes the token that the next one begins with
    glm=each(
        "{% if m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}\n<result>"
        "{{ m.content }}</result>{% elif m.role == 'assistant' %}<|assistant|>\n<think></think>\n{{ m.content | trim }}"
        "{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}", '<|assistant|>', '[gMASK]<sop>'
    ),
    # the last turn ends with another token than earlier ones, and only it shows what was thought
    gpt_oss=each(
        "{% if m.role == 'assistant' %}{% set ends = loop.last and not add_generation_prompt %}"
        "{% if ends and m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
        "<|start|>assistant<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if ends else '<|end|>' }}"
        "{% elif m.role == 'tool' %}{{ raise_exception('a result without a call') }}{% else %}<|start|>"
        "{{ 'developer' if m.role == 'system' else m.role }}<|message|>{{ m.content }}<|end|>{% endif %}",
        '<|start|>assistant', '<|start|>system<|message|>Valid channels: analysis, final.<|end|>'
    ),
    # the first result of a function in a conversation opens a list of them; after one, nothing opens a turn
    deepseek=each(
        "{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% elif m.role == 'tool' %}{% if not seen.results %}"
        "<｜outputs_begin｜>{% endif %}{% set seen.results = 1 %}<｜output｜>{{ m.content }}"
        "{% elif m.role == 'assistant' %}{% if messages[loop.index0 - 1].role == 'tool' %}<｜outputs_end｜>{% else %}"
        "<｜Assistant｜>{% endif %}{{ m.content.split('</think>')[-1] }}<｜end_of_sentence｜>{% else %}{{ m.content }}"
        "{% endif %}", "{% if messages[-1].role == 'tool' %}<｜outputs_end｜>{% else %}<｜Assistant｜><think>\n{% endif %}",
        '{% set seen = namespace(results=0) %}' + BOS
    ),
    # thoughts are dropped from turns before the last question; results of functions are in one user turn
    qwen3=each(
        "{% if m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}\n"
        "<tool_response>\n{{ m.content }}\n</tool_response>"
        "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
        "{% else %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.index0 < last.user %}"
        "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endif %}",
        '<|im_start|>assistant\n', '{% set last = namespace(user=-1) %}' +
        each("{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}")
    ),
    # no place for the system prompt
    zephyr=each(
        "{% if m.role != 'system' %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endif %}", '<|assistant|>\n'
    ),
)
SWITCH = TEMPLATES['chatml'] + (
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{%- if not date is defined %}{% set date = 'today' %}{% endif %}{{ date }}"
    "{% for m in messages %}{% generation %}{% endgeneration %}{% break %}{% endfor %}"
)
ASKED, ANSWERED = dict(role='user', content='1 + 1'), dict(role='assistant', content='so #### 2')
# A template drops or rejects these. All others are read as a whole conversation is.
REFUSED = {
    ('llama2', 'tool'): 'must take turns',
    ('gemma', 'system'): 'no system role',
    ('gemma', 'tool'): 'must take turns',
    ('phi', 'tool'): 'drops the tool turn',
    ('cohere', 'tool'): r'drops the tool turn \(message 3 of 3\), so the policy would not read it',
    ('gpt_oss', 'tool'): 'rejects the turns user, assistant, tool: .*a result without a call',
    ('zephyr', 'system'): r'drops the system turn \(message 1 of 2\), .* Put its text into the first user turn',
}
# The policy reads how it ended its turns itself: the last turn of a conversation ends differently, or, in the template
# of DeepSeek, the generation prompt opens a thought that earlier turns do not have. There, what follows each turn is
# compared with what the template gives for the same contents.
CHANGED = {('phi', 'last'), ('gpt_oss', 'last'), *(('deepseek', way) for way in WAYS)}


@pytest.mark.envtest
@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('name', TEMPLATES)
def test_the_policy_reads_what_the_template_gives_or_the_turn_is_named(name, case):
    found = {way: check(TEMPLATES[name], case, way) for way in WAYS}
    if (name, case) in REFUSED:
        assert all(each.startswith('refused') and re.search(REFUSED[name, case], each) for each in found.values())
        assert not needless(TEMPLATES[name], case)
    else:
        assert found == {way: 'equal*' if (name, way) in CHANGED else 'equal' for way in WAYS}


@pytest.fixture
def environment(tmp_path):
    """Makes an environment of one conversation, or of a task, whose tokenizer has a template."""

    def make(template, prompt='ask', replies=(), task=None, **changes):
        options = dict(max_new_tokens=99, max_turns=9, max_reply_tokens=99)
        options['tokenizer'] = pretrained(make_tokenizer(template), tmp_path)
        return TokenEnv(task or Conversation(prompt, replies), **dict(options, **changes))

    return make


@pytest.mark.envtest
class TestTemplates:

    @pytest.mark.parametrize('end, wanted', [('<|endoftext|>', '\n'), ('<|im_end|>', '\n'), ('', '<|im_end|>\n')])
    def test_another_end_of_a_turn_stands_for_that_of_the_template(self, environment, tmp_path, end, wanted):
        """As a base model's end of sequence in a chat: the turn is not ended twice."""
        tokenizer = make_tokenizer(TEMPLATES['chatml'])
        ends, turn = [tokenizer.eos_token_id, tokenizer.encode('<|im_end|>')[0]], tokenizer.encode(f'yes{end}')
        GenerationConfig(eos_token_id=ends).save_pretrained(str(tmp_path))
        env = environment(TEMPLATES['chatml'], replies=['go', 'on'], max_new_tokens=len(turn))
        (obs, *_), = play(env, turn)
        assert read(env, obs).endswith(f'yes{end}{wanted}<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n')

    def test_a_cut_turn_may_end_with_what_begins_the_end_of_a_turn(self, environment):
        template = each('<|{{ m.role }}|>{{ m.content }}\n<|end|>', '<|assistant|>')
        env = environment(template, replies=['go', 'on'], max_new_tokens=len('yes\n'))
        (obs, *_), = play(env, env.tokenizer.encode('yes\n'))
        assert '<|assistant|>yes\n\n<|end|><|user|>go' in read(env, obs)

    def test_what_was_thought_stays_and_the_reply_is_that_of_the_whole_conversation(self, environment):
        """The template drops the thought from the earlier turn: what the policy wrote is not rendered again."""
        turn = '<think>a</think>\nb'
        env = environment(TEMPLATES['qwen3'], replies=['go', 'on'], max_new_tokens=len(turn))
        (obs, *_), = play(env, env.tokenizer.encode(turn))
        told = [dict(role='user', content='ask'), dict(role='assistant', content=turn), dict(role='user', content='go')]
        whole = rendered(env.tokenizer, told)
        assert '<think>' not in whole
        assert read(env, obs) == whole.replace('assistant\nb', f'assistant\n{turn}')

    @pytest.mark.parametrize('name', ['cohere', 'gpt_oss'])
    def test_a_tool_without_a_place_for_its_result_is_refused_before_the_first_sample(self, environment, name):
        with pytest.raises(Exception, match='drops the tool turn|rejects the turns .*tool'):
            environment(TEMPLATES[name], task=tools())

    def test_special_tokens_in_a_reply_are_text(self, environment):
        env = environment(TEMPLATES['chatml'], replies=['a<|im_end|>b', 'on'])
        end = env.tokenizer.convert_tokens_to_ids('<|im_end|>')
        (obs, *_), = play(env, env.tokenizer.encode('yes') + [env.tokenizer.eos_token_id])
        told = obs[obs >= 0].tolist()
        assert 'user\na<|im_end|>b<|im_end|>' in read(env, obs) and told.count(end) == 3

    def test_functions_are_described_where_the_template_does_not_show_them(self, environment):
        """It mentions the variable ``tools``, and describes none."""
        env = environment(TEMPLATES['chatml'] + '{% if tools %}{% endif %}', task=tools())
        assert '"name": "calc"' in env.tokenizer.decode(env.encode(env.task.problem(0)))

    def test_a_system_prompt_without_a_place_is_refused(self):
        tokenizer = make_tokenizer(TEMPLATES['zephyr'])
        with pytest.raises(ConfigError, match=r'drops the system turn \(message 1 of 2\)'):
            encode_prompt(tokenizer, 'ask', system_prompt='be kind')
        with pytest.raises(ConfigError, match='drops the system turn'):  # of a reward model too
            apply_templates(tokenizer, [[dict(role=r, content=r) for r in ('system', 'user', 'assistant')]], False, {})
        empty = [dict(role='system', content=''), dict(role='user', content='a')]  # nothing is lost
        assert tokenizer.decode(encode_prompt(tokenizer, empty)) == '<|user|>\na<|endoftext|>\n<|assistant|>\n'

    def test_a_template_that_moves_the_system_turn_is_refused(self, environment):
        """As Mistral's of 2024: it stands in the last user turn, and the policy would read it at every turn."""
        template = (
            "{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}[INST] {% if loop.last and "
            "messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}{{ m.content }}[/INST]{% else %}"
            "{{ m.content }}</s>{% endif %}{% endfor %}"
        )
        environment(template)
        with pytest.raises(ConfigError, match='moves the system turn after later ones'):
            environment(template, system_prompt='be kind')

    def test_variables_that_the_template_does_not_read_are_refused_by_name(self, environment):
        env = environment(SWITCH, chat_options=dict(enable_thinking=False, date='now'))
        assert env.tokenizer.decode(env.encode(env.task.problem(0))).endswith('<think></think>now')
        for template, name, told in (
            (SWITCH, 'enable_thinkin', r"did you mean 'enable_thinking'\? Allowed: date, enable_thinking."),
            (SWITCH, 'messages', 'Allowed: date, enable_thinking.'),
            (TEMPLATES['chatml'], 'enable_thinking', 'It reads none.'),
        ):
            message = f'^env.chat_options.{name} = False: the chat template reads no such variable. {told}$'
            with pytest.raises(ConfigError, match=message):
                environment(template, chat_options={name: False})

    def test_messages_without_a_template_are_refused_at_the_start(self, environment):
        with pytest.raises(ConfigError, match='^env.chat = False: the prompts of env.task are chat messages'):
            environment(TEMPLATES['chatml'], [ASKED], chat=False, max_prompt_length=64)


@pytest.mark.envtest
class TestAnswersInPrompts:
    """Messages that end with a turn of the assistant: the policy would read the answer."""

    def test_no_prompt_ends_with_an_answer(self, environment, tmp_path):
        tokenizer, chatml, both = make_tokenizer(TEMPLATES['chatml']), TEMPLATES['chatml'], [ASKED, ANSWERED]
        score = '\ndef score(problem, completion):\n    return 0.0\n'
        pairs = write(tmp_path / 'pairs.jsonl', [dict(prompt=both, chosen='2', rejected='3')])
        for read_it in (
                lambda: encode_prompt(tokenizer, both),
                lambda: encode_prompt(tokenizer, [ASKED, dict(ANSWERED, role='model')]),
                lambda: encode_dialogue(tokenizer, both, '2'),
                lambda: environment(chatml, both),
                lambda: python_task(tmp_path, f'def problems():\n    return [dict(prompt={both!r}, answer=2)]{score}'),
                lambda: read_pairs(pairs, 1),
                lambda: file_task(tmp_path / 'a.jsonl', [dict(messages=both, answer='2')], prompt='messages'),
        ):
            with pytest.raises(ConfigError, match="end with the assistant's turn 'so #### 2'"):
                read_it()
        env = environment(chatml, replies=[both], max_new_tokens=1)
        assert "end with the assistant's turn" in play(env, env.tokenizer.encode('?'))[0][-1]['failed']

    def test_of_a_file_without_answers_it_is_the_answer(self, tmp_path):
        rows = [dict(messages=[ASKED, ANSWERED]), dict(messages=[ASKED], answer='#### 2')]
        with pytest.warns(UserWarning, match=r"1 row\(s\) have no 'answer' .* is their reference answer, and not read"):
            task = file_task(tmp_path / 'a.jsonl', rows, prompt='messages', reference_in='####', answer_in='####')
        for i, solution in enumerate(['so #### 2', '#### 2']):
            assert task.problem(i) == Problem([ASKED], '2', dict(solution=solution))
        assert task.demonstration(task.problem(0)) == 'so #### 2'
