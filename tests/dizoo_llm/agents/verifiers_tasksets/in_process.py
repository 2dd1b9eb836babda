"""Tasksets of ``verifiers`` for the tests: one answer, a dialogue, and the harness that asks for both."""
import openai
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire


class Asks(vf.Harness[vf.HarnessConfig]):
    """One request for each segment, in this process."""

    APPENDS_SYSTEM_PROMPT, SUPPORTS_RESUME, SUPPORTS_MCP = True, True, False
    EXECUTES_CODE, NEEDS_CONTAINER = False, False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        prompt = data.prompt
        messages = [dict(role='user', content=prompt)] if isinstance(prompt,
                                                                     str) else list(map(message_to_wire, prompt))
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout='', stderr='')


class Data(vf.TaskData):
    answer: str


class Task(vf.Task[Data, vf.State, vf.TaskConfig]):

    @vf.reward(weight=2.0)
    async def right(self, task, trace):
        return float(trace.last_reply == task.answer)

    @vf.reward
    async def short(self, trace):
        return -float(len(trace.last_reply) > 2)

    @vf.metric
    async def letters(self, trace):
        return float(len(trace.last_reply))
