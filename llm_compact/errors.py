"""What can go wrong in a compaction, each error carrying the one line that a person needs."""


class CompactionError(Exception):
    """A compaction was refused or failed. Nothing was written."""


class NothingToCompact(CompactionError):
    """The conversation is too short, or a summary would not make it smaller."""


class ConversationError(CompactionError):
    """There is no such database or conversation, or it can't be compacted as it is."""


class SummarizerError(CompactionError):
    """The summarizer is unknown, failed, or gave an answer that must not be stored."""


class CheckFailed(CompactionError):
    """Facts of the conversation are missing in the compacted one, or nobody could look for them."""


class StoreError(CompactionError):
    """The log database could not be read or written."""


class SettingsError(CompactionError):
    """A setting is unknown or no value of it, or compact.json can't be read or written."""


class AlreadyCompacted(StoreError):
    """A compaction of exactly this point of the conversation exists."""

    def __init__(self, conversation_id: str) -> None:
        super().__init__(
            f"Already compacted as {conversation_id}. Go on there with llm -c --cid "
            f"{conversation_id}, or use --again"
        )
