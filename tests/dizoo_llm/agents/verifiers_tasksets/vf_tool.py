"""A function that the model may call, in a server of its own. The harness is verifiers' own, ``null``."""
import verifiers.v1 as vf

from in_process import Data


class Words(vf.Toolset[vf.ToolsetConfig, vf.State]):
    TOOL_PREFIX = None

    @vf.tool
    async def twice(self, word: str) -> str:
        """Says a word twice."""
        return f'{word}{word}'


class ToolTask(vf.Task[Data, vf.State, vf.TaskConfig]):

    @classmethod
    def toolsets(cls, config):
        return [Words(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, task, trace):
        return float(trace.last_reply == task.answer)


class Tools(vf.Taskset[ToolTask, vf.TasksetConfig]):

    def load(self):
        return [ToolTask(Data(prompt=f'say {word} twice', answer=f'{word}{word}'), self.config.task) for word in 'ab']


__all__ = ['Tools']

if __name__ == '__main__':
    Words.run()
