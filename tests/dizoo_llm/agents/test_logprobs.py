"""Log-probabilities that agents read are those of the tokens that are learned."""
import asyncio
import json
from types import SimpleNamespace

import numpy as np
import openai
import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ding_common import read_json_lines
from ding_grpo.check import built
from dizoo_llm.agents.body import Asked, Refused
from dizoo_llm.agents.conversations import Conversations
from dizoo_llm.models.generation import episodes
from dizoo_llm.text.tokenizer import build_word_tokenizer, decode_after
from tests.dizoo_llm.agents import programs
from tests.dizoo_llm.agents.episodes import turn
from tests.shipped import small

CALL = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'


def records(tokens):
    """An action with log-probabilities, as the policy gives it: -0.5, -1.5, ..."""
    return np.rec.fromarrays([np.array(tokens), -np.arange(len(tokens)) - 0.5], names='token,logp')


def play(env, *turns):
    env.reset(options=dict(index=0))
    for tokens in turns:
        step = env.step(records(tokens))
    assert step[-1].get('failed') is None and (step[2] or step[3]), step[-1]
    return step


def own(choice):
    """Token and log-probability of each token of a choice."""
    if hasattr(choice, 'text'):
        return list(zip(choice.logprobs.tokens, choice.logprobs.token_logprobs))
    assert all(each.top_logprobs == [] and bytes(each.bytes).decode() == each.token for each in choice.logprobs.content)
    return [(each.token, each.logprob) for each in choice.logprobs.content]


async def chat(client, messages, **options):
    return await client.chat.completions.create(model='policy', messages=messages, logprobs=True, **options)


@pytest.mark.parametrize('http', [False, True])
def test_of_turns_choices_stops_and_calls(env_of, http):
    """Each choice of a request has its own tokens, and the row has no more than the agent reads."""
    found = []

    async def run(problem, client):
        client = openai.AsyncOpenAI(base_url=str(client.base_url), api_key='any') if http else client
        messages = [programs.user('q')]
        for options in (dict(tools=[programs.TOOL]), dict(tools=[programs.TOOL], stop='lo'), dict(n=2, max_tokens=2)):
            reply = await chat(client, messages, **options)
            assert reply.usage.completion_tokens == sum(len(each.logprobs.content) for each in reply.choices)
            found.append(reply)
            messages = [*messages, reply.choices[0].message, dict(role='tool', content='2', tool_call_id='x')]
        return 1.0

    env = env_of(run, options=dict(max_new_tokens=80, max_prompt_length=400))
    texts = [CALL, 'hello', 'abc', 'xyz']
    play(env, *(turn(env, text) for text in texts))
    call, stopped, both = found
    assert call.choices[0].message.tool_calls[0].function.name == 'add'
    assert own(call.choices[0]) == [(token, -i - 0.5) for i, token in enumerate([*CALL, '<|im_end|>'])]
    assert stopped.choices[0].message.content == 'hel'
    assert own(stopped.choices[0]) == [(token, -i - 0.5) for i, token in enumerate('hello')]
    assert [own(choice) for choice in both.choices] == [[('a', -0.5), ('b', -1.5)], [('x', -0.5), ('y', -1.5)]]


def test_of_completions_and_streams(env_of):
    found = []

    async def run(problem, client):
        found.append(await client.completions.create(model='policy', prompt='ab', logprobs=0, stop='c'))
        async for chunk in await chat(client, [programs.user('x')], stream=True):
            found.append(chunk)
        found.append(await client.completions.create(model='policy', prompt='ab'))
        return 1.0

    env = env_of(run)
    play(env, turn(env, 'abcd'), turn(env, 'hi'), turn(env, 'x'))
    plain, chunk, without = (each.choices[0] for each in found)
    assert (plain.text, own(plain)) == ('ab', [('a', -0.5), ('b', -1.5), ('c', -2.5)])
    assert plain.logprobs.text_offset == [0, 1, 2] and plain.logprobs.top_logprobs is None
    assert [each.token for each in chunk.logprobs.content] == ['h', 'i', '<|im_end|>'] and without.logprobs is None


def of_bytes():
    """A tokenizer of bytes, in which some characters have several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=made, eos_token='<eos>')
    return made


@pytest.mark.parametrize(
    'tokenizer, text, kept, pieces', [
        (of_bytes(), 'a\u00e9\u4e2d b', slice(None), ['a', '', '\u00e9', '', '', '\u4e2d', ' ', 'b']),
        (of_bytes(), '\u4e2d', slice(2), ['', '\ufffd']),
        (of_bytes(), '\u4e2da', slice(2, None), ['', '\ufffda']),
        (build_word_tokenizer(['a', 'b']), 'a b a', slice(None), ['a', ' b', ' a']),
    ],
    ids=['characters', 'cut', 'no character', 'words']
)
def test_tokens_are_pieces_of_the_text(tokenizer, text, kept, pieces):
    """Also where a character has several tokens, and where spaces between words have none."""
    ids = tokenizer.encode(text, add_special_tokens=False)[kept]
    encoder = SimpleNamespace(decode=lambda ids, before: decode_after(tokenizer, before, ids))
    found = Conversations(encoder, 10, 10)._pieces(ids, [1])
    assert found == pieces and ''.join(found) == encoder.decode(ids, [1])


@pytest.mark.parametrize(
    'is_chat, asked, told', [
        (True, dict(logprobs=True, top_logprobs=3), 'top_logprobs = 3: must be 0, since only that of the sampled'),
        (True, dict(logprobs=0), 'logprobs = 0: must be true or false'),
        (False, dict(logprobs=2), 'logprobs = 2: must be 0, the number of alternatives, since only'),
        (False, dict(logprobs=True), 'logprobs = True: must be 0'),
    ]
)
def test_those_of_other_tokens_are_refused(is_chat, asked, told):
    of = dict(messages=[programs.user('x')]) if is_chat else dict(prompt='x')
    with pytest.raises(Refused, match=told):
        Asked.of({**of, **asked}, is_chat, 1.0)
    assert Asked.of(dict(of, logprobs=True if is_chat else 0, top_logprobs=0), is_chat, 1.0).logprobs
    assert not Asked.of(dict(of, logprobs=False), is_chat, 1.0).logprobs


async def records_what_it_reads(problem, client):
    """Two conversations, one of which goes on, with choices, a stop string and a limit."""
    read = []
    messages = [programs.user('q')]
    for options in (dict(stop=['a', 'b', 'c']), dict(n=2, max_tokens=3), {}):
        reply = await chat(client, messages, **options)
        read += [[each.logprob for each in choice.logprobs.content] for choice in reply.choices]
        messages = [*messages, reply.choices[0].message, programs.user('go on')]
    reply, = await asyncio.gather(client.completions.create(model='policy', prompt='ab', logprobs=0))
    read.append(reply.choices[0].logprobs.token_logprobs)
    with open('read.jsonl', 'a', encoding='utf-8') as f:
        f.write(json.dumps(dict(read=read)) + '\n')
    return 1.0


def configs(**policy):
    programs.write_tokenizer('chat')
    main, create = small('think_answer_grpo', policy=policy)
    task = dict(type='agent', run=f'{__name__}:records_what_it_reads', problems=[dict(question='q')] * 4)
    limits = dict(max_prompt_length=40, max_turns=5, max_tokens=250, max_new_tokens=5)
    main.env.update(task=task, tokenizer=dict(pretrained='chat'), **limits)
    main.policy.model.config.update(vocab_size=101, max_position_embeddings=300)
    return main, create


@pytest.mark.parametrize('manager', ['base', 'subprocess'])
def test_those_read_are_those_learned(own_folder, manager):
    main, create = configs(collect=dict(temperature=0.7))
    main.env.task.temperature, create.env_manager.type = 0.7, manager
    learned = []
    with built(main, create, seed=0) as (policy, collector):
        for sample in collector.collect(train_iter=0):
            for row in range(len(sample['length'])):
                own = sample['weight'][row] > 0
                for number in sample['turn'][row][own].unique():
                    learned.append(sample['logp_old'][row][own & (sample['turn'][row] == number)].tolist())
    read = [answer for episode in read_json_lines('read.jsonl') for answer in episode['read']]
    assert len(read) == len(learned) == 8 * 5
    assert all(np.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(sorted(read), sorted(learned)))
    assert len(set(map(tuple, read))) > 30 and all(value < 0 for answer in read for value in answer)


def test_of_evaluations_and_play(own_folder, env_of):
    """Greedily, the policy is certain of each token; otherwise they are those of the temperature."""
    main, create = configs(eval=dict(evaluator=dict(eval_freq=1, samples_per_start=1)))
    policy = serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=0)
    first = [sum(map(sum, episode['read'])) for episode in read_json_lines('read.jsonl')]
    assert first[:4] == [0] * 4 and max(first[4:8]) < 0

    async def run(problem, client):
        reply = await chat(client, [programs.user('q')], stop='never')
        problem['read'] = [each.logprob for each in reply.choices[0].logprobs.content]
        return 1.0

    env, lm = env_of(run, [dict(question='q')]), policy._model.lm
    for temperature in (0.0, 0.5):
        (played, _), = episodes(lm, env, [0], temperature)
        text, = played._conversations.trajectories
        logits = lm(torch.tensor([text.ids])).logits[0, text.prompt_length - 1:-1, :len(env.tokenizer)]
        true = (logits / 0.5).log_softmax(-1)[range(len(text.turn)), text.turn].tolist()
        read = played.problem.metadata['row']['read']
        assert read == pytest.approx(true if temperature else [0] * len(text.turn), abs=1e-5) and len(read) > 0


def test_an_action_without_them_cannot_answer(env_of):

    async def run(problem, client):
        await chat(client, [programs.user('q')])

    env = env_of(run)
    env.reset(options=dict(index=0))
    with pytest.raises(ValueError, match='without log-probabilities'):
        env.step(turn(env, 'x'))
