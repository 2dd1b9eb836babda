"""Thousands of episodes through the real collector, most of which go wrong in some way: nothing is lost or left."""
import asyncio
import contextlib
import gc
import os
import random
import statistics
import sys
import threading
from collections import Counter
from itertools import count

import openai
import pytest

from ding_common import read_json_lines
from ding_common.processes.memory import resident_memory
from ding_grpo.check import built
from dizoo_llm.agents.endpoint import Endpoint
from tests.cases import long
from tests.dizoo_llm.agents.episodes import until
from tests.dizoo_llm.agents.programs import ask, at_once, hangs, in_a_thread, nothing, user, write_tokenizer
from tests.shipped import small


class Ledger:
    """What the agents themselves know of their episodes. The reward of each is its number."""

    def __init__(self):
        self.clear()

    def clear(self):
        self.numbers, self.begun = count(1), Counter()
        self.well, self.ended = set(), Counter()  # numbers; requests after an end that were refused


LEDGER = Ledger()


async def run(problem, client):
    number = next(LEDGER.numbers)
    rng, kind = random.Random(number), ORDER[number % len(ORDER)]
    LEDGER.begun[kind] += 1
    await pause(rng)
    if await KINDS[kind](client, rng) is None:
        return None
    LEDGER.well.add(number)
    return float(number)


async def pause(rng):
    await asyncio.sleep(rng.uniform(0, 0.01))


async def continues(client, rng):
    messages = []
    for _ in range(rng.randint(1, 3)):
        messages += [user('q'), await ask(client, [*messages, user('q')], max_tokens=3)]
        await pause(rng)
    return True


async def raises(client, rng):
    for i in range(rng.randint(0, 2)):
        await ask(client, [user(str(i))])
    raise ValueError('no sandbox')


async def floods(client, rng):
    """More requests at once than may wait, and than there are turns."""
    found = await asyncio.gather(*(ask(client, [user(str(i))]) for i in range(80)), return_exceptions=True)
    refused = [one for one in found if isinstance(one, openai.APIStatusError)]
    assert {one.status_code for one in refused} == {400, 429} and len(found) - len(refused) == 4
    return True


async def gives_up(client, rng):
    for text in 'ab':
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ask(client, [user(text)]), rng.uniform(0, 0.01))
    await ask(client, [user('q')])
    return True


async def is_answered_after_its_end(client, rng):
    """Returns while requests wait, and asks again when they are cancelled."""

    async def late():
        with contextlib.suppress(asyncio.CancelledError):
            await ask(client, [user('late')])
        try:
            await ask(client, [user('later')])
        except openai.APIStatusError as error:
            LEDGER.ended['is_answered_after_its_end'] += error.status_code == 410

    await ask(client, [user('q')])
    asyncio.ensure_future(late())
    await asyncio.sleep(0)
    return True


async def over_http(client, rng):
    """A client of its own, which is not closed."""
    web = openai.DefaultAsyncHttpxClient(verify=False)  # which spares the time of reading certificates
    own = openai.AsyncOpenAI(base_url=str(client.base_url), api_key='any', max_retries=0, http_client=web)
    await ask(own, [user('q')])
    with contextlib.suppress(openai.APITimeoutError):
        await ask(own, [user('a')], timeout=rng.uniform(0.001, 0.01))
    await ask(own, [user('q')])
    return True


async def leaves_a_thread(client, rng):
    """Returns while a client in a thread waits."""
    web = openai.DefaultHttpxClient(verify=False)
    own = openai.OpenAI(base_url=str(client.base_url), api_key='any', max_retries=0, http_client=web)

    def late():
        with contextlib.suppress(openai.APIStatusError):
            own.chat.completions.create(model='policy', messages=[user('late')])
        LEDGER.ended['leaves_a_thread'] += 1

    asyncio.get_running_loop().run_in_executor(None, late)
    await ask(client, [user('q')])
    return True


def borrowed(agent):

    async def run(client, rng):
        return await agent({}, client)

    return run


OWN = (continues, raises, floods, gives_up, is_answered_after_its_end, over_http, leaves_a_thread)
KINDS = {each.__name__: each for each in OWN}
KINDS.update((each.__name__, borrowed(each)) for each in (at_once, nothing, hangs, in_a_thread))
ORDER = [*KINDS, *(kind for kind in KINDS if kind != 'floods')]  # which takes the most time
FAILED = dict(raises='raised ValueError', nothing='returned None', hangs='took more than')
LATE = 'is_answered_after_its_end', 'leaves_a_thread'


def configs(rows, seconds):
    write_tokenizer('chat')
    main, create = small('think_answer_grpo')
    task = dict(type='agent', run=f'{__name__}:run', problems=[dict(question=str(i)) for i in range(50)])
    limits = dict(max_prompt_length=40, max_turns=4, max_tokens=200, max_new_tokens=4)
    main.env.update(task=dict(task, seconds=seconds), tokenizer=dict(pretrained='chat'), collector_env_num=rows)
    main.env.update(limits)
    main.policy.model.config.update(vocab_size=101, max_position_embeddings=256)
    main.policy.collect.update(groups=rows // main.policy.group_size, collector=dict(max_failed=1.0, table_freq=1))
    return main, create


def left():
    """What this process holds between two collects, when cancelled agents have ended."""
    loop, server = Endpoint._shared.loop, Endpoint._shared._runner.server
    until(lambda: not asyncio.all_tasks(loop) and not server.connections, 2)
    connections = len(server.connections)
    gc.collect()  # clients that agents have not closed
    return dict(
        memory=resident_memory(),
        files=len(os.listdir('/proc/self/fd')),
        connections=connections,
        threads=threading.active_count(),
        tasks=len(asyncio.all_tasks(loop)),
    )


def episodes(samples):
    """Whether each episode of some groups failed, and its reward, as learning has them."""
    for sample in samples:
        last = {}
        for row, number in enumerate(sample['episode'].tolist()):
            last.setdefault(number, (bool(sample['failed'][row]), int(sample['reward'][row].sum())))
        yield from last.values()


@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
@pytest.mark.parametrize('rows, collects, seconds', [(24, 1, 2.0), long(200, 25, 5.0)])
def test_what_ended_well_is_learned_and_nothing_is_left(own_folder, rows, collects, seconds):
    LEDGER.clear()
    found, states, threads = [], [], set(threading.enumerate())
    main, create = configs(rows, seconds)
    with built(main, create, seed=0) as (policy, collector):
        for update in range(collects):
            found += episodes(collector.collect(train_iter=update))
            states.append(left())
        records = read_json_lines(f'{main.exp_name}/log/trial/completions.jsonl')
    assert set(threading.enumerate()) <= threads and Endpoint._shared is None
    told = Counter(kind for kind, why in FAILED.items() for record in records if why in str(record['failed']))
    assert told == {kind: LEDGER.begun[kind] for kind in FAILED}
    assert len(found) == rows * collects == sum(LEDGER.begun.values())
    assert sorted(reward for failed, reward in found if not failed) == sorted(LEDGER.well)
    assert sum(failed for failed, _ in found) == sum(told.values())
    assert LEDGER.ended == {kind: LEDGER.begun[kind] for kind in LATE}
    assert all(state['tasks'] == state['connections'] == 0 for state in states)
    if collects > 1:
        size = collects // 4
        first, second, last = map(averages, (states[:size], states[size:2 * size], states[-size:]))
        print('first, second and last quarter', first, second, last)
        assert last['memory'] - first['memory'] < 20 and last['memory'] - second['memory'] < 6  # MiB
        assert all(abs(last[name] - first[name]) <= 1 for name in ('files', 'threads'))


def averages(states):
    return {name: statistics.mean(state[name] for state in states) for name in states[0]}
