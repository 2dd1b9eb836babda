"""Agents of the tests."""
import asyncio
import json

from dizoo_llm.text.tokenizer import build_char_tokenizer

CHAT = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }} {% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>"
    "{{ c.function.name }}</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROBLEMS = [dict(question=f'q{i}', answer=str(i)) for i in range(4)]
TOOL = dict(
    type='function',
    function=dict(
        name='add', description='Adds.', parameters=dict(type='object', properties=dict(a=dict(type='integer')))
    )
)


def write_tokenizer(folder):
    """A tokenizer of characters with the chat template ``CHAT``."""
    made = build_char_tokenizer(''.join(map(chr, range(32, 127))) + '\n')
    made.add_special_tokens(dict(additional_special_tokens=['<|im_start|>', '<|im_end|>']))
    made.eos_token = '<|im_end|>'
    made.chat_template = CHAT
    made.save_pretrained(folder)


def problems():
    return PROBLEMS


def user(text):
    return dict(role='user', content=text)


async def ask(client, messages, **options):
    reply = await client.chat.completions.create(model='policy', messages=messages, **options)
    return reply.choices[0].message


async def once(problem, client):
    await ask(client, [user(problem['question'])])
    return 1.0


async def twice(problem, client):
    """Goes on with the conversation."""
    messages = [user(problem['question'])]
    messages.append(await ask(client, messages))
    messages.append(user('more'))
    last = await ask(client, messages)
    return float(len(last.content or ''))


async def anew(problem, client):
    """Begins a second conversation, and goes on with the first."""
    messages = [user(problem['question'])]
    messages.append(await ask(client, messages))
    await ask(client, [user('other')])
    messages.append(user('more'))
    await ask(client, messages)
    return 2.0


async def at_once(problem, client):
    await asyncio.gather(*(ask(client, [user(f'part {i}')]) for i in range(3)))
    return 1.0


async def plain(problem, client):
    """A completion that goes on, as text and as ids."""
    text = 'ab'
    for _ in range(2):
        reply = await client.completions.create(model='policy', prompt=text)
        text += reply.choices[0].text + 'c'
    return 1.0


async def with_tools(problem, client):
    messages = [user(problem['question'])]
    for _ in range(3):
        reply = await ask(client, messages, tools=[TOOL])
        messages.append(reply)
        if not reply.tool_calls:
            return 1.0
        for call in reply.tool_calls:
            total = sum(json.loads(call.function.arguments).values())
            messages.append(dict(role='tool', tool_call_id=call.id, content=str(total)))
    return 0.0


async def choices(problem, client):
    reply = await client.chat.completions.create(model='policy', messages=[user('x')], n=3)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    return 1.0


async def refused(problem, client):
    import openai
    told = []
    for options in problem['refused']:
        try:
            await client.chat.completions.create(**{'model': 'policy', 'messages': [user('x')], **options})
        except openai.APIStatusError as error:
            told.append((error.status_code, error.body['message']))
    await ask(client, [user('x')])
    problem['told'] = told
    return 1.0


async def streamed(problem, client):
    found = ''
    async for chunk in await client.chat.completions.create(model='policy', messages=[user('x')], stream=True):
        found += chunk.choices[0].delta.content or ''
    problem['streamed'] = found
    return 1.0


async def over_http(problem, client):
    """With a client of its own, which finds the row at the address alone."""
    import openai
    own = openai.AsyncOpenAI(base_url=str(client.base_url), api_key='any', max_retries=0)
    models = await own.models.list()
    assert [model.id for model in models.data] == ['policy']
    await ask(own, [user(problem['question'])])
    found = ''
    async for chunk in await own.chat.completions.create(model='policy', messages=[user('x')], stream=True):
        found += chunk.choices[0].delta.content or ''
    await own.close()
    problem['address'] = str(client.base_url)
    return float(len(found))


async def in_a_thread(problem, client):
    """With a client that is not asynchronous."""
    import openai

    def work():
        web = openai.DefaultHttpxClient(verify=False)  # which spares the time of reading certificates
        with openai.OpenAI(base_url=str(client.base_url), api_key='any', http_client=web) as own:
            return own.chat.completions.create(model='policy', messages=[user('x')]).choices[0].message.content

    return float(len(await asyncio.to_thread(work) or ''))


async def raises(problem, client):
    raise RuntimeError('no sandbox')


async def raises_later(problem, client):
    await ask(client, [user('x')])
    raise RuntimeError('sandbox lost')


async def silent(problem, client):
    return 1.0


async def hangs(problem, client):
    await ask(client, [user('x')])
    await asyncio.sleep(1000)


async def floods(problem, client):
    found = await asyncio.gather(*(ask(client, [user('x')]) for _ in range(100)), return_exceptions=True)
    return float(sum(not isinstance(one, Exception) for one in found))


async def gives_up(problem, client):
    """Cancels a request, and asks again."""
    try:
        await asyncio.wait_for(ask(client, [user('first')]), 0.05)
    except asyncio.TimeoutError:
        pass
    await ask(client, [user('second')])
    return 1.0


async def leaves_a_task(problem, client):

    async def forever():
        while True:
            await asyncio.sleep(0.01)

    problem['task'] = asyncio.ensure_future(forever())
    await ask(client, [user('x')])
    return 1.0


async def cannot_be_cancelled(problem, client):
    while not problem.get('over'):
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            pass


async def asks_after_its_end(problem, client):
    """Catches its cancellation, and asks again."""
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        pass
    try:
        await client.chat([user('late')])
    except Exception as error:
        problem['told'] = str(error)


async def nothing(problem, client):
    await ask(client, [user('x')])
    return None


async def other_parts(problem, client):
    await ask(client, [user('x')])
    return dict(wrong=1.0)


async def guesses(problem, client):
    """Two games of two guesses, the second from its start."""
    right = 0
    for text in ('guess', 'guess again'):
        for _ in range(2):
            reply = await client.completions.create(model='policy', prompt=text)
            said = reply.choices[0].text
            digits = [int(word) for word in said.split() if word.isdigit()]
            right += digits[:1] == [problem['secret']]
            text += said + (' lower' if digits[:1] > [problem['secret']] else ' higher')
    return right


async def by_answer(problem, client):
    """A reward for each answer, or for one more or less than there were."""
    messages, rewards = [], problem.get('more', [])
    for text in ('a', 'b'):
        messages.append(user(text))
        messages.append(await ask(client, messages))
        rewards.append(float(len(messages[-1].content)))
    return rewards
