"""What can go wrong in a compaction, each error carrying the one line that a person needs."""

# What an error advises whoever has typed `llm compact`.
LONGER_SUMMARY = "Allow more with --max-summary, or use another model"
LARGER_WINDOW = "Use a model with a larger context window, or -m extractive"
OTHER_MODEL = "Use another model with -m, or -m extractive"
FEWER_PINS = "Allow a longer summary, or remove pins with llm compact unpin"
COUNTABLE_KEEP = "Use --keep 8k (tokens) or --keep 2x (exchanges)"

_AUTOMATIC = {
    LONGER_SUMMARY: "Raise --auto-threshold or the setting max-summary, or use another "
    "--compact-model",
    LARGER_WINDOW: "Use a model with a larger context window, or --compact-model extractive",
    OTHER_MODEL: "Use another --compact-model, or --compact-model extractive",
    FEWER_PINS: "Raise --auto-threshold or the setting max-summary, or remove pins with llm "
    "compact unpin",
    COUNTABLE_KEEP: "Use --compact-keep 8k (tokens) or --compact-keep 2x (exchanges)",
}


def automatic_advice(told: str) -> str:
    """What an error tells, with the advice that fits where nobody has typed `llm compact`."""
    for manual, automatic in _AUTOMATIC.items():
        told = told.replace(manual, automatic)
    return told


class CompactionError(Exception):
    """A compaction was refused or failed. Nothing was written."""


class NothingToCompact(CompactionError):
    """The conversation is too short, or a summary would not make it smaller."""


class ConversationError(CompactionError):
    """There is no such database or conversation, or it can't be compacted as it is."""


class SummarizerError(CompactionError):
    """The summarizer is unknown, failed, or gave an answer that must not be stored."""


class UnfitAnswer(SummarizerError):
    """The model answered, with something that is no summary: asked for less it may do better."""


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
