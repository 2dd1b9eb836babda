"""A tiny Qwen2 with a tokenizer and a chat template, as a GGUF file."""
import os

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

WORDS = [chr(code) for code in range(33, 127)] + ['Ġ', 'Ċ', 'ab', '<|endoftext|>', '<|im_start|>', '<|im_end|>']
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_gguf(folder: str, name: str = 'tiny.gguf') -> Qwen2ForCausalLM:
    """Write it, and return the model whose weights it holds."""
    import gguf
    torch.manual_seed(0)
    sizes = dict(vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2)
    config = Qwen2Config(max_position_embeddings=128, tie_word_embeddings=False, rope_theta=10000.0, **sizes, **heads)
    model = Qwen2ForCausalLM(config).eval()
    os.makedirs(folder, exist_ok=True)
    writer = gguf.GGUFWriter(os.path.join(folder, name), 'qwen2')
    shape = dict(context_length=128, embedding_length=32, block_count=2, feed_forward_length=64)
    attention = dict(head_count=4, head_count_kv=2, rope_freq_base=10000.0, layer_norm_rms_eps=config.rms_norm_eps)
    last = len(WORDS) - 1
    kinds = [1] * (len(WORDS) - 3) + [3, 3, 3]  # the last three are control tokens
    tokens = dict(tokenizer_model='gpt2', token_list=WORDS, token_types=kinds, token_merges=['a b'])
    special = dict(bos_token_id=last - 1, eos_token_id=last, pad_token_id=last, chat_template=TEMPLATE)
    for name, value in {**shape, **attention, 'vocab_size': len(WORDS), **tokens, **special}.items():
        getattr(writer, f'add_{name}')(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, 2)
    for key, value in model.state_dict().items():
        writer.add_tensor(names.get_name(key, ('.weight', '.bias')), value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
