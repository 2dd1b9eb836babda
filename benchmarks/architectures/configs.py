"""Configs of tiny random causal language models of ``transformers``, for check.py."""
from typing import Any, Dict

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# Every size under every name that an architecture has for it. A config takes those that its class knows. Windows,
# chunks and sets of indices are shorter than the rows that are read.
SIZES = dict(
    vocab_size=40,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
    forced_eos_token_id=None,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    # GPT-2 and those named like it
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=64,
    rotary_dim=4,
    d_model=32,
    n_layers=2,
    n_heads=4,
    max_seq_len=64,
    num_layers=2,
    num_heads=4,
    ffn_dim=48,
    attention_heads=4,
    d_inner=48,
    dff=48,
    emb_dim=32,
    word_embed_proj_dim=32,
    embedding_size=32,
    # encoders and decoders
    is_decoder=True,
    encoder_layers=2,
    encoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_layers=2,
    decoder_attention_heads=4,
    decoder_ffn_dim=48,
    num_encoder_layers=2,
    num_encoder_attention_heads=4,
    num_decoder_layers=2,
    num_decoder_attention_heads=4,
    # mixtures of experts
    num_experts=4,
    num_local_experts=4,
    n_routed_experts=4,
    moe_num_experts=4,
    num_experts_per_tok=2,
    num_experts_per_token=2,
    moe_topk=2,
    moe_k=2,
    n_shared_experts=1,
    num_shared_experts=1,
    moe_num_shared_experts=1,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
    shared_intermediate_size=16,
    n_group=1,
    topk_group=1,
    num_expert_group=1,
    first_k_dense_replace=1,
    num_dense_layers=1,
    kv_channels=8,
    # latent attention and its index
    kv_lora_rank=16,
    q_lora_rank=16,
    qk_rope_head_dim=8,
    qk_nope_head_dim=16,
    v_head_dim=16,
    index_topk=8,
    index_head_dim=8,
    index_n_heads=2,
    # windows and chunks
    sliding_window=6,
    window_size=6,
    attention_window_size=6,
    attention_chunk_size=6,
    block_size=4,
    chunk_size=8,
    mamba_chunk_size=8,
    keep_window_size=8,
    # states
    state_size=8,
    ssm_state_size=8,
    mamba_d_state=8,
    mamba_n_heads=8,
    mamba_d_head=8,
    mamba_num_heads=8,
    mamba_head_dim=8,
    mamba_headdim=8,
    mamba_n_groups=1,
    mamba_d_ssm=64,
    n_mamba_heads=2,
    attention_hidden_size=32,
    context_length=64,
    lru_width=32,
    linear_num_value_heads=4,
    linear_num_key_heads=2,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
)

_SLIDING = dict(layer_types=['sliding_attention', 'full_attention'])
_LINEAR = dict(layer_types=['linear_attention', 'full_attention'])
_CONV = dict(layer_types=['conv', 'full_attention'])
_LATENT = dict(num_key_value_heads=4)  # keys of all heads come of one latent vector
_LINEAR_LATENT = dict(_LATENT, **_LINEAR, linear_head_dim=8, linear_num_heads=4, model_max_length=64)
_PERIOD = dict(attn_layer_period=2, attn_layer_offset=1)
_ZAMBA = dict(num_key_value_heads=4, attention_hidden_size=64, attention_head_dim=16)
_INKLING = dict(
    layer_types=['hybrid_sliding', 'hybrid'],
    swa_num_attention_heads=4,
    swa_num_key_value_heads=2,
    swa_head_dim=8,
    sliding_window_size=6,
    rel_extent=16,
)
_GEMMA_BY_LAYER = dict(vocab_size_per_layer_input=40, hidden_size_per_layer_input=8)
_ROPE = dict(rope_type='default', rope_theta=10000.)
_LONG = dict(rope_type='longrope', short_factor=[1., 1.1, 1.2, 1.3], long_factor=[2., 3., 4., 5.])


def _rope(**options: Any) -> Dict[str, Any]:
    return dict(rope_parameters={**_ROPE, **options})


# Architectures that need nothing beside the sizes.
SIMPLE = '''
    apertus arcee aria_text bart beam bert bert-generation big_bird biogpt bitnet blenderbot blenderbot-small bloom
    camembert codegen cohere ctrl cwm data2vec-text diffllama doge dots1 electra ernie ernie4_5 ernie4_5_moe falcon
    falcon_h1 falcon_mamba flex_olmo gemma gemma2 glm glm4 glm4_moe gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gpt_oss
    gptj granite granite_swa granitemoe granitemoe_swa granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe
    hyperclovax hy_v3 internlm3 iquestcoder jais2 jetmoe llama mamba marian mbart megatron-bert mimo_v2_flash minimax
    minimax_m2 ministral3 mistral mixtral modernbert-decoder moshi mpt mvp nanochat nemotron olmo olmo2 olmo_hybrid
    olmoe openai-gpt opt pegasus persimmon phi phi3 phimoe plbart prophetnet qwen2 qwen2_moe qwen3 qwen3_moe rembert
    roberta roberta-prelayernorm roformer rwkv seed_oss smollm3 solar_open stablelm starcoder2 trocr vaultgemma whisper
    xglm xlm xlm-roberta xlm-roberta-xl xlnet xlstm
'''.split()

# What others need beside the sizes, by name: ``model_type`` and, in parentheses, which variant it is.
SPECIAL: Dict[str, Dict[str, Any]] = {
    'afmoe': dict(global_attn_every_n_layers=2),
    'axk1': _LATENT,
    'axk2': _LATENT,
    'bailing_hybrid': _LINEAR_LATENT,
    'bamba': dict(attn_layer_indices=[1]),
    'bert (no decoder)': dict(is_decoder=False),
    'cohere2': _SLIDING,
    'cohere2_moe': _SLIDING,
    'cohere_compass_text': dict(_SLIDING, rope_parameters=dict.fromkeys(_SLIDING['layer_types'], _ROPE)),
    'cpmant': dict(dim_head=8, dim_ff=48),
    'deepseek_v2': _LATENT,
    'deepseek_v2 (values as long as keys)': dict(_LATENT, v_head_dim=24, q_lora_rank=None),
    'deepseek_v3': _LATENT,
    'deepseek_v32': _LATENT,
    'deepseek_v32 (index of 64)': dict(_LATENT, index_topk=64),
    'deepseek_v4': dict(
        layer_types=['compressed_sparse_attention', 'sliding_attention'],
        num_key_value_heads=1,
        o_groups=2,
        o_lora_rank=8,
    ),
    'doge (no window)': dict(sliding_window=None),
    'doge (no window, keeps 64)': dict(sliding_window=None, keep_window_size=64),
    'dots1 (head_dim 16)': dict(head_dim=16),
    'dots3_note_text': dict(_LATENT, shared_experts_intermediate_size=16),
    'exaone4': _SLIDING,
    'exaone_moe': _SLIDING,
    'falcon (alibi)': dict(alibi=True),
    'falcon (new decoder)': dict(new_decoder_architecture=True, num_kv_heads=2),
    'flint': _SLIDING,
    'gemma3_text': _SLIDING,
    'gemma3n_text': dict(
        _GEMMA_BY_LAYER,
        num_hidden_layers=4,
        layer_types=_SLIDING['layer_types'] * 2,
        intermediate_size=[48] * 4,
        activation_sparsity_pattern=[0.0] * 4,
        num_kv_shared_layers=2,
        laurel_rank=4,
    ),
    'gemma4_text': dict(_SLIDING, **_GEMMA_BY_LAYER),
    'gemma4_unified_text': _SLIDING,
    'glm4_moe (head_dim 16)': dict(head_dim=16),
    'glm4_moe_lite': _LATENT,
    'glm_moe_dsa': _LATENT,
    'glm_moe_dsa (index of 64)': dict(_LATENT, index_topk=64),
    'gpt2 (scaled by layer)': dict(scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True),
    'gpt_bigcode (keys of each head)': dict(multi_query=False),
    'gpt_neo': dict(attention_types=[[['global', 'local'], 1]]),
    'gpt_oss (no window)': dict(layer_types=['full_attention'] * 2),
    'granite (multipliers)': dict(
        logits_scaling=4.0, attention_multiplier=0.3, residual_multiplier=0.5, embedding_multiplier=3.0
    ),
    'granitemoehybrid': _LINEAR,
    'hrm_text': dict(num_layers_per_stack=2, H_cycles=1, L_cycles=2),
    'hy_v4': _LATENT,
    'inkling_text': _INKLING,
    'inkling2_text': dict(_INKLING, unpadded_vocab_size=40),
    'jamba': dict(_PERIOD, expert_layer_period=2, expert_layer_offset=1),
    'kimi_linear': _LINEAR_LATENT,
    'kolibri1': _SLIDING,
    'laguna': _SLIDING,
    'lfm2': _CONV,
    'lfm2_moe': _CONV,
    'lfm3': _CONV,
    'llama (dynamic rotary)': dict(_rope(rope_type='dynamic', factor=2.0), max_position_embeddings=12),
    'llama (linear rotary)': _rope(rope_type='linear', factor=2.0),
    'llama (llama3 rotary)': _rope(
        rope_type='llama3', factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
    ),
    'llama (longrope rotary)': _rope(**_LONG, factor=4.0, original_max_position_embeddings=12),
    'llama (yarn rotary)': _rope(rope_type='yarn', factor=4.0, original_max_position_embeddings=16),
    'llama4_text': dict(layer_types=['chunked_attention', 'full_attention'], intermediate_size_mlp=48),
    'longcat_flash': dict(_LATENT, ffn_hidden_size=48, expert_ffn_hidden_size=16, zero_expert_num=2),
    'mamba2': dict(num_heads=8, n_groups=1),
    'mellum': _SLIDING,
    'minicpm3': _LATENT,
    'minimax_m3_vl_text': dict(
        layer_types=['full_attention', 'minimax_m3_sparse'],
        index_block_size=4,
        index_topk_blocks=2,
        dense_intermediate_size=48,
    ),
    'ministral': _SLIDING,
    'mistral (no window)': dict(sliding_window=None),
    'mistral (window of 3)': dict(sliding_window=3),
    'nemotron_h': dict(n_groups=1, moe_shared_expert_intermediate_size=16),
    'olmo (clipped)': dict(clip_qkv=0.05),
    'olmo3': _SLIDING,
    'opt (projected)': dict(word_embed_proj_dim=16, do_layer_norm_before=False),
    'phi3 (longrope rotary)': dict(_rope(**_LONG), original_max_position_embeddings=12),
    'phi3 (no window)': dict(sliding_window=None),
    'phimoe (no window)': dict(sliding_window=None),
    'qwen2 (window)': dict(use_sliding_window=True, max_window_layers=1),
    'qwen3_5_moe_text': _LINEAR,
    'qwen3_5_text': _LINEAR,
    'qwen3_moe (head_dim 16)': dict(head_dim=16),
    'qwen3_next': _LINEAR,
    'qwen4_exp_text': dict(
        _LINEAR,
        hc_count=2,
        hc_lowrank=8,
        ple_embed_dim=8,
        ngram_vocab_size_base=40,
        split_ngram_parts=2,
        indexer_n_heads=2,
        indexer_kv_heads=1,
        indexer_head_dim=8,
        indexer_budget=8,
        indexer_compress_ratio=2,
    ),
    'recurrent_gemma': dict(num_hidden_layers=3),  # the third one attends
    'reformer': dict(axial_pos_embds_dim=[16, 16], axial_pos_shape=[8, 8]),
    'roc_bert': dict(pronunciation_vocab_size=40, shape_vocab_size=40),
    'stablelm (parallel)': dict(use_parallel_residual=True, qk_layernorm=True, use_qkv_bias=True),
    'starcoder2 (no window)': dict(sliding_window=None),
    'xlm (causal)': dict(causal=True),
    'xmod': dict(default_language='en_XX'),
    'youtu': _LATENT,
    'zamba': dict(_ZAMBA, **_PERIOD, num_hidden_layers=5),  # the third and the fifth attend
    'zamba2': dict(_ZAMBA, layers_block_type=['linear_attention', 'hybrid'], n_mamba_heads=8),
    'zaya': dict(num_experts_per_tok=1, router_hidden_size=16),
}
NAMES = sorted([*SIMPLE, *SPECIAL])


def model_type(name: str) -> str:
    """Architecture of a line of the table."""
    return name.split(' ')[0]


def config_of(name: str) -> Dict[str, Any]:
    """
    Overview:
        What ``policy.model.config`` takes for an architecture of the table.
    Arguments:
        - name (:obj:`str`): One of ``NAMES``.
    """
    default = CONFIG_MAPPING[model_type(name)]().to_dict()
    sizes = {key: value for key, value in SIZES.items() if key in default}
    return dict(model_type=model_type(name), **{**sizes, **SPECIAL.get(name, {})})
