"""A call of a model with its chain of messages in every place where adapters look for it.

Adapters before llm 0.32 read a conversation of responses, some others the system prompt alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeAlias

import llm
from llm.parts import AttachmentPart, Message, ToolResultPart

from .conversation import is_request, text_of

AnyModel: TypeAlias = llm.Model | llm.KeyModel | llm.AsyncModel | llm.AsyncKeyModel
AnyConversation: TypeAlias = llm.Conversation | llm.AsyncConversation


@dataclass(frozen=True)
class Call:
    """A call of a model's `execute` that is about to be made."""

    model: AnyModel
    execute: Callable[..., Any]
    prompt: llm.Prompt
    given: Mapping[str, Any]
    "The other arguments by name: stream, response, conversation, key."

    @property
    def response(self) -> Any:
        return self.given.get("response")

    @property
    def conversation(self) -> Any:
        return self.given.get("conversation")

    def make(self) -> Any:
        """Call the model, with all that was said in every place where adapters look for it."""
        prompt = ChainPrompt(self.prompt, self.prompt.messages)
        conversation = stand_in(self.model, prompt, self.conversation)
        return self.execute(prompt, **{**self.given, "conversation": conversation})


@dataclass(frozen=True)
class Turn:
    """What was said to the model at once, and what it answered."""

    input: tuple[Message, ...]
    output: tuple[Message, ...]
    "Empty if the model said nothing, or was not asked."
    position: int
    "How many messages of the chain precede the output."


class ChainPrompt(llm.Prompt):
    """A prompt with another chain of messages, and everything else as it was.

    The system prompt of the chain is the prompt's as well: some adapters read it only there, and
    llm tells it only once in a conversation.
    """

    def __init__(self, prompt: llm.Prompt, messages: Sequence[Message]) -> None:
        # No field is named, so that none is forgotten.
        vars(self).update(vars(prompt))
        self.chain = list(messages)

    @property
    def messages(self) -> list[Message]:
        return list(self.chain)

    @property
    def system(self) -> str:
        own: str = super().system
        # Models that have no system prompt raise if they are given one.
        if own or not getattr(self.model, "allows_system_prompt", True):
            return own
        system = takewhile(lambda message: message.role == "system", self.chain)
        return "\n\n".join(map(text_of, system))


class PastPrompt(llm.Prompt):
    """The prompt of a turn that is over.

    `messages` is everything up to that turn, as llm promises, but cut from the chain when asked
    for: a list of its own for each turn would take memory in the square of their number.
    """

    def __init__(self, turn: Turn, chain: Sequence[Message], model: AnyModel, system: str) -> None:
        user = [message for message in turn.input if message.role == "user"]
        super().__init__(  # type: ignore[no-untyped-call]
            "".join(map(text_of, user)),
            model,
            system=system or None,
            attachments=_attachments(user),
            tool_results=_tool_results(turn.input),
        )
        self.chain, self.position = chain, turn.position

    @property
    def messages(self) -> list[Message]:
        return list(self.chain[: self.position])


class Recalled:
    """A conversation whose responses are made when somebody looks at them.

    Only old adapters do, and a long chain makes many.
    """

    recall: Callable[[], list[Any]]

    @property
    def responses(self) -> list[Any]:
        if "recalled" not in vars(self):
            vars(self)["recalled"] = self.recall()
        recalled: list[Any] = vars(self)["recalled"]
        return recalled

    @responses.setter
    def responses(self, responses: list[Any]) -> None:
        """llm begins each conversation with an empty list."""


class _RecalledConversation(Recalled, llm.Conversation):
    pass


class _RecalledAsyncConversation(Recalled, llm.AsyncConversation):
    pass


def stand_in(
    model: AnyModel, prompt: llm.Prompt, conversation: AnyConversation | None
) -> AnyConversation:
    """A conversation of this model with one finished response for each turn before the prompt.

    Everything in `prompt.messages` is in it once, except what the prompt itself says. The kind
    is the model's, not the conversation's: a plugin may run a sync model for an async prompt.
    """
    is_async = isinstance(model, (llm.AsyncModel, llm.AsyncKeyModel))
    kind: Any = _RecalledAsyncConversation if is_async else _RecalledConversation
    known = {} if conversation is None else {"id": conversation.id, "name": conversation.name}

    def recall() -> list[Any]:
        chain = prompt.messages
        return [_response(turn, chain, model, is_async) for turn in past_turns(prompt)]

    result: AnyConversation = kind(model=model, **known)
    result.recall = recall  # type: ignore[union-attr]
    return result


def past_turns(prompt: llm.Prompt) -> list[Turn]:
    """The turns before this prompt: its chain without what the prompt itself says."""
    turns = turns_of(prompt.messages)
    if turns and not turns[-1].output:
        own = turns.pop()
        # Tool results and a text given to one prompt are two turns by the roles alone.
        if prompt.tool_results and turns and not turns[-1].output and own.input[0].role == "user":
            turns.pop()
    return turns


def turns_of(messages: Sequence[Message]) -> list[Turn]:
    """Split a chain into turns. Together they hold each message once, in order.

    A request behind tool results that were never answered starts a turn of its own: some adapters
    send a prompt's text before its tool results, which would then miss their calls.
    """
    starts = [index for index in range(len(messages)) if _starts_turn(messages, index)]
    return [
        _turn(messages, start, end)
        for start, end in zip(starts, [*starts[1:], len(messages)], strict=True)
    ]


def _starts_turn(messages: Sequence[Message], index: int) -> bool:
    if index == 0:
        return True
    role, before = messages[index].role, messages[index - 1].role
    if before == "assistant":
        return role != "assistant"
    return before != "system" and is_request(messages, index)


def _turn(messages: Sequence[Message], start: int, end: int) -> Turn:
    position = start
    while position < end and messages[position].role != "assistant":
        position += 1
    return Turn(tuple(messages[start:position]), tuple(messages[position:end]), position)


def _response(
    turn: Turn, chain: Sequence[Message], model: AnyModel, is_async: bool
) -> llm.Response | llm.AsyncResponse:
    kind: Any = llm.AsyncResponse if is_async else llm.Response
    response: llm.Response | llm.AsyncResponse = kind.from_dict(
        {
            "model": model.model_id,
            "prompt": {"messages": []},
            "messages": [message.to_dict() for message in turn.output],
        },
        model=model,
    )
    system = [text_of(message) for message in turn.input if message.role == "system"]
    # Models that have no system prompt raise if they are given one.
    is_allowed = getattr(model, "allows_system_prompt", True)
    prompt = PastPrompt(turn, chain, model, "\n\n".join(system) if is_allowed else "")
    response.prompt = prompt
    # Adapters look in either place: llm fills the one in a live response, the other in a loaded.
    response.attachments = list(prompt.attachments)
    return response


def _attachments(messages: Sequence[Message]) -> list[llm.Attachment]:
    return [
        part.attachment
        for message in messages
        for part in message.parts
        if isinstance(part, AttachmentPart) and part.attachment is not None
    ]


def _tool_results(messages: Sequence[Message]) -> list[llm.ToolResult]:
    return [
        llm.ToolResult(
            name=part.name,
            output=part.output,
            attachments=list(part.attachments),
            tool_call_id=part.tool_call_id,
        )
        for message in messages
        for part in message.parts
        if isinstance(part, ToolResultPart)
    ]
