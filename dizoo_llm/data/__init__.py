"""Tasks whose problems come from a user: files, data sets, lists."""
from .file import FileTask
from .listed import ListTask
