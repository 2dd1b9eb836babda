"""
What the policy reads in conversations of several turns, compared with what ``apply_chat_template`` gives for the
conversation as a whole: ``python tools/chat_templates.py FOLDER`` does so for each ``*.jinja`` file of a folder. It
ends with 1 if a template is read differently, or is refused although it drops no turn.
"""
import glob
import os
import re
import sys
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import click
from tabulate import tabulate
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), '..')))
from ding_common import ConfigError, TaskError, import_ding  # noqa: E402

import_ding()
from dizoo_llm.envs import TokenEnv  # noqa: E402
from dizoo_llm.tasks import MultiTurnTask, Problem, Reply  # noqa: E402

# Roles of the prompt's messages, and of the messages of each reply.
CASES: Dict[str, Tuple[List[str], List[List[str]]]] = {
    'user': (['user'], [['user'], ['user']]),
    'system': (['system', 'user'], [['user'], ['user']]),
    'history': (['user', 'assistant', 'user'], [['user']]),
    'tool': (['user'], [['tool'], ['tool'], ['user'], ['tool', 'tool']]),
}
WAYS = ('cut', 'going', 'last')  # how a turn ends, see ``check``
CONTROL = re.compile(
    r'<\|[^|<>{}\'" ]+\|>|<｜[^｜<>]+｜>|<\|?[a-z_]+\|>|<\|[a-z_]+>|</?s>|</?start_of_turn>|<end_of_turn>'
    r'|\[/?INST\]|\[gMASK\]|<sop>|<end_of_utterance>'
)


class Conversation(MultiTurnTask):
    """A prompt, and the replies to the turns of the policy."""
    weights = dict(right=1.0)

    def __init__(self, prompt: List[Dict[str, str]], replies: List[List[Dict[str, str]]]) -> None:
        self._prompt, self._replies = prompt, replies

    def __len__(self) -> int:
        return 1

    def problem(self, index: int) -> Problem:
        return Problem(self._prompt)

    def begin(self, problem: Problem, seed: int) -> None:
        return None

    def respond(self, problem: Problem, state: None, turn: Any) -> Reply:
        return Reply(self._replies[turn.number])


def make_tokenizer(template: str, eos: str = '<|endoftext|>') -> PreTrainedTokenizerFast:
    """A tokenizer of bytes in which all that looks like a control token of a template is one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([], trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token='<s>', eos_token=eos)
    roles = {f'<|{role}|>' for role in ('system', 'user', 'assistant', 'tool')}  # where a template puts them together
    made.add_special_tokens(dict(extra_special_tokens=sorted({*CONTROL.findall(template), *roles, eos})))
    made.chat_template = template
    return made


def messages_of(case: str) -> Tuple[List[Dict[str, str]], List[List[Dict[str, str]]], List[Dict[str, str]]]:
    """The messages of a case: its prompt, its replies and the turns of the policy."""
    words = (f'{word} number {i}' for i in range(99) for word in ('apple', 'pear', 'plum', 'fig'))
    prompt, replies = CASES[case]
    asked = [dict(role=role, content=next(words)) for role in prompt]
    said = [[dict(role=role, content=next(words)) for role in reply] for reply in replies]
    return asked, said, [dict(role='assistant', content=next(words)) for _ in said]


def rendered(tokenizer: PreTrainedTokenizerFast, messages: List[Dict[str, str]], generates: bool = True) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generates)


class Turn(NamedTuple):
    """A turn of the policy in a conversation, as texts."""
    told: str  # the whole conversation with the reply, up to the content of the turn
    content: str
    rest: str  # the whole conversation after it
    written: str  # how the policy ends its turn
    closing: str  # the beginning of ``rest`` that this stands for
    end: Optional[str]  # the control token at the end of ``written``


def turns_of(tokenizer: PreTrainedTokenizerFast, case: str, way: str) -> List[Turn]:
    """The turns of a case, as the template renders the whole conversation up to the reply to each."""
    prompt, replies, answers = messages_of(case)
    told, turns = list(prompt), []
    for reply, answer in zip(replies, answers):
        content = answer['content']
        last = rendered(tokenizer, [*told, answer], False).rpartition(content)[2]
        told += [answer, *reply]
        before, _, rest = rendered(tokenizer, told).rpartition(content)
        same = os.path.commonprefix([rest, last])
        found = dict(cut=[], going=CONTROL.findall(same) or CONTROL.findall(rest)[:1], last=CONTROL.findall(last))[way]
        end = found[-1] if found else None
        if end is None or end in rest:
            closing = written = '' if end is None else rest[:rest.index(end) + len(end)]
        else:  # the template ends the last turn differently from others
            written = last[:last.rindex(end) + len(end)]
            closing = os.path.commonprefix([rest, written[:-len(end)]])
            if rest.startswith(f'{closing}<|end|>'):
                closing += '<|end|>'  # of gpt-oss, in place of <|return|>
        turns.append(Turn(before, content, rest, written, closing, end))
    return turns


def check(template: str, case: str, way: str) -> str:
    """
    Overview:
        Play a conversation, and compare what the policy reads after each of its turns with the whole conversation.
    Arguments:
        - template (:obj:`str`): A chat template.
        - case (:obj:`str`): One of ``CASES``.
        - way (:obj:`str`): How the policy ends a turn: 'cut', by a length limit; 'going', as the template ends a turn \
            that messages follow; 'last', as it ends the last turn of a conversation.
    Returns:
        - outcome (:obj:`str`): 'equal'; 'equal*' if the template changes earlier turns or ends the last one \
            differently, so that only what follows each turn is compared; 'refused: ...'; or 'DIFFERENT: ...'.
    """
    prompt, replies, _ = messages_of(case)
    tokenizer = make_tokenizer(template)
    try:
        turns = turns_of(tokenizer, case, way)
        ended = turns_of(tokenizer, case, 'going') if way == 'cut' else turns
    except Exception:  # the template rejects the case
        turns = ended = []
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        ends = {tokenizer.eos_token, *(turn.end for turn in ended if turn.end is not None)}
        GenerationConfig(eos_token_id=tokenizer.convert_tokens_to_ids(sorted(ends))).save_pretrained(folder)
        try:
            env = TokenEnv(
                Conversation(prompt, replies),
                tokenizer=dict(pretrained=folder),
                max_new_tokens=999,
                max_turns=99,
                max_reply_tokens=999,
                max_tokens=9999
            )
            obs, _ = env.reset()
        except (ConfigError, TaskError) as error:
            return f'refused: {error.message}'
    return _play(env, tokenizer, rendered(tokenizer, prompt), turns, obs[obs >= 0].tolist())


def _play(env: TokenEnv, tokenizer: Any, prompt: str, turns: List[Turn], read: List[int]) -> str:
    if tokenizer.decode(read) != prompt:
        return 'DIFFERENT: the prompt'
    strict = True
    for turn in turns or [None]:
        before, own = tokenizer.decode(read), '?'
        if turn is not None:
            strict = strict and turn.told.startswith(before) and turn.written == turn.closing
            own = turn.told[len(before):] * turn.told.startswith(before) + turn.content + turn.written
        ids = tokenizer.encode(own, add_special_tokens=False)
        env.max_new_tokens = len(ids)
        obs, _, terminated, truncated, info = env.step(ids)
        if terminated or truncated:
            return f"refused: {info['failed']}"
        assert turn is not None and info['taken'] == len(ids)
        added, read = obs[obs >= 0].tolist()[len(read) + len(ids):], obs[obs >= 0].tolist()
        if turn.closing + tokenizer.decode(added) != turn.rest:
            return f'DIFFERENT: {turn.closing + tokenizer.decode(added)!r}, must be {turn.rest!r}'
    whole = tokenizer.encode(turn.told + turn.content + turn.rest, add_special_tokens=False)
    if strict and read != whole or read[-len(added):] != whole[-len(added):]:
        return f'DIFFERENT: {read}, must be {whole}'
    return 'equal' if strict else 'equal*'


def needless(template: str, case: str) -> bool:
    """Whether a template gives every message of a case, so that there is no reason to refuse it."""
    prompt, replies, turns = messages_of(case)
    told = list(prompt)
    for reply, turn in zip(replies, turns):
        told += [turn, *reply]
        try:
            text = rendered(make_tokenizer(template), told)
        except Exception:  # a template may raise anything
            return False
        if any(message['content'] not in text for message in told):
            return False
    return True


def verdict(template: str, case: str) -> str:
    """The outcomes of a case for all ways in which a turn may end, in one text."""
    found = list(dict.fromkeys(check(template, case, way) for way in WAYS))
    if any(each.startswith('refused') for each in found) and needless(template, case):
        return f'REFUSED WITHOUT NEED: {found}'
    return next((each for each in found if each.startswith('DIFF')), max(found))


def _short(cell: str) -> str:
    drops = re.search('drops the [a-z]+ turn', cell)
    return cell if not cell.startswith('refused') else f"refused ({drops[0] if drops else 'the template rejects it'})"


@click.command(context_settings=dict(help_option_names=['-h', '--help']))
@click.argument('folder', type=click.Path(exists=True, file_okay=False))
def main(folder: str) -> None:
    """Compare the templates in FOLDER."""
    rows = []
    for path in sorted(glob.glob(os.path.join(folder, '*.jinja'))):
        with open(path, encoding='utf-8') as f:
            template = f.read()
        rows.append([os.path.basename(path), *(verdict(template, case) for case in CASES)])
    click.echo(tabulate([[_short(cell) for cell in row] for row in rows], ['template', *CASES], maxcolwidths=60))
    sys.exit(any(cell.startswith(('DIFF', 'REF')) for row in rows for cell in row[1:]))


if __name__ == '__main__':
    main()
