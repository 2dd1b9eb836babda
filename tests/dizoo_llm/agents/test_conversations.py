"""Random conversations: what is learned is what was sampled and read, and no text is encoded twice."""
import json
import random
from typing import Any, Dict, List, NamedTuple

import pytest

from dizoo_llm.agents.body import Asked, Refused, answer
from dizoo_llm.agents.conversations import Conversations
from tests.cases import long

TOOLS = [dict(type='function', function=dict(name='add', parameters=dict(type='object', properties={})))]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


class Known(NamedTuple):
    """What a client has of a text, and its true ids."""
    messages: List[Dict[str, Any]]
    tools: List[Dict[str, Any]]
    number: int
    ids: List[int]


def sampled(rng, tokenizer, number):
    """Any tokens, also such as no text is encoded to, with and without an end."""
    tokens = [rng.randrange(len(tokenizer)) for _ in range(rng.randint(1, 6))]
    tokens = [token for token in tokens if token != tokenizer.eos_token_id] or [1]
    if rng.random() < 0.3:
        tokens = tokenizer.encode(CALL, add_special_tokens=False)
    return tokens + [tokenizer.eos_token_id] * (rng.random() < 0.7)


def changed(rng, messages):
    """A history with another beginning."""
    messages = json.loads(json.dumps(messages))
    place = rng.randrange(len(messages))
    if rng.random() < 0.3 and len(messages) > 1:
        del messages[place]
    else:
        messages[place]['content'] = (messages[place].get('content') or '') + rng.choice('xyz')
    return messages


def next_request(rng, known, number):
    """Messages of a request, and their tools: a new text, one that goes on, or one whose history is changed."""
    new = dict(role='user', content=''.join(rng.choice('abc <>') for _ in range(rng.randint(0, 5))) + str(number))
    if not known or rng.random() < 0.2:
        return [new], TOOLS if rng.random() < 0.5 else []
    of = rng.choice(known)
    messages, calls = json.loads(json.dumps(of.messages)), of.messages[-1].get('tool_calls')
    if calls:
        new = dict(new, role='tool', tool_call_id=calls[0]['id'])
    if rng.random() < 0.25:
        messages = changed(rng, messages)
    return [*messages, new], of.tools if rng.random() < 0.9 else [tool for tool in TOOLS if not of.tools]


def going_on(known, messages, tools):
    """What a request goes on from: of the texts that it begins with, the longest ones."""
    found = [k for k in known if k.tools == tools and messages[:len(k.messages)] == k.messages != messages]
    return [k for k in found if len(k.messages) == max(len(k.messages) for k in found)]


@pytest.mark.parametrize('conversations', [300, long(10_000)])
def test_rows_are_what_was_sampled_and_read(env_of, conversations):
    env = env_of('once')
    tokenizer, encoder, continued, begun, refused = env.tokenizer, env._encoder, 0, 0, 0
    for seed in range(conversations):
        rng, known, turns = random.Random(seed), [], 0
        texts, true = Conversations(encoder, 80, 300), {}
        for number in range(rng.randint(1, 6)):
            messages, tools = next_request(rng, known, number)
            asked = Asked.of(json.loads(json.dumps(dict(messages=messages, tools=tools))), True, 1.0)
            before = going_on(known, messages, tools)
            try:
                text, _ = texts.place(asked)
            except Refused:
                refused += 1
                continue
            if before:  # several with equal messages may have other ids
                continued += 1
                of = next(k for k in before if k.number == text.number)
                assert text.ids[:len(of.ids)] == of.ids
                read = text.ids[len(of.ids):]
                for message in messages[len(of.messages):]:
                    assert (message['content'] or '') in tokenizer.decode(read)
                known.remove(of)
            else:
                begun += 1
                assert text.number not in true and text.ids == encoder.chat(asked.messages, tools)
            tokens = sampled(rng, tokenizer, number)
            expected = [*text.ids, *tokens]
            choice = texts.answered(asked, text, tokens, tokens[-1] != tokenizer.eos_token_id, number)
            said = json.loads(json.dumps(answer(asked, number, 0, [choice])))['choices'][0]['message']
            known.append(Known([*messages, said], tools, text.number, expected))
            true[text.number] = expected
            turns += 1
        assert {text.number: text.ids for text in texts.trajectories} == true
    assert min(continued, begun) > conversations and refused < conversations
