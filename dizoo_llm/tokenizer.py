import os
from typing import Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ding_common import ConfigError


def build_word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """
    Overview:
        A tokenizer over words that are separated by spaces: word i has id i, then follow ``<eos>``, ``<pad>`` and
        ``<unk>``. Encoding adds nothing, decoding joins with spaces.
    Arguments:
        - words (:obj:`Sequence[str]`): The vocabulary, each word once.
    Returns:
        - tokenizer (:obj:`PreTrainedTokenizerFast`): With ``len(words) + 3`` tokens.
    Raises:
        - ConfigError: If a word is there twice, is empty or holds white space.
    """
    words = [str(w) for w in words] + ['<eos>', '<pad>', '<unk>']
    for word in words:
        if words.count(word) > 1 or word.split() != [word]:
            raise ConfigError(f'env.tokenizer.words: {word!r} must be there once, not empty and without white space.')
    model = WordLevel({word: i for i, word in enumerate(words)}, unk_token='<unk>')
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token='<eos>',
        pad_token='<pad>',
        unk_token='<unk>',
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(pretrained: str) -> PreTrainedTokenizerBase:
    """
    Overview:
        The tokenizer of a folder or hub name.
    Arguments:
        - pretrained (:obj:`str`): As ``AutoTokenizer.from_pretrained`` takes it.
    Raises:
        - ConfigError: If there is no tokenizer, or it has no end-of-sequence token.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(pretrained)
    except (OSError, ValueError) as error:
        what = 'the folder holds no tokenizer' if os.path.isdir(
            pretrained
        ) else 'neither a folder nor a name on the hub'
        raise ConfigError(
            f'env.tokenizer.pretrained = {pretrained!r}: {what} ({str(error).splitlines()[0]})'
        ) from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(f'env.tokenizer.pretrained = {pretrained!r}: the tokenizer has no end-of-sequence token.')
    return tokenizer
